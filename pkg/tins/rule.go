// SPDX-License-Identifier: BSD-2-Clause

package tins

import (
	"fmt"
	"strconv"
	"strings"
)

// Field is what a [Rule] looks at.
type Field string

// The fields.
const (
	DSCP Field = "dscp"
	Mark Field = "mark"
)

// MaxMarks bounds how many marks the rules of a device may name together.
const MaxMarks = 256

// Rule sends packets with certain DSCPs or marks to a tin.
type Rule struct {
	Field    Field
	From, To uint32 // both included
	Tin      string // canonical
}

// ParseRule reads FIELD:VALUE=TIN, such as "dscp:EF=voice", "dscp:8-14=bulk" or "mark:0x10=video".
// A DSCP is a number or a name, a mark a number; two of them joined by "-" are a range. Whether the
// preset has such a tin is for [Def.Classify] to say.
func ParseRule(text string) (Rule, error) {
	const form = "want dscp:VALUE=TIN or mark:VALUE=TIN"
	match, tin, found := strings.Cut(text, "=")
	if !found {
		return Rule{}, fmt.Errorf("rule %q: no \"=\": %s", text, form)
	}
	field, value, found := strings.Cut(match, ":")
	rule := Rule{Field: Field(strings.ToLower(strings.TrimSpace(field))), Tin: CanonicalName(tin)}
	parse := map[Field]func(string) (uint32, error){DSCP: parseDSCP, Mark: parseMark}[rule.Field]
	switch {
	case !found || parse == nil:
		return Rule{}, fmt.Errorf("rule %q: %s", text, form)
	case rule.Tin == "":
		return Rule{}, fmt.Errorf("rule %q: no tin behind \"=\": %s", text, form)
	}
	first, last, isRange := value, "", false
	if _, err := parse(strings.TrimSpace(value)); err != nil { // a name may have a "-" of its own
		first, last, isRange = strings.Cut(value, "-")
	}
	var err error
	if rule.From, err = parse(strings.TrimSpace(first)); err != nil {
		return Rule{}, fmt.Errorf("rule %q: %w", text, err)
	}
	rule.To = rule.From
	if isRange {
		if rule.To, err = parse(strings.TrimSpace(last)); err != nil {
			return Rule{}, fmt.Errorf("rule %q: %w", text, err)
		}
	}
	if rule.To < rule.From {
		return Rule{}, fmt.Errorf("rule %q: the range ends before it begins", text)
	}
	return rule, nil
}

// String writes the rule as ParseRule reads it.
func (r Rule) String() string {
	format := "%d"
	if r.Field == Mark {
		format = "%#x"
	}
	value := fmt.Sprintf(format, r.From)
	if r.To != r.From {
		value += "-" + fmt.Sprintf(format, r.To)
	}
	return fmt.Sprintf("%s:%s=%s", r.Field, value, r.Tin)
}

// MarshalText is String, for JSON.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is ParseRule, for JSON.
func (r *Rule) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRule(string(text))
	return err
}

// dscpNames are the IANA's, and some older ones.
var dscpNames = map[string]uint32{
	"df": 0, "be": 0, "le": 1, "va": 44, "voice-admit": 44, "nqb": 45, "ef": 46,
	"cs0": 0, "cs1": 8, "cs2": 16, "cs3": 24, "cs4": 32, "cs5": 40, "cs6": 48, "cs7": 56,
	"af11": 10, "af12": 12, "af13": 14, "af21": 18, "af22": 20, "af23": 22,
	"af31": 26, "af32": 28, "af33": 30, "af41": 34, "af42": 36, "af43": 38,
}

func parseDSCP(text string) (uint32, error) {
	if dscp, ok := dscpNames[strings.ToLower(text)]; ok {
		return dscp, nil
	}
	dscp, err := strconv.ParseUint(text, 0, 32)
	if err != nil || dscp > 63 {
		return 0, fmt.Errorf("DSCP %q: want 0 to 63, or a name such as EF, AF41 or CS1", text)
	}
	return uint32(dscp), nil
}

func parseMark(text string) (uint32, error) {
	mark, err := strconv.ParseUint(text, 0, 32)
	if err != nil || mark == 0 {
		return 0, fmt.Errorf("mark %q: want 1 to 0xffffffff; 0 is no mark", text)
	}
	return uint32(mark), nil
}

// Classes says which tin a packet belongs to: that of its mark, else that of its DSCP.
type Classes struct {
	DSCPToTin [64]uint8
	MarkToTin map[uint32]uint8
}

// Classify gives the preset's table with a user's rules on top, of which a later one wins.
func (d Def) Classify(rules []Rule) (Classes, error) {
	classes := Classes{DSCPToTin: d.DSCPToTin, MarkToTin: map[uint32]uint8{}}
	for _, rule := range rules {
		tin, err := d.TinIndex(rule.Tin)
		if err != nil {
			return Classes{}, fmt.Errorf("rule %s: %w", rule, err)
		}
		if rule.Field == Mark && rule.To-rule.From >= MaxMarks {
			return Classes{}, fmt.Errorf("rule %s: more than %d marks; use bits of the mark as a number of the tin instead (fwmark)", rule, MaxMarks)
		}
		// A count, as the range may end at the largest mark.
		for i := range rule.To - rule.From + 1 {
			if rule.Field == DSCP {
				classes.DSCPToTin[rule.From+i] = uint8(tin)
			} else {
				classes.MarkToTin[rule.From+i] = uint8(tin)
			}
		}
	}
	if len(classes.MarkToTin) > MaxMarks {
		return Classes{}, fmt.Errorf("the rules name %d marks: at most %d", len(classes.MarkToTin), MaxMarks)
	}
	return classes, nil
}

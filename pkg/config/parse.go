// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

// ParseTinFlag reads the value of --tin: a tin's name, "=", and one or both of rate:RATE and
// ceil:RATE, as in "voice=rate:2gbit,ceil:50%". "rate:default" goes back to the preset's threshold and
// "ceil:none" to no ceiling. Whether the preset has such a tin is checked with the [Spec].
func ParseTinFlag(text string) (TinOverride, error) {
	const form = "want NAME=rate:RATE,ceil:RATE"
	name, settings, found := strings.Cut(text, "=")
	name = strings.TrimSpace(name)
	switch {
	case !found:
		return TinOverride{}, invalid("tin %q: no \"=\": %s", text, form)
	case name == "":
		return TinOverride{}, invalid("tin %q: no name before \"=\": %s", text, form)
	case strings.TrimSpace(settings) == "":
		return TinOverride{}, invalid("tin %q: nothing after \"=\": %s", text, form)
	}
	o := TinOverride{Name: tins.CanonicalName(name)}
	for part := range strings.SplitSeq(settings, ",") {
		key, value, found := strings.Cut(part, ":")
		if !found {
			return TinOverride{}, invalid("tin %s: %q is not KEY:RATE; the keys are rate and ceil", name, part)
		}
		if err := o.set(name, key, value); err != nil {
			return TinOverride{}, err
		}
	}
	return o, nil
}

// set reads one setting of a tin, which the user called name.
func (o *TinOverride) set(name, key, value string) error {
	setting, reset, resetWord := &o.Rate, &o.RateDefault, "default"
	switch key = strings.ToLower(strings.TrimSpace(key)); key {
	case "rate":
	case "ceil":
		setting, reset, resetWord = &o.Ceil, &o.CeilNone, "none"
	default:
		return invalid("tin %s: unknown key %q; the keys are rate and ceil", name, key)
	}
	if *setting != nil || *reset {
		return invalid("tin %s: %s is given twice", name, key)
	}
	if strings.EqualFold(strings.TrimSpace(value), resetWord) {
		*reset = true
		return nil
	}
	v, err := rates.ParseValue(value)
	if err != nil {
		return invalid("tin %s: %s %w; %s also takes %q", name, key, err, key, resetWord)
	}
	*setting = &v
	return nil
}

// ParseBandwidth reads a bandwidth: absolute, a percentage of the link's speed, or "unlimited".
// Its range is checked with the [Spec].
func ParseBandwidth(text string) (rates.Value, error) {
	v, err := rates.ParseValue(text)
	if err != nil {
		return rates.Value{}, invalid("bandwidth %w", err)
	}
	return v, nil
}

// ParseSplit reads the name of a split policy.
func ParseSplit(text string) (rates.Split, error) {
	s, err := rates.ParseSplit(text)
	if err != nil {
		return "", &invalidError{err}
	}
	return s, nil
}

// ParseOnDrift reads what to do about a drift.
func ParseOnDrift(text string) (OnDrift, error) {
	switch d := OnDrift(text); d {
	case DriftRepair, DriftReport:
		return d, nil
	}
	return "", invalid("unknown answer to a drift %q: want %s or %s", text, DriftRepair, DriftReport)
}

// ParsePreset reads the name of a preset of tins; case does not matter.
func ParsePreset(text string) (tins.Preset, error) {
	def, err := tins.Lookup(text)
	if err != nil {
		return "", &invalidError{err}
	}
	return def.Preset, nil
}

// The range of a round-trip time.
const (
	MinRTT = 10 * time.Microsecond
	MaxRTT = 1000 * time.Second
)

// rttPresets are CAKE's, shortest first.
var rttPresets = []struct {
	name string
	rtt  time.Duration
}{
	{"datacentre", 100 * time.Microsecond},
	{"lan", time.Millisecond},
	{"metro", 10 * time.Millisecond},
	{"regional", 30 * time.Millisecond},
	{"internet", 100 * time.Millisecond},
	{"oceanic", 300 * time.Millisecond},
	{"satellite", time.Second},
	{"interplanetary", 1000 * time.Second},
}

// ParseRTT reads a round-trip time: a number with a unit, such as "20ms", or one of CAKE's
// presets. A bare number is refused: tc(8) takes it for microseconds, and few would guess that.
func ParseRTT(text string) (time.Duration, error) {
	s := strings.ToLower(strings.TrimSpace(text))
	names := make([]string, 0, len(rttPresets))
	for _, p := range rttPresets {
		if s == p.name {
			return p.rtt, nil
		}
		names = append(names, p.name)
	}
	rtt, err := time.ParseDuration(s)
	if err != nil {
		return 0, invalid("rtt %q: want a time with its unit, such as 20ms, or one of %s", text, strings.Join(names, ", "))
	}
	if err := checkRTT(rtt); err != nil {
		return 0, err
	}
	return rtt, nil
}

func checkRTT(rtt time.Duration) error {
	if rtt < MinRTT || rtt > MaxRTT {
		return invalid("rtt %v: must be from %v to %v", rtt, MinRTT, MaxRTT)
	}
	return nil
}

// ParseOverhead reads what the line adds to a packet: numbers and keywords as [framing.Parse] takes
// them, each text one or more of them with commas or spaces between.
func ParseOverhead(texts ...string) (framing.Framing, error) {
	separator := func(r rune) bool { return r == ',' || unicode.IsSpace(r) }
	words := strings.FieldsFunc(strings.Join(texts, ","), separator)
	if len(words) == 0 {
		return framing.Framing{}, invalid("overhead is empty: want a number of bytes, or of %s", strings.Join(framing.Keywords(), ", "))
	}
	f, err := framing.Parse(words)
	if err != nil {
		return framing.Framing{}, &invalidError{err}
	}
	return f, nil
}

// ParseMPU reads the least that a packet takes on the line, in bytes.
func ParseMPU(text string) (int, error) {
	bytes, err := strconv.Atoi(text)
	if err == nil {
		err = framing.Framing{MPUBytes: bytes}.Check()
	}
	if err != nil {
		return 0, invalid("mpu %q: want 0 to %d bytes", text, framing.MaxMPUBytes)
	}
	return bytes, nil
}

// ParseCells reads what a line sends packets in: atm, ptm or noatm.
func ParseCells(text string) (framing.Cells, error) {
	cells, err := framing.ParseCells(text)
	if err != nil {
		return "", &invalidError{err}
	}
	return cells, nil
}

// MapNone in place of rules is none of them.
const MapNone = "none"

// ParseMap reads rules as [tins.ParseRule] takes them, or MapNone alone.
func ParseMap(texts []string) ([]tins.Rule, error) {
	rules := []tins.Rule{}
	if len(texts) == 1 && strings.EqualFold(strings.TrimSpace(texts[0]), MapNone) {
		return rules, nil
	}
	for _, text := range texts {
		rule, err := tins.ParseRule(text)
		if err != nil {
			return nil, &invalidError{err}
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// ParseFwmark reads the bits of a mark that hold the number of a tin; "none" and 0 are no bits.
func ParseFwmark(text string) (uint32, error) {
	if strings.EqualFold(text, "none") {
		return 0, nil
	}
	mask, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		return 0, invalid("fwmark %q: want a mask of 32 bits, such as 0xff, or none", text)
	}
	return uint32(mask), nil
}

// SPDX-License-Identifier: BSD-2-Clause

package tins

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParseRule(t *testing.T) {
	for text, want := range map[string]string{
		"dscp:EF=voice":              "dscp:46=voice",
		"DSCP:cs1 = Bulk":            "dscp:8=bulk",
		"dscp:af11-AF13=best-effort": "dscp:10-14=best_effort",
		"dscp:voice-admit=voice":     "dscp:44=voice",
		"dscp:0x2e=tin 3":            "dscp:46=tin_3",
		"mark:0x10=video":            "mark:0x10=video",
		"mark:7-0x20=video":          "mark:0x7-0x20=video",
		"mark:4294967295=video":      "mark:0xffffffff=video",
	} {
		rule, err := ParseRule(text)
		if err != nil || rule.String() != want {
			t.Errorf("%q is %q, %v; want %q", text, rule, err, want)
		}
		var again Rule
		encoded, err := json.Marshal(rule)
		if err == nil {
			err = json.Unmarshal(encoded, &again)
		}
		if err != nil || again != rule {
			t.Errorf("%q through JSON (%s) is %v, %v", text, encoded, again, err)
		}
	}
	for text, want := range map[string]string{
		"":                  `rule "": no "="`,
		"dscp:EF":           `no "="`,
		"EF=voice":          "want dscp:VALUE=TIN or mark:VALUE=TIN",
		"tos:1=voice":       "want dscp:VALUE=TIN or mark:VALUE=TIN",
		"dscp:EF=":          "no tin",
		"dscp:64=voice":     `DSCP "64": want 0 to 63`,
		"dscp:AF44=voice":   `DSCP "AF44"`,
		"dscp:-1=voice":     `DSCP ""`,
		"dscp:14-10=voice":  "ends before it begins",
		"mark:0=bulk":       "0 is no mark",
		"mark:x=bulk":       `mark "x"`,
		"mark:1-x=bulk":     `mark "x"`,
		"mark:1ffffffff=be": "want 1 to 0xffffffff",
	} {
		if rule, err := ParseRule(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %v, %v; want an error with %q", text, rule, err, want)
		}
	}
}

func TestClassify(t *testing.T) {
	def := lookup(t, Diffserv4)
	classify := func(texts ...string) (Classes, error) {
		var rules []Rule
		for _, text := range texts {
			rule, err := ParseRule(text)
			if err != nil {
				t.Fatal(err)
			}
			rules = append(rules, rule)
		}
		return def.Classify(rules)
	}
	classes, err := classify("dscp:40-46=bulk", "dscp:EF=voice", "mark:0xfffffffe-0xffffffff=video", "mark:1=bulk", "mark:1=voice")
	if err != nil {
		t.Fatal(err)
	}
	for dscp, tin := range classes.DSCPToTin {
		want := def.DSCPToTin[dscp]
		if dscp >= 40 && dscp < 46 {
			want = 1
		}
		if tin != want {
			t.Errorf("DSCP %d goes to tin %d, want %d", dscp, tin, want)
		}
	}
	if m := classes.MarkToTin; len(m) != 3 || m[0xfffffffe] != 2 || m[0xffffffff] != 2 || m[1] != 3 {
		t.Errorf("marks go to %v", m)
	}
	for text, want := range map[string]string{
		"dscp:EF=tin_3":        `rule dscp:46=tin_3: unknown tin "tin_3": diffserv4 has bulk`,
		"mark:1-0x101=bulk":    "more than 256 marks",
		"mark:1-4294967295=be": "unknown tin",
	} {
		if _, err := classify(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := classify("mark:1-0x100=bulk", "mark:0x200=bulk"); err == nil {
		t.Error("257 marks are taken")
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Differences says in words what is another setting in after than in before: "bandwidth 2gbit -> 1gbit".
// Names are those of the file's keys.
func Differences(before, after Spec) []string {
	var differences []string
	for i, setting := range before.settings() {
		if is := after.settings()[i]; is.value != setting.value {
			differences = append(differences, fmt.Sprintf("%s %s -> %s", setting.name, setting.value, is.value))
		}
	}
	return append(differences, tinDifferences(before.Tins, after.Tins)...)
}

// setting is one setting in words.
type setting struct{ name, value string }

// settings are those of s in words, but for the tins.
func (s Spec) settings() []setting {
	var rules []string
	for _, rule := range s.Map {
		rules = append(rules, rule.String())
	}
	fwmark := "none"
	if s.FwmarkMask != 0 {
		fwmark = fmt.Sprintf("%#x", s.FwmarkMask)
	}
	return []setting{
		{"bandwidth", s.Bandwidth.String()},
		{"diffserv", string(s.Preset)},
		{"split", string(s.Split)},
		{"isolation", string(cmp.Or(s.Isolation, IsolateFlows))},
		{"flows", fmt.Sprint(s.Flows)},
		{"line", cmp.Or(s.Framing.String(), "raw")},
		{"rtt", s.RTT.String()},
		{"map", cmp.Or(strings.Join(rules, ", "), MapNone)},
		{"fwmark", fwmark},
		{"inner_dscp", fmt.Sprint(s.InnerDSCP)},
		{"wash", fmt.Sprint(s.Wash)},
		{"whole_gso", fmt.Sprint(s.WholeGSO)},
		{"on_drift", string(cmp.Or(s.OnDrift, DriftRepair))},
		{"check_queues", fmt.Sprint(s.CheckQueues)},
		{"replace", fmt.Sprint(s.Replace)},
		{"keep", fmt.Sprint(s.Keep)},
	}
}

func tinDifferences(before, after []TinOverride) []string {
	var names []string
	for _, o := range slices.Concat(before, after) {
		if !slices.Contains(names, o.Name) {
			names = append(names, o.Name)
		}
	}
	var differences []string
	for _, name := range names {
		rateBefore, ceilBefore := overridesOf(before, name)
		rateAfter, ceilAfter := overridesOf(after, name)
		if rateBefore != rateAfter {
			differences = append(differences, fmt.Sprintf("%s rate %s -> %s", name, rateBefore, rateAfter))
		}
		if ceilBefore != ceilAfter {
			differences = append(differences, fmt.Sprintf("%s ceil %s -> %s", name, ceilBefore, ceilAfter))
		}
	}
	return differences
}

// overridesOf is what overrides say of a tin.
func overridesOf(overrides []TinOverride, name string) (rate, ceil string) {
	rate, ceil = "default", "none"
	for _, o := range overrides {
		if o.Name != name {
			continue
		}
		if o.Rate != nil {
			rate = o.Rate.String()
		}
		if o.Ceil != nil {
			ceil = o.Ceil.String()
		}
	}
	return rate, ceil
}

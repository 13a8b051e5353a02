// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/cakectl/cakectl/pkg/rates"
)

// Isolation is what is treated equally within a tin, in CAKE's words.
type Isolation string

// Each flow, each host that sends or receives, each pair of hosts; or hosts, and then the flows of
// each.
const (
	IsolateFlows       Isolation = "flows"
	IsolateSrcHost     Isolation = "srchost"
	IsolateDstHost     Isolation = "dsthost"
	IsolateHosts       Isolation = "hosts"
	IsolateDualSrcHost Isolation = "dual-srchost"
	IsolateDualDstHost Isolation = "dual-dsthost"
	IsolateTriple      Isolation = "triple"
)

// Isolations are all there are.
func Isolations() []Isolation {
	return []Isolation{IsolateFlows, IsolateSrcHost, IsolateDstHost, IsolateHosts, IsolateDualSrcHost, IsolateDualDstHost, IsolateTriple}
}

// ParseIsolation reads the name of an isolation; case does not matter. CAKE's name for triple is taken
// too.
func ParseIsolation(text string) (Isolation, error) {
	isolation := Isolation(strings.ToLower(strings.TrimSpace(text)))
	if isolation == "triple-isolate" {
		return IsolateTriple, nil
	}
	if !slices.Contains(Isolations(), isolation) {
		var names []string
		for _, i := range Isolations() {
			names = append(names, string(i))
		}
		return "", invalid("unknown isolation %q: want one of %s", text, strings.Join(names, ", "))
	}
	return isolation, nil
}

// checkIsolation also refuses what contradicts itself: a host's flows go by several queues, so equal
// shares for hosts and equal shares for queues exclude each other.
func checkIsolation(isolation Isolation, split rates.Split) error {
	isolation, err := ParseIsolation(string(cmp.Or(isolation, IsolateFlows)))
	if err != nil {
		return err
	}
	if isolation != IsolateFlows && split == rates.SplitEqual {
		return invalid("isolation %s needs split %s: split %s treats queues equally, and a host's flows go by several", isolation, rates.SplitFlows, split)
	}
	return nil
}

// flowsAre says what a packet's flow is: one of its hosts, both, or a flow proper.
func (i Isolation) flowsAre() Isolation {
	switch i {
	case IsolateSrcHost, IsolateDstHost, IsolateHosts:
		return i
	}
	return IsolateFlows
}

// CheckLive refuses to turn s into to while packets wait: where they become part of other flows, later
// ones could overtake them.
func (s Spec) CheckLive(to Spec) error {
	if s.Isolation.flowsAre() != to.Isolation.flowsAre() {
		return invalid("isolation %s treats other packets as one flow than %s, and that cannot change under traffic: detach %s first; under traffic it changes among %s", to.Isolation, cmp.Or(s.Isolation, IsolateFlows), s.Device, strings.Join(liveIsolations(), ", "))
	}
	return nil
}

// liveIsolations are those that a device can change among.
func liveIsolations() (names []string) {
	for _, i := range Isolations() {
		if i.flowsAre() == IsolateFlows {
			names = append(names, string(i))
		}
	}
	return names
}

// The range of the flow table of one (queue, tin).
const (
	MinFlows = 64
	MaxFlows = 65536
)

// ParseFlows reads the size of a flow table.
func ParseFlows(text string) (int, error) {
	flows, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || flows == 0 {
		return 0, invalid("flows %q: want a power of two from %d to %d", text, MinFlows, MaxFlows)
	}
	return flows, checkFlows(flows)
}

func checkFlows(flows int) error {
	if flows != 0 && (flows < MinFlows || flows > MaxFlows || flows&(flows-1) != 0) {
		return invalid("flows %d: want a power of two from %d to %d", flows, MinFlows, MaxFlows)
	}
	return nil
}

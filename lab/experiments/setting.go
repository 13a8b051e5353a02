// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"fmt"
	"strings"
)

// Setting says what the experiment is made of: a clause for the network, each load and each action.
func (e Experiment) Setting() string {
	var clauses []string
	say := func(format string, args ...any) { clauses = append(clauses, fmt.Sprintf(format, args...)) }
	switch {
	case e.Cost != nil && e.Cost.Span > 0:
		say("the kernel's packet generator (queue_xmit) into a dummy device, packets of %d bytes, %d flows from each CPU, counted for %v while all send",
			costFrame, costFlows, e.Cost.Span)
	case e.Cost != nil:
		say("the kernel's packet generator (queue_xmit) into a dummy device, %d packets of %d bytes, %d flows, after as many to warm up",
			e.Cost.Packets, costFrame, costFlows)
	case e.Forwarding != nil:
		say("the kernel's packet generator into a router, %d packets of %d bytes, %d flows, after as many to warm up", e.Forwarding.Packets, costFrame, costFlows)
	case e.Network == Routed:
		say("a sender, a router that shapes and a receiver, joined by veth pairs")
	case e.Network == Merged:
		say("a sender, a router that shapes and a receiver, joined by veth pairs; the sender's super-packets arrive whole")
	case e.Network == Virtio:
		say("two virtio-net NICs of the VM, bridged outside it")
	default:
		say("a veth pair")
	}
	if e.BothWays {
		say("both ends shape")
	}
	if e.ECN {
		say("with ECN")
	}
	if e.Framing.Overhead != 0 {
		say("framing: %d bytes a packet, ATM %v", e.Framing.Overhead, e.Framing.ATM)
	}
	for _, l := range e.Loads {
		say("%s: %s", l.Name, l.setting())
	}
	for _, a := range e.Actions {
		if what := a.setting(); what != "" {
			say("at %.4g %%%s: %s", 100*a.At, later(a), what)
		}
	}
	return strings.Join(clauses, "; ")
}

func later(a Action) string {
	if a.Later == 0 {
		return ""
	}
	return fmt.Sprintf(" and %v", a.Later)
}

func (l Load) setting() string {
	var text string
	switch {
	case l.TCP != nil:
		text = fmt.Sprintf("%s of TCP%s, DSCP %d", flows(l.TCP.Flows), inBrackets(l.TCP.Congestion), l.TCP.DSCP)
	case l.Short != nil:
		text = fmt.Sprintf("%d connections of TCP a second, %d bytes each, DSCP %d", l.Short.PerSecond, l.Short.Bytes, l.Short.DSCP)
	case l.UDP != nil && l.UDP.TimesBandwidth > 0:
		text = fmt.Sprintf("%s of UDP, %d-byte frames, %g times the bandwidth together, DSCP %d", flows(l.UDP.Flows), l.UDP.FrameBytes, l.UDP.TimesBandwidth, l.UDP.DSCP)
	case l.UDP != nil:
		text = fmt.Sprintf("%s of UDP, %d-byte frames, %g kbit/s each, DSCP %d", flows(l.UDP.Flows), l.UDP.FrameBytes, l.UDP.BitsPerSecond/1e3, l.UDP.DSCP)
	case l.Iperf != nil:
		text = fmt.Sprintf("%s of TCP", flows(l.Iperf.Flows))
	case l.Ping != nil:
		text = fmt.Sprintf("an ICMP echo each %v, DSCP %d", l.Ping.Interval, l.Ping.DSCP)
	}
	if l.Back {
		text += ", to the sender"
	}
	if l.At > 0 {
		text += fmt.Sprintf(", from %.4g %% of the time on", 100*l.At)
	}
	if l.Until > 0 {
		text += fmt.Sprintf(", until %.4g %%", 100*l.Until)
	}
	return text
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

func (a Action) setting() string {
	switch {
	case a.TimesBandwidth > 0:
		return fmt.Sprintf("the rate times %g", a.TimesBandwidth)
	case a.Kill:
		return "the shaper's process is killed"
	case a.Signal != 0:
		return fmt.Sprintf("signal %q to the shaper's process", a.Signal)
	default:
		return "" // only something is noted
	}
}

func flows(n int) string {
	if n == 1 {
		return "1 flow"
	}
	return fmt.Sprintf("%d flows", n)
}

// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cakectl/cakectl/lab/traffic"
	"github.com/cakectl/cakectl/pkg/rates"
)

// Experiment is one thing to find out about a shaper.
type Experiment struct {
	Name  string
	About string
	// ShapersOnly leaves out the peers that hold no rate.
	ShapersOnly bool
	// Rates, unless empty, take the place of the plan's.
	Rates []rates.Rate
	Loads []Load
	// Cost, unless nil, takes the place of loads and actions.
	Cost *CostLoad
	// Actions happen under way.
	Actions []Action
	// Measures are the columns of the result.
	Measures []Measure
}

// Load is some traffic. One of TCP, UDP, Iperf and Ping is set.
type Load struct {
	Name string
	// At is when it starts, as a share of the measured time; at 0 it starts before the warm-up.
	At    float64
	TCP   *traffic.TCPConfig
	UDP   *UDPLoad
	Iperf *IperfLoad
	Ping  *traffic.PingConfig
}

// UDPLoad is UDP whose rate may depend on that of the experiment.
type UDPLoad struct {
	Flows      int
	DSCP       uint8
	FrameBytes int
	// TimesBandwidth is what all flows together want to send, as a multiple of the shaped bandwidth;
	// BitsPerSecond is what each flow does. One of them is set.
	TimesBandwidth float64
	BitsPerSecond  float64
	Delays         bool
}

func (l UDPLoad) config(bandwidth float64) traffic.UDPConfig {
	rate := l.BitsPerSecond
	if l.TimesBandwidth > 0 {
		rate = l.TimesBandwidth * bandwidth / float64(l.Flows)
	}
	return traffic.UDPConfig{Flows: l.Flows, DSCP: l.DSCP, FrameBytes: l.FrameBytes, RateBitsPerSecond: rate, Delays: l.Delays}
}

// IperfLoad is TCP by iperf3, which runs from the start to the end of the measured time and leaves
// out the warm-up by itself.
type IperfLoad struct {
	Flows int
}

// Action is something done to the shaper under load.
type Action struct {
	// At is when, as a share of the measured time.
	At float64
	// TimesBandwidth, unless 0, is the new rate as a multiple of the experiment's.
	TimesBandwidth float64
	// Kill ends the shaper's process by force.
	Kill bool
}

// DSCPs that experiments use.
const (
	bestEffort = 0
	cs1        = 8
	af11       = 10
	af41       = 34
	ef         = 46
)

// Lengths of frames in bytes, Ethernet header included.
const (
	fullFrame  = 1514
	smallFrame = 102
	callFrame  = 214
)

// pingInterval gives some hundred round trips a run without being a load of its own.
const pingInterval = 10 * time.Millisecond

// All lists the experiments.
func All() []Experiment {
	ping := Load{Name: "ping", Ping: &traffic.PingConfig{Interval: pingInterval}}
	pingTimes := []Measure{pingTime("ping", 0.5), pingTime("ping", 0.99), pingTime("ping", 1)}
	windows := []Measure{window(10*time.Millisecond, max99), window(10*time.Millisecond, maximum), window(100*time.Millisecond, maximum)}
	return []Experiment{
		{
			Name:     "tcp1",
			About:    "one TCP flow, a ping beside it",
			Loads:    []Load{tcp("tcp", 1, bestEffort), ping},
			Measures: slices.Concat([]Measure{goodput("tcp")}, pingTimes, windows),
		},
		{
			Name:     "tcp32",
			About:    "32 TCP flows, a ping beside them",
			Loads:    []Load{tcp("tcp", 32, bestEffort), ping},
			Measures: slices.Concat([]Measure{goodput("tcp"), jain("tcp")}, pingTimes, windows),
		},
		{
			Name:     "iperf32",
			About:    "iperf3 with 32 TCP flows, by its own figures, a ping beside them",
			Loads:    []Load{{Name: "iperf3", Iperf: &IperfLoad{Flows: 32}}, ping},
			Measures: slices.Concat([]Measure{total(), goodput("iperf3"), jain("iperf3"), retransmits("iperf3")}, pingTimes, windows),
		},
		{
			Name:  "trickle31",
			About: "one bulk TCP flow beside 31 trickles of 100 small packets a second",
			Loads: []Load{
				tcp("tcp", 1, bestEffort),
				// A DSCP that is Best Effort as well, so that the meter can tell them apart.
				{Name: "trickle", UDP: &UDPLoad{Flows: 31, DSCP: af11, FrameBytes: smallFrame, BitsPerSecond: 100 * 8 * smallFrame, Delays: true}},
				ping,
			},
			Measures: slices.Concat([]Measure{total(), goodput("tcp"), share("trickle"), loss("trickle"), delay("trickle", 0.99)}, pingTimes, windows),
		},
		{
			Name:     "udp16x4",
			About:    "16 UDP senders that want four times the bandwidth together, a ping beside them",
			Loads:    []Load{{Name: "udp", UDP: &UDPLoad{Flows: 16, FrameBytes: fullFrame, TimesBandwidth: 4}}, ping},
			Measures: slices.Concat([]Measure{total(), loss("udp"), spread("udp"), reordered("udp")}, pingTimes, windows),
		},
		{
			Name:  "tcp4udp2x",
			About: "4 TCP flows beside one UDP sender that wants twice the bandwidth",
			Loads: []Load{
				tcp("tcp", 4, bestEffort),
				{Name: "udp", UDP: &UDPLoad{Flows: 1, DSCP: af11, FrameBytes: fullFrame, TimesBandwidth: 2}},
				ping,
			},
			Measures: slices.Concat([]Measure{total(), leastOfFair("tcp", 5), share("udp"), loss("udp")}, pingTimes, windows),
		},
		{
			Name:  "call",
			About: "a call of 200 kbit/s (EF) beside saturating Bulk (4 TCP flows, CS1) and Best Effort (4 TCP flows)",
			Loads: []Load{
				tcp("best effort", 4, bestEffort),
				tcp("bulk", 4, cs1),
				{Name: "call", UDP: &UDPLoad{Flows: 1, DSCP: ef, FrameBytes: callFrame, BitsPerSecond: 200e3, Delays: true}},
				ping,
			},
			Measures: slices.Concat([]Measure{total(), share("bulk"), share("best effort"), loss("call"), delay("call", 0.5), delay("call", 0.99), delay("call", 1)}, pingTimes, windows),
		},
		{
			Name:     "tins",
			About:    "Bulk (8 TCP flows, CS1), Best Effort (16) and Video (8, AF41), all saturating",
			Loads:    []Load{tcp("bulk", 8, cs1), tcp("best effort", 16, bestEffort), tcp("video", 8, af41), ping},
			Measures: slices.Concat([]Measure{total(), share("bulk"), share("best effort"), share("video")}, pingTimes, windows),
		},
		{
			Name:     "bulk",
			About:    "Bulk alone: 4 TCP flows with CS1",
			Loads:    []Load{tcp("bulk", 4, cs1), {Name: "ping", Ping: &traffic.PingConfig{Interval: pingInterval, DSCP: cs1}}},
			Measures: slices.Concat([]Measure{goodput("bulk"), jain("bulk")}, pingTimes, windows),
		},
		{
			Name:        "step",
			About:       "the rate halved and put back under 8 TCP flows, with 8 UDP flows of 1 % each beside them",
			ShapersOnly: true,
			Loads: []Load{
				tcp("tcp", 8, bestEffort),
				{Name: "udp", UDP: &UDPLoad{Flows: 8, DSCP: af11, FrameBytes: callFrame, TimesBandwidth: 0.08}},
				ping,
			},
			Actions: []Action{{At: 0.25, TimesBandwidth: 0.5}, {At: 0.625, TimesBandwidth: 1}},
			Measures: slices.Concat([]Measure{after("down 100ms", 0, 0.5), held("down held", 0, 0.5), after("up 100ms", 1, 1), held("up held", 1, 1),
				loss("udp"), reordered("udp")}, pingTimes),
		},
		{
			Name:        "kill",
			About:       "the shaper's process killed under 4 TCP flows, 28 more flows later (the kernel's shapers have no process)",
			ShapersOnly: true,
			Loads:       []Load{tcp("tcp", 4, bestEffort), {Name: "more", At: 0.6, TCP: &traffic.TCPConfig{Flows: 28, DSCP: af11}}, ping},
			Actions:     []Action{{At: 0.3, Kill: true}},
			Measures: slices.Concat([]Measure{totalFrom("before", 0, 0.3), totalFrom("killed", 0.3, 0.6), totalFrom("more flows", 0.6, 1),
				worstFrom("100ms max", 100*time.Millisecond, 0, 1)}, pingTimes),
		},
		{
			Name:        "burst",
			About:       "31 TCP flows that start together beside one that is there",
			ShapersOnly: true,
			Loads:       []Load{tcp("tcp", 1, bestEffort), {Name: "more", At: 0.5, TCP: &traffic.TCPConfig{Flows: 31, DSCP: af11}}, ping},
			Measures: slices.Concat([]Measure{totalFrom("before", 0, 0.5), totalFrom("after", 0.5, 1),
				worstFrom("10ms max before", 10*time.Millisecond, 0, 0.5), worstFrom("10ms max after", 10*time.Millisecond, 0.5, 1),
				worstFrom("100ms max after", 100*time.Millisecond, 0.5, 1)}, pingTimes),
		},
		cost(),
	}
}

func tcp(name string, flows int, dscp uint8) Load {
	return Load{Name: name, TCP: &traffic.TCPConfig{Flows: flows, DSCP: dscp}}
}

// Lookup finds an experiment by its name.
func Lookup(name string) (Experiment, error) {
	var names []string
	for _, e := range All() {
		if e.Name == name {
			return e, nil
		}
		names = append(names, e.Name)
	}
	return Experiment{}, fmt.Errorf("no experiment %q (there are: %s)", name, strings.Join(names, ", "))
}

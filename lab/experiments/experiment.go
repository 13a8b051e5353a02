// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"fmt"
	"strings"
	"time"

	"github.com/cakectl/cakectl/lab/traffic"
)

// Experiment is one thing to find out about a shaper.
type Experiment struct {
	Name  string
	About string
	// Loads start together.
	Loads []Load
	// Actions happen under way.
	Actions []Action
	// Measures are the columns of the result.
	Measures []Measure
}

// Load is some traffic. One of TCP, UDP and Ping is set.
type Load struct {
	Name string
	TCP  *traffic.TCPConfig
	UDP  *UDPLoad
	Ping *traffic.PingConfig
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
	ef         = 46
)

const fullFrame = 1514

// pingInterval gives some hundred round trips a run without being a load of its own.
const pingInterval = 10 * time.Millisecond

// All lists the experiments.
func All() []Experiment {
	ping := Load{Name: "ping", Ping: &traffic.PingConfig{Interval: pingInterval}}
	windows := []Measure{window(10*time.Millisecond, max99), window(10*time.Millisecond, maximum), window(100*time.Millisecond, maximum)}
	tcp := func(name string, flows int) Load {
		return Load{Name: name, TCP: &traffic.TCPConfig{Flows: flows}}
	}
	return []Experiment{
		{
			Name:     "tcp1",
			About:    "one TCP flow, a ping beside it",
			Loads:    []Load{tcp("tcp", 1), ping},
			Measures: append([]Measure{goodput("tcp"), pingTime("ping", 0.5), pingTime("ping", 0.99)}, windows...),
		},
		{
			Name:     "tcp32",
			About:    "32 TCP flows, a ping beside them",
			Loads:    []Load{tcp("tcp", 32), ping},
			Measures: append([]Measure{goodput("tcp"), jain("tcp"), pingTime("ping", 0.5), pingTime("ping", 0.99), pingTime("ping", 1)}, windows...),
		},
		{
			Name:     "udp16x4",
			About:    "16 UDP senders that want four times the bandwidth together",
			Loads:    []Load{{Name: "udp", UDP: &UDPLoad{Flows: 16, FrameBytes: fullFrame, TimesBandwidth: 4}}},
			Measures: append([]Measure{total(), loss("udp"), spread("udp"), reordered("udp")}, windows...),
		},
	}
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

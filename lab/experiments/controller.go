// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/cakectl/cakectl/lab/stats"
	"github.com/cakectl/cakectl/lab/traffic"
)

// controllerExperiments are about what it takes to keep the rates of many queues in step. Their work is
// noted when flows have long settled: give them 10 s or more.
func controllerExperiments() []Experiment {
	const queues = 32
	return []Experiment{
		{
			Name:  "reconfigure",
			About: "32 TCP flows over 32 queues; how often rates are computed and set in the steady state, and when the bandwidth is halved and put back",
			Published: "cake_mq, 2026, 2 Gbit/s over 32 queues in 30 s: 2,477,627 calls, 3.477 s in them; with updates skipped that change nothing " +
				"206 calls, 0.498 ms, throughput unchanged; 64 calls for two changes",
			Figures: []Figure{
				{"32 flows on 32 queues: calls to set rates, a second", "6.9 (82,588 before)", "recomputes"},
				{"the same: rates written for two changes", "64", "writes of the changes"},
				{"the same: throughput, %", "as before", "total"},
			},
			Remark: "cake_mq: calls of cake_configure_rates, counted by a probe. " +
				"cakectl: its own counts; a change of the bandwidth writes each active (queue, tin) once.",
			Peers: []string{"cake_mq", "cakectl"}, Queues: []int{queues},
			Loads: []Load{tcp("tcp", 32, bestEffort)},
			Actions: []Action{
				{At: 0.2, Work: true},
				{At: 0.7, Work: true}, {At: 0.7, TimesBandwidth: 0.5}, {At: 0.7, Work: true},
				{At: 0.8, Work: true}, {At: 0.8, TimesBandwidth: 1}, {At: 0.8, Work: true},
			},
			Measures: []Measure{
				totalFrom("total", 0, 0.7), rate("recomputes", 0, 1, recomputes), rate("writes", 0, 1, writes),
				active(1), sum("writes of the changes", writes, [2]int{1, 3}, [2]int{4, 6}),
			},
		},
		{
			Name:  "stopped",
			Minor: true,
			About: "the controller is stopped (SIGSTOP) while all 8 TCP flows end and 8 others start, and goes on (SIGCONT): " +
				"shares of the others while it is stopped, and from 50 ms after",
			Peers: []string{"cakectl"}, Queues: []int{queues},
			Loads: []Load{
				{Name: "before", TCP: &traffic.TCPConfig{Flows: 8}, Until: 0.2},
				{Name: "others", TCP: &traffic.TCPConfig{Flows: 8, DSCP: af11}, At: 0.2},
			},
			Actions: []Action{
				{At: 0.1, Signal: syscall.SIGSTOP}, {At: 0.3},
				{At: 0.7, Signal: syscall.SIGCONT}, {At: 0.7, Later: 50 * time.Millisecond}, {At: 0.7, Later: 550 * time.Millisecond},
			},
			Measures: []Measure{
				totalFrom("total stopped", 0.3, 0.7), leastBetween("least stopped", "others", 1, 2), jainBetween("Jain stopped", "others", 1, 2),
				jainBetween("Jain after", "others", 3, 4), totalFrom("total after", 0.7, 1),
			},
		},
		{
			Name:  "flap",
			Minor: true,
			About: "8 TCP flows beside 8 UDP flows that want just what is theirs, over 32 queues: they turn active and idle all the time",
			Peers: []string{"cake_mq", "cakectl"}, Queues: []int{queues},
			Loads: []Load{
				tcp("tcp", 8, bestEffort),
				{Name: "udp", UDP: &UDPLoad{Flows: 8, DSCP: af11, FrameBytes: fullFrame, TimesBandwidth: 0.5}},
			},
			Actions: []Action{{At: 0.1, Work: true}, {At: 0.95, Work: true}},
			Measures: []Measure{
				total(), jain("tcp"), share("udp", near(50)), loss("udp"), rate("recomputes", 0, 1, recomputes), rate("writes", 0, 1, writes),
			},
		},
		{
			Name:  "churn",
			Minor: true,
			About: "8 long TCP flows beside 200 short ones a second, of 5,000 bytes each, over 32 queues",
			Peers: []string{"cake_mq", "cakectl"}, Queues: []int{queues},
			Loads: []Load{
				tcp("long", 8, bestEffort),
				// A DSCP that is Best Effort as well, so that the meter can tell them apart.
				{Name: "short", Short: &traffic.ShortConfig{PerSecond: 200, Bytes: 5000, DSCP: af11}},
				{Name: "ping", Ping: &traffic.PingConfig{Interval: pingInterval}},
			},
			Actions: []Action{{At: 0.1, Work: true}, {At: 0.95, Work: true}},
			Measures: []Measure{
				total(), jain("long"), share("short", nil), rate("recomputes", 0, 1, recomputes), rate("writes", 0, 1, writes),
				pingTime("ping", 0.5), pingTime("ping", 0.99),
			},
		},
	}
}

func recomputes(n note) uint64 { return n.work.Recomputes }
func writes(n note) uint64     { return n.work.Writes }

// rate is how often a second something was done from one action to another.
func rate(name string, from, to int, of func(note) uint64) Measure {
	return Measure{name, "/s", least, func(o *outcome) (float64, error) {
		return float64(of(o.notes[to])-of(o.notes[from])) / (o.acted[to] - o.acted[from]).Seconds(), nil
	}}
}

// sum is how often something was done between pairs of actions.
func sum(name string, of func(note) uint64, spans ...[2]int) Measure {
	return Measure{name, "", least, func(o *outcome) (float64, error) {
		var n uint64
		for _, span := range spans {
			n += of(o.notes[span[1]]) - of(o.notes[span[0]])
		}
		return float64(n), nil
	}}
}

// active is how many (queue, tin)s had a rate at an action.
func active(at int) Measure {
	return Measure{"active", "", nil, func(o *outcome) (float64, error) { return float64(o.notes[at].work.Active), nil }}
}

// between is what each flow of a load delivered from one action to another.
func (o *outcome) between(load string, from, to int) (flowCounts, error) {
	before, after := o.notes[from].flows[load], o.notes[to].flows[load]
	if len(before) == 0 || len(before) != len(after) {
		return nil, fmt.Errorf("load %s has not run from action %d to %d", load, from, to)
	}
	return after.minus(before), nil
}

// jainBetween is Jain's index over the flows of a load from one action to another.
func jainBetween(name, load string, from, to int) Measure {
	return Measure{name, "", most, func(o *outcome) (float64, error) {
		flows, err := o.between(load, from, to)
		return stats.Jain(flows), err
	}}
}

// leastBetween is what the flow of a load that got least got from one action to another, as a multiple
// of the mean.
func leastBetween(name, load string, from, to int) Measure {
	return Measure{name, "x mean", near(1), func(o *outcome) (float64, error) {
		flows, err := o.between(load, from, to)
		if err != nil {
			return 0, err
		}
		return float64(slices.Min(flows)) * float64(len(flows)) / flows.total(), nil
	}}
}

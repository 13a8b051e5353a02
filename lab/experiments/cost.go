// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/cakectl/cakectl/lab/pktgen"
	"github.com/cakectl/cakectl/lab/shaper"
	"github.com/cakectl/cakectl/lab/topo"
	"github.com/cakectl/cakectl/pkg/rates"
)

// CostLoad finds out what a packet costs: the kernel's packet generator sends as fast as it can into a
// device that takes everything. Where the clock counts instructions, as it does in the lab's VM, the
// time of a packet is the number of its instructions. What the generator and the device need is part of
// it, which is why the shaper of costBase is measured in the same way, in the same run.
type CostLoad struct {
	// Packets is how many are sent for each measure.
	Packets int
	// Threads are the numbers of CPUs that send at the same time. If there are several numbers, packets are
	// counted for Span instead, while all send.
	Threads []int
	Span    time.Duration
}

// costBase is the cheapest of what all multi-queue shapers by departure times need.
const costBase = "fq"

// Flows and length of frames, those of the published comparisons.
const (
	costFlows = 64
	costFrame = 1400
)

// costFastRate is more than the VM's processor can send: nothing waits. At costRate packets wait, but not
// for so long that all shapers drop many.
const (
	costFastRate rates.Rate = 10e9
	costRate     rates.Rate = 1e9
)

// costs are nanoseconds a packet: with a clock that counts instructions, instructions.
type costs struct {
	// free is for packets that need not wait, by the number of threads; waiting for packets that do, tins
	// for packets of four tins that need not wait, both by one thread.
	free          map[int]float64
	waiting, tins float64
	// refused is the share of the waiting that was dropped at once.
	refused float64
	base    *costs
}

func costMeasure(name string, value func(c costs) float64) Measure {
	return Measure{name, "", least, func(o *outcome) (float64, error) { return value(o.cost), nil }}
}

func cost() Experiment {
	return Experiment{
		Name:  "cost",
		About: "instructions a packet, in all and above mq+fq: packets that need not wait, those of four tins, packets that wait",
		Rates: []rates.Rate{costRate},
		Cost:  &CostLoad{Packets: 20000, Threads: []int{1}},
		Measures: []Measure{
			costMeasure("free", func(c costs) float64 { return c.free[1] }),
			costMeasure("free above fq", func(c costs) float64 { return c.free[1] - c.base.free[1] }),
			costMeasure("tins above fq", func(c costs) float64 { return c.tins - c.base.tins }),
			costMeasure("waiting", func(c costs) float64 { return c.waiting }),
			costMeasure("waiting above fq", func(c costs) float64 { return c.waiting - c.base.free[1] }),
			{"refused", "%", nil, func(o *outcome) (float64, error) { return 100 * o.cost.refused, nil }},
		},
	}
}

func costThreads() Experiment {
	threads := []int{1, 2, 4, 8, 16}
	e := Experiment{
		Name: "threads",
		Published: "pfifo_fast without a lock, 2021, packets a second against one that takes the lock: +23 % with 1 thread, " +
			"+44 % with 2, nothing from 4 on",
		Figures: []Figure{{"a packet's cost with 16 CPUs sending, times that with 1", "no gain from 4 on", "16 to 1"}},
		About:   "instructions a packet, with 1 to 16 CPUs sending at the same time",
		Remark: "The CPUs take turns on one thread of the host, and a lock is seldom held when turns change. What taking it costs is seen, and " +
			"how often the same is done again for each CPU; that CPUs wait for each other, as they do for the one lock of htb and cake, is not. " +
			"The timer ticks of 16 CPUs are in it: none grows as well. make bench-cpus runs cakectl on two real CPUs.",
		Rates: []rates.Rate{costRate},
		Cost:  &CostLoad{Threads: threads, Span: 100 * time.Millisecond},
	}
	for _, n := range threads {
		e.Measures = append(e.Measures, costMeasure(fmt.Sprint(n), func(c costs) float64 { return c.free[n] }))
	}
	last := threads[len(threads)-1]
	e.Measures = append(e.Measures, Measure{fmt.Sprintf("%d to 1", last), "x", least, func(o *outcome) (float64, error) {
		return o.cost.free[last] / o.cost.free[1], nil
	}})
	return e
}

// CPUs is how many the experiment needs.
func (e Experiment) CPUs() int {
	if e.Cost == nil {
		return 1
	}
	return slices.Max(e.Cost.Threads)
}

// runCost fills in what packets cost with a row's shaper and with none.
func (p Plan) runCost(ctx context.Context, e Experiment, prefix string, row *Row) error {
	if have := runtime.NumCPU(); have < e.CPUs() {
		return fmt.Errorf("%d CPUs are to send, and there are %d", e.CPUs(), have)
	}
	own, err := p.costsOf(ctx, *e.Cost, prefix, row.Peer, row)
	if err != nil {
		return err
	}
	if e.Cost.Span == 0 {
		base, err := p.costsOf(ctx, *e.Cost, prefix, costBase, row)
		if err != nil {
			return fmt.Errorf("%s, to compare with: %w", costBase, err)
		}
		own.base = &base
	}
	return row.measure(e, &outcome{cost: own})
}

func (p Plan) costsOf(ctx context.Context, load CostLoad, prefix, name string, row *Row) (c costs, err error) {
	peer, err := shaper.Lookup(name)
	if err != nil {
		return c, err
	}
	sink, err := topo.NewSink(prefix, row.Queues)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	stateDir, err := os.MkdirTemp("", prefix+"-")
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stateDir)) }()
	shaped, err := peer.Attach(ctx, shaper.Target{Port: sink.Up, Rate: costFastRate, Diffserv: p.Diffserv, Cakectl: p.Cakectl, StateDir: stateDir})
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, shaped.Close()) }()

	send := func(threads int, dscps ...uint8) (pktgen.Result, error) {
		return sendTwice(ctx, sink, pktgen.Config{
			Device:     topo.SenderDevice,
			Threads:    threads,
			DSCPs:      dscps,
			Flows:      costFlows / len(dscps),
			Packets:    load.Packets / len(dscps),
			Span:       load.Span,
			FrameBytes: costFrame,
		})
	}
	c.free = map[int]float64{}
	for _, threads := range load.Threads {
		free, err := send(threads, bestEffort)
		if err != nil {
			return c, fmt.Errorf("%d threads: %w", threads, err)
		}
		c.free[threads] = perPacket(free)
	}
	if load.Span > 0 {
		return c, nil // nothing else is measured
	}
	tins, err := send(1, cs1, bestEffort, af41, ef)
	if err != nil {
		return c, err
	}
	c.tins, c.waiting = perPacket(tins), c.free[1]
	if peer.Shapes {
		if err := shaped.SetRate(ctx, row.Rate); err != nil {
			return c, err
		}
		waiting, err := send(1, bestEffort)
		if err != nil {
			return c, err
		}
		c.waiting = perPacket(waiting)
		c.refused = float64(waiting.Refused) / float64(waiting.Sent+waiting.Refused)
	}
	if p.Details {
		if row.Details, err = shaped.Details(ctx); err != nil {
			return c, err
		}
	}
	return c, nil
}

// drained is how long queues take to empty after a measure.
const drained = 250 * time.Millisecond

// sendTwice returns the result of the second time: the first warms up.
func sendTwice(ctx context.Context, sink *topo.Pair, config pktgen.Config) (result pktgen.Result, err error) {
	for range 2 {
		err = sink.Sender.Do(func() (err error) {
			result, err = pktgen.Run(ctx, config)
			return err
		})
		if err == nil {
			err = sleep(ctx, drained)
		}
		if err != nil {
			return result, err
		}
	}
	return result, nil
}

func perPacket(r pktgen.Result) float64 {
	return float64(r.Elapsed.Nanoseconds()) / float64(r.Sent+r.Refused)
}

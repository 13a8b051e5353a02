// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	// Packets is how many are sent for each measure, by each thread.
	Packets int
	Threads int
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
	costFastRate rates.Rate = 100e9
	costRate     rates.Rate = 1e9
)

// costs are nanoseconds a packet: with a clock that counts instructions, instructions.
type costs struct {
	// free is for packets that need not wait, waiting for those that do, tins for packets of all tins
	// that need not wait.
	free, waiting, tins float64
	// refused is the share of the waiting that was dropped.
	refused float64
	base    *costs
}

func cost() Experiment {
	measure := func(name string, value func(c costs) float64) Measure {
		return Measure{name, "", func(o *outcome) (float64, error) { return value(o.cost), nil }}
	}
	return Experiment{
		Name:  "cost",
		About: "instructions a packet, in all and above mq+fq: packets that need not wait, those of four tins, packets that wait",
		Rates: []rates.Rate{costRate},
		Cost:  &CostLoad{Packets: 20000, Threads: 1},
		Measures: []Measure{
			measure("free", func(c costs) float64 { return c.free }),
			measure("free above fq", func(c costs) float64 { return c.free - c.base.free }),
			measure("tins above fq", func(c costs) float64 { return c.tins - c.base.tins }),
			measure("waiting", func(c costs) float64 { return c.waiting }),
			measure("waiting above fq", func(c costs) float64 { return c.waiting - c.base.free }),
			{"refused", "%", func(o *outcome) (float64, error) { return 100 * o.cost.refused, nil }},
		},
	}
}

// runCost fills in what packets cost with a row's shaper and with none.
func (p Plan) runCost(ctx context.Context, e Experiment, prefix string, row *Row) error {
	base, err := p.costsOf(ctx, *e.Cost, prefix, costBase, row)
	if err != nil {
		return fmt.Errorf("%s, to compare with: %w", costBase, err)
	}
	own, err := p.costsOf(ctx, *e.Cost, prefix, row.Peer, row)
	if err != nil {
		return err
	}
	own.base = &base
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

	send := func(dscps ...uint8) (pktgen.Result, error) {
		return sendTwice(ctx, sink, pktgen.Config{
			Device:     topo.SenderDevice,
			Threads:    load.Threads,
			DSCPs:      dscps,
			Flows:      costFlows / len(dscps),
			Packets:    load.Packets / len(dscps),
			FrameBytes: costFrame,
		})
	}
	free, err := send(bestEffort)
	if err != nil {
		return c, err
	}
	tins, err := send(cs1, bestEffort, af41, ef)
	if err != nil {
		return c, err
	}
	waiting := free
	if peer.Shapes {
		if err := shaped.SetRate(ctx, row.Rate); err != nil {
			return c, err
		}
		if waiting, err = send(bestEffort); err != nil {
			return c, err
		}
	}
	if p.Details {
		if row.Details, err = shaped.Details(ctx); err != nil {
			return c, err
		}
	}
	c.free, c.tins, c.waiting = perPacket(free), perPacket(tins), perPacket(waiting)
	c.refused = float64(waiting.Refused) / float64(waiting.Sent+waiting.Refused)
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

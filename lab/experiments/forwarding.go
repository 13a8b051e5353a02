// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cakectl/cakectl/lab/pktgen"
	"github.com/cakectl/cakectl/lab/shaper"
	"github.com/cakectl/cakectl/lab/topo"
	"github.com/cakectl/cakectl/pkg/rates"
)

// ForwardingLoad finds out what it costs to forward a packet through the shaper: the kernel's packet
// generator sends to a router as fast as it can, and the router to a receiver that throws everything
// away. As for [CostLoad], time is instructions, and what it takes with mq and fq alone is measured too.
type ForwardingLoad struct {
	Packets int
}

func forwardCost() Experiment {
	return Experiment{
		Name:       "forwardcost",
		About:      "instructions to forward a packet from one device to another, in all and above mq+fq",
		Rates:      []rates.Rate{costFastRate},
		Network:    Routed,
		Forwarding: &ForwardingLoad{Packets: 20000},
		Measures: []Measure{
			{"forwarded", "", least, func(o *outcome) (float64, error) { return o.forwarding.own, nil }},
			{"forwarded above fq", "", least, func(o *outcome) (float64, error) { return o.forwarding.own - o.forwarding.base, nil }},
		},
	}
}

// forwardingCosts are nanoseconds a packet, with a shaper and with mq and fq alone.
type forwardingCosts struct{ own, base float64 }

func (p Plan) runForwarding(ctx context.Context, e Experiment, prefix string, row *Row) error {
	var costs forwardingCosts
	for _, of := range []struct {
		peer string
		cost *float64
	}{{costBase, &costs.base}, {row.Peer, &costs.own}} {
		cost, err := p.forwardingCost(ctx, e, prefix, of.peer, row)
		if err != nil {
			return fmt.Errorf("forward through %s: %w", of.peer, err)
		}
		*of.cost = cost
	}
	return row.measure(e, &outcome{forwarding: costs})
}

func (p Plan) forwardingCost(ctx context.Context, e Experiment, prefix, name string, row *Row) (cost float64, err error) {
	peer, err := shaper.Lookup(name)
	if err != nil {
		return 0, err
	}
	pair, err := e.Network.make(prefix, row.Queues)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, pair.Close()) }()
	stateDir, err := os.MkdirTemp("", prefix+"-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stateDir)) }()
	shaped, err := peer.Attach(ctx, shaper.Target{Port: pair.Up, Rate: row.Rate, Diffserv: p.Diffserv, Cakectl: p.Cakectl, StateDir: stateDir})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, shaped.Close()) }()
	nobody, err := pair.AddNobody()
	if err != nil {
		return 0, err
	}
	router, err := pair.Down.MAC()
	if err != nil {
		return 0, err
	}
	before, err := pair.Up.SentPackets()
	if err != nil {
		return 0, err
	}
	result, err := sendTwice(ctx, pair, pktgen.Config{
		Device:      topo.SenderDevice,
		Threads:     1,
		DSCPs:       []uint8{bestEffort},
		Flows:       costFlows,
		Packets:     e.Forwarding.Packets,
		FrameBytes:  costFrame,
		Destination: nobody,
		Gateway:     router,
	})
	if err != nil {
		return 0, err
	}
	after, err := pair.Up.SentPackets()
	if err != nil {
		return 0, err
	}
	if sent, want := after-before, 2*result.Sent; sent < want {
		return 0, fmt.Errorf("%d of %d packets were forwarded", sent, want)
	}
	return perPacket(result), nil
}

// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"math/bits"
	"time"

	"github.com/cakectl/cakectl/pkg/rates"
)

const (
	// boostPart is the part of a tick that packets of flows that were not sending may overfill it by. One full packet is
	// always allowed.
	boostPart = 4

	// lagTicks is how long a flow may wait past its guarantee and still get that time back. What it waits longer is lost
	// to it, and counts as demand.
	lagTicks = 2

	// lostWeight is the part of a lost guarantee that counts as demand, as a divisor.
	lostWeight = 2

	// epochShift is the length of an epoch of the flow count: 134 ms.
	epochShift = 27

	// epochs is the number of epochs in the ring of flow counts: 17 s.
	epochs = 128
)

// Path is the pacing rule of one device and direction. The zero value is of no use; see [New].
type Path struct {
	bandwidth       rates.Rate
	fullPacketBytes int
	line            calendar
	flows           [epochs]epoch
}

// epoch is the number of flows that count in one epoch.
type epoch struct {
	number int64
	flows  int64
}

// Flow is what the rule keeps of a flow. The zero value is a flow that was never seen.
type Flow struct {
	// GuaranteeNs is the guarantee clock: when the flow's next byte leaves at its guaranteed rate.
	GuaranteeNs int64
	// DepartureNs is the latest departure given. No later packet leaves before it.
	DepartureNs int64
	// countedUntil is the number after the last epoch in which the flow counts.
	countedUntil int64
}

// Packet is one packet, or super-packet, to be sent.
type Packet struct {
	Bytes int64
	// Plan is the controller's guarantee for this packet's flow; 0 where it has none. A flow never has more than an equal
	// part of the bandwidth over all flows that count, so a plan that is late cannot promise too much.
	Plan rates.Rate
	// NotBeforeNs is the packet's own departure time: pacing by the socket, or the clock of a ceiling.
	NotBeforeNs int64
	// HorizonNs is how far from now a departure may lie; packets that would leave later are dropped. At most the
	// [Path.SpanNs].
	HorizonNs int64
}

// New makes the path of a device. fullPacketBytes is the MTU and its link header.
func New(bandwidth rates.Rate, fullPacketBytes int) *Path {
	p := &Path{bandwidth: bandwidth, fullPacketBytes: fullPacketBytes}
	p.line.shift = tickShift(bandwidth, fullPacketBytes)
	p.line.tickBytes = bytesIn(bandwidth, p.line.shift)
	p.line.setFree()
	return p
}

// SetBandwidth changes the bandwidth. No clock and no booking changes with it: packets that have their departure keep
// it, and what they take of the line is known in bytes.
func (p *Path) SetBandwidth(nowNs int64, bandwidth rates.Rate) {
	p.bandwidth = bandwidth
	if shift := tickShift(bandwidth, p.fullPacketBytes); shift != p.line.shift {
		p.line.rebook(nowNs, shift)
	}
	before := p.line.tickBytes
	p.line.tickBytes = bytesIn(bandwidth, p.line.shift)
	p.line.demand = p.line.demand * p.line.tickBytes / before
	p.line.setFree()
}

// SpanNs is how far ahead departures can be booked: the longest horizon that is of use. Behind it the calendar keeps a
// quarter of its ring for what is looked for and repaid, and the flow count two epochs.
func (p *Path) SpanNs() int64 {
	return min(ticks*3/4*p.line.tickNs(), (epochs-2)<<epochShift)
}

// TickNs is the length of a tick in nanoseconds.
func (p *Path) TickNs() int64 { return p.line.tickNs() }

// TickBytes is what a tick carries at the bandwidth.
func (p *Path) TickBytes() int64 { return p.line.tickBytes }

// Flows is the number of flows that count at a time.
func (p *Path) Flows(nowNs int64) int64 { return p.epoch(nowNs >> epochShift).flows }

// booking is where a packet was found a place.
type booking struct {
	tick int64
	// departureNs is when it leaves.
	departureNs int64
	// guaranteeNs is the flow's guarantee clock before this packet is added to it.
	guaranteeNs int64
	// leftover: taken from what guarantees leave; boost: sent at once, whatever is booked.
	leftover, boost bool
	// leftoverNs is the leftover clock after this packet.
	leftoverNs int64
}

// Enqueue gives a packet its departure. It is the whole rule; the package comment explains it. accepted is false for a
// packet that has to be dropped: then nothing has changed. nowNs must not go back.
func (p *Path) Enqueue(nowNs int64, f *Flow, packet Packet) (departureNs int64, accepted bool) {
	p.line.advance(nowNs)
	backlogged := f.GuaranteeNs > nowNs || f.DepartureNs > nowNs

	b := p.find(nowNs, f, packet, backlogged)
	if b.departureNs-nowNs > min(packet.HorizonNs, p.SpanNs()) {
		return 0, false
	}
	costNs := p.guaranteeCostNs(nowNs, f, packet)
	lateNs := max(0, b.departureNs-lagTicks*p.line.tickNs()-max(b.guaranteeNs, packet.NotBeforeNs))

	t := p.line.at(b.tick)
	switch {
	case b.leftover:
		p.line.leftoverNs = b.leftoverNs
	case b.boost:
		t.boosted += packet.Bytes
		t.demand += packet.Bytes
	default:
		lost := lateNs * packet.Bytes / max(1, costNs)
		t.demand += packet.Bytes + min(lost/lostWeight, p.line.tickBytes)
	}
	p.line.book(b.tick, packet.Bytes)

	f.GuaranteeNs = b.guaranteeNs + lateNs + costNs
	f.DepartureNs = b.departureNs
	if backlogged {
		p.count(nowNs, f)
	}
	return b.departureNs, true
}

// find looks for a packet's place and changes nothing.
func (p *Path) find(nowNs int64, f *Flow, packet Packet, backlogged bool) booking {
	line := &p.line
	now := line.tickOf(nowNs)
	full := int64(p.fullPacketBytes)
	earliestNs := max(nowNs, f.DepartureNs, packet.NotBeforeNs)
	b := booking{guaranteeNs: max(f.GuaranteeNs, nowNs), leftoverNs: line.leftoverNs}
	entitled := line.tickOf(max(b.guaranteeNs, earliestNs))

	// A flow that was not sending is not made to wait, within a budget.
	if !backlogged && earliestNs == nowNs && packet.Bytes <= full &&
		line.at(now).boosted+packet.Bytes <= max(line.tickBytes/boostPart, full) {
		b.boost = true
		b.tick = now
		b.departureNs = nowNs
		return b
	}

	// Use it or lose it: room in this tick is nobody's loss.
	if b.tick = line.tickOf(earliestNs); b.tick == now && line.hasRoom(now) {
		b.departureNs = max(line.placeNs(now), earliestNs)
		if b.departureNs < b.guaranteeNs {
			b.leftover = true
			b.guaranteeNs = b.departureNs
		}
		return b
	}

	// Further out, the leftover has a clock of its own, so that room is left for those who will come with a guarantee.
	if fromNs := max(line.leftoverNs, earliestNs); fromNs < min(b.guaranteeNs, nowNs+p.SpanNs()) {
		if b.tick = line.findRoom(line.tickOf(fromNs)); b.tick <= entitled {
			fromNs = max(fromNs, line.startNs(b.tick))
			b.leftover = true
			b.leftoverNs = fromNs + packet.Bytes*line.tickNs()/line.free
			b.guaranteeNs = min(b.guaranteeNs, fromNs)
			b.departureNs = max(line.placeNs(b.tick), earliestNs)
			return b
		}
	}

	// Beyond the ring there is no room to look for, and the packet will be dropped.
	if b.departureNs = line.startNs(entitled); b.departureNs <= nowNs+p.SpanNs() {
		b.tick = line.findRoom(entitled)
		b.departureNs = max(line.placeNs(b.tick), earliestNs)
	}
	return b
}

// guaranteeCostNs is what a packet takes at its flow's guarantee, in nanoseconds: at an equal part of the bandwidth over
// all flows that count, itself among them, or at the plan if that is less.
func (p *Path) guaranteeCostNs(nowNs int64, f *Flow, packet Packet) int64 {
	flows := p.Flows(nowNs)
	if f.countedUntil <= nowNs>>epochShift {
		flows++
	}
	cost := durationNs(packet.Bytes*flows, p.bandwidth)
	if packet.Plan > 0 {
		cost = max(cost, durationNs(packet.Bytes, packet.Plan))
	}
	return cost
}

// durationNs is how long bytes take at a rate.
func durationNs(bytes int64, rate rates.Rate) int64 {
	hi, lo := bits.Mul64(uint64(bytes), 8*uint64(time.Second))
	ns, _ := bits.Div64(hi, lo, uint64(rate))
	return int64(ns)
}

// count counts a flow in every epoch from now to the one after its last departure: one that waits long still counts.
func (p *Path) count(nowNs int64, f *Flow) {
	for n := max(f.countedUntil, nowNs>>epochShift); n <= f.DepartureNs>>epochShift+1; n++ {
		p.epoch(n).flows++
		f.countedUntil = n + 1
	}
}

func (p *Path) epoch(n int64) *epoch {
	e := &p.flows[n%epochs]
	if e.number != n {
		*e = epoch{number: n}
	}
	return e
}

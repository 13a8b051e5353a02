// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"math/bits"
	"slices"
	"time"

	"github.com/cakectl/cakectl/pkg/rates"
)

const (
	// ceilSlackNs is how far a tin's guarantees may run ahead of its ceiling together.
	ceilSlackNs = 10_000_000

	// A tick is 1.05 ms or longer, and has room for tickPackets full packets.
	minTickShift = 20
	tickPackets  = 2

	// forwardPackets is how many packets a forwarded flow may have waiting whatever the horizon.
	forwardPackets = 4

	sojournBuckets = 24
)

// Settings are what can change at any time.
type Settings struct {
	Bandwidth rates.Rate
	// LocalHorizonNs and ForwardHorizonNs are how far ahead a departure may lie; a packet that
	// would leave later is dropped.
	LocalHorizonNs, ForwardHorizonNs int64
	// FullPacketBytes is the MTU with its link header.
	FullPacketBytes int64
	// EpochNs is the unit of time that flows are counted in.
	EpochNs int64
	// EqualFlows: no flow's guarantee may exceed the bandwidth over the flows of its tin.
	EqualFlows bool
	Tins       []TinSettings
}

// TinSettings are the guaranteed rate of a tin and its hard cap, [rates.Unlimited] for none.
type TinSettings struct {
	Rate, Ceil rates.Rate
	// AQMTargetNs and AQMIntervalNs are CoDel's, for forwarded packets; no target is no AQM.
	AQMTargetNs, AQMIntervalNs int64
}

// Path is the data path of one device. See [New].
type Path struct {
	settings Settings
	flowSets uint32
	line     line
	tins     []tin
	// epoch is the present one, epochStartNs when it began.
	epoch, epochStartNs int64
	// flows is the number of active flows of all tins.
	flows  int64
	shards map[cell]*shard
	// cells are the effective rates that the controller planned.
	cells map[cell]pace
	table map[setKey]*flowSet
}

type tin struct {
	ceil clock
	// flows is the number of active flows of the tin over all queues.
	flows    int64
	counters TinCounters
}

type cell struct{ queue, tin int }

type setKey struct {
	cell
	set uint32
}

// TinCounters are totals of a tin. Packets are segments.
type TinCounters struct {
	Packets, Bytes, DelayedPackets, MarkedPackets uint64
	// Drops: beyond the horizon, and by the AQM.
	HorizonDrops, AQMDrops DropCount
	SojournNs              uint64
	// SojournBuckets: bucket i counts packets with a sojourn below 2^i units of 1,024 ns, and not
	// below 2^(i-1).
	SojournBuckets [sojournBuckets]uint64
}

// DropCount counts dropped packets (segments) and bytes.
type DropCount struct {
	Packets, Bytes uint64
}

// Packet is one packet, or super-packet, to be sent.
type Packet struct {
	Queue, Tin int
	// Hash is that of the packet's flow.
	Hash            uint32
	Bytes, Segments int64
	// OwnNs is the packet's own departure time: pacing by its socket, or a receive timestamp. 0 is
	// none.
	OwnNs int64
	// Forwarded packets have no socket that waits for them.
	Forwarded bool
	// ECNCapable packets are marked where others are dropped.
	ECNCapable bool
}

// Verdict is what becomes of a packet.
type Verdict struct {
	Dropped, Marked bool
	DepartureNs     int64
}

// New makes the path of a device with flowsPerShard flows for each (queue, tin), a power of two.
func New(settings Settings, flowsPerShard int) *Path {
	p := &Path{
		flowSets: uint32(flowsPerShard / flowWays),
		line:     line{ticks: map[int64]*tick{}},
		tins:     make([]tin, len(settings.Tins)),
		shards:   map[cell]*shard{},
		cells:    map[cell]pace{},
		table:    map[setKey]*flowSet{},
	}
	p.Configure(0, settings)
	return p
}

// Configure changes the settings. No clock and no booking changes with them: packets that have their
// departure keep it, and what they take of the line is known in bytes.
func (p *Path) Configure(nowNs int64, settings Settings) {
	p.settings = settings
	p.settings.Tins = slices.Clone(settings.Tins)
	if settings.Bandwidth == rates.Unlimited {
		p.line.shift, p.line.tickBytes, p.line.pace = 0, 0, 0
		return
	}
	shift := tickShift(settings.Bandwidth, settings.FullPacketBytes)
	if p.line.shift != 0 && p.line.shift != shift {
		p.line.resize(nowNs, shift)
	}
	p.line.shift = shift
	p.line.tickBytes = bytesIn(settings.Bandwidth, shift)
	p.line.pace = paceOf(settings.Bandwidth)
	// The last quarter of the ring is left to what the search for a free tick adds.
	spanNs := ticksAhead * 3 / 4 * p.line.tickNs()
	p.settings.LocalHorizonNs = min(settings.LocalHorizonNs, spanNs)
	p.settings.ForwardHorizonNs = min(settings.ForwardHorizonNs, spanNs)
}

// tickShift is the length of a tick for a bandwidth, as a power of two of nanoseconds.
func tickShift(bandwidth rates.Rate, fullPacketBytes int64) uint {
	shift := uint(minTickShift)
	for bytesIn(bandwidth, shift) < tickPackets*fullPacketBytes {
		shift++
	}
	return shift
}

// bytesIn is what a bandwidth carries in 2^shift ns.
func bytesIn(bandwidth rates.Rate, shift uint) int64 {
	hi, lo := bits.Mul64(uint64(bandwidth), 1<<shift)
	bytes, _ := bits.Div64(hi, lo, 8*uint64(time.Second))
	return int64(bytes)
}

// SetCell gives a (queue, tin) its effective rate; 0 takes it out of the plan.
func (p *Path) SetCell(queue, tin int, rate rates.Rate) {
	key := cell{queue, tin}
	delete(p.cells, key)
	if rate > 0 && rate != rates.Unlimited {
		p.cells[key] = paceOf(rate)
	}
}

// Counters are the totals of a tin.
func (p *Path) Counters(tin int) TinCounters { return p.tins[tin].counters }

// Enqueue decides about a packet: it is the whole rule, which the package comment explains. nowNs
// must not go back.
func (p *Path) Enqueue(nowNs int64, packet Packet) Verdict {
	key := cell{packet.Queue, packet.Tin}
	tin, tinSettings := &p.tins[packet.Tin], p.settings.Tins[packet.Tin]
	shard := p.shard(key)
	p.rollEpoch(nowNs)
	p.addFlows(tin, shard.roll(p.epoch))
	f := p.flow(key, packet.Hash, nowNs)
	backlogged := f.guaranteeNs > nowNs || f.departureNs > nowNs

	b := booking{
		nowNs:              nowNs,
		bytes:              packet.Bytes,
		fullPacketBytes:    p.settings.FullPacketBytes,
		guaranteeNs:        max(f.guaranteeNs, nowNs, int64(tin.ceil)-ceilSlackNs),
		guaranteeCostNs:    p.flowCostNs(f, shard, key, packet.Bytes),
		earliestNs:         max(f.departureNs, nowNs),
		leftoverEarliestNs: int64(tin.ceil),
		waits:              backlogged || int64(tin.ceil) > nowNs+ceilSlackNs,
		alone:              tin.flows >= p.flows,
	}
	if f.departureNs > nowNs && f.guaranteeNs < nowNs {
		b.passedNs = nowNs - f.guaranteeNs
	}
	b.departureNs = max(b.earliestNs, int64(tin.ceil))
	limited := p.settings.Bandwidth != rates.Unlimited
	if limited {
		p.line.find(&b)
	}

	// A packet's own pacing is kept; a time further ahead than anything waits is no pacing but a
	// receive timestamp of another clock.
	pacedNs := nowNs
	if packet.OwnNs > nowNs && packet.OwnNs-nowNs < p.settings.LocalHorizonNs {
		pacedNs = packet.OwnNs
	}
	departureNs := max(b.departureNs, pacedNs)
	verdict, drops := p.judge(f, tin, tinSettings, packet, &b, departureNs)

	if f.counts(p.epoch, backlogged, packet.Bytes, p.settings.FullPacketBytes) {
		untilNs := departureNs
		if verdict.Dropped {
			untilNs = nowNs
		}
		if shard.count(f, untilNs, p.epochStartNs, p.settings.EpochNs) {
			tin.flows++
			p.flows++
		}
		shard.note(untilNs)
	}
	if verdict.Dropped {
		drops.Packets += uint64(packet.Segments)
		drops.Bytes += uint64(packet.Bytes)
		return verdict
	}
	if verdict.Marked {
		tin.counters.MarkedPackets += uint64(packet.Segments)
	}

	b.lateNs = p.line.lateNs(&b, pacedNs)
	if limited {
		p.line.take(&b)
	}
	if ceilCostNs := paceOf(tinSettings.Ceil).costNs(packet.Bytes); ceilCostNs > 0 {
		tin.ceil.take(nowNs, ceilCostNs)
	}
	// The guarantee goes on from where it stood; what was missed is made up for by the demand, not
	// by a burst.
	f.guaranteeNs = b.guaranteeNs + b.lateNs + b.guaranteeCostNs
	f.departureNs = departureNs
	tin.counters.add(packet, departureNs-nowNs)
	return verdict
}

// judge says what becomes of a packet that was found a departure, and where a drop is counted. A
// packet that finds nothing of its flow waiting is never signalled, nor is a wait of less than one
// and a half packets at the flow's own guarantee.
func (p *Path) judge(f *flow, t *tin, settings TinSettings, packet Packet, b *booking, departureNs int64) (Verdict, *DropCount) {
	sojournNs := departureNs - b.nowNs
	sent := Verdict{DepartureNs: departureNs}
	if sojournNs > p.horizonNs(packet, b) {
		return Verdict{Dropped: true}, &t.counters.HorizonDrops
	}
	if !packet.Forwarded || settings.AQMTargetNs == 0 {
		return sent, nil
	}
	var waitingNs int64
	if f.departureNs > b.nowNs {
		waitingNs = sojournNs
	}
	targetNs := max(settings.AQMTargetNs, b.guaranteeCostNs+b.guaranteeCostNs/2)
	if !f.aqm.signals(b.nowNs, waitingNs, targetNs, settings.AQMIntervalNs) {
		return sent, nil
	}
	if packet.ECNCapable {
		sent.Marked = true
		return sent, nil
	}
	return Verdict{Dropped: true}, &t.counters.AQMDrops
}

// horizonNs is the longest that a packet may wait. A forwarded flow may always have some packets
// waiting, or no TCP would get going at a low rate.
func (p *Path) horizonNs(packet Packet, b *booking) int64 {
	if !packet.Forwarded {
		return p.settings.LocalHorizonNs
	}
	packetCostNs := b.guaranteeCostNs
	if packet.Bytes > p.settings.FullPacketBytes {
		packetCostNs = packetCostNs / packet.Bytes * p.settings.FullPacketBytes
	}
	return min(max(p.settings.ForwardHorizonNs, forwardPackets*packetCostNs), p.settings.LocalHorizonNs)
}

func (c *TinCounters) add(packet Packet, sojournNs int64) {
	segments := uint64(packet.Segments)
	c.Packets += segments
	c.Bytes += uint64(packet.Bytes)
	c.SojournNs += uint64(sojournNs) * segments
	if sojournNs > 0 {
		c.DelayedPackets += segments
	}
	bucket := bits.Len64(uint64(sojournNs) >> 10)
	c.SojournBuckets[min(bucket, sojournBuckets-1)] += segments
}

// flowCostNs is what bytes take at a flow's guarantee: an equal part of what its shard or, where the
// plan does not have that, its tin is given. A flow that is not counted yet counts itself in.
func (p *Path) flowCostNs(f *flow, s *shard, key cell, bytes int64) int64 {
	var itself int64
	if !f.isCounted(s.epoch) {
		itself = 1
	}
	tinFlows := max(p.tins[key.tin].flows+itself, 1)
	planned, ok := p.cells[key]
	if !ok {
		return paceOf(p.settings.Tins[key.tin].Rate).costNs(bytes) * tinFlows
	}
	costNs := planned.costNs(bytes) * max(s.flows+itself, 1)
	if p.settings.EqualFlows {
		costNs = max(costNs, paceOf(p.settings.Bandwidth).costNs(bytes)*tinFlows)
	}
	return costNs
}

func (p *Path) addFlows(t *tin, flows int64) {
	t.flows += flows
	p.flows += flows
}

func (p *Path) shard(key cell) *shard {
	if p.shards[key] == nil {
		p.shards[key] = &shard{ends: map[int64]int64{}}
	}
	return p.shards[key]
}

func (p *Path) flow(key cell, hash uint32, nowNs int64) *flow {
	var sets [2]*flowSet
	for i, set := range setsOf(hash, p.flowSets) {
		at := setKey{key, set}
		if p.table[at] == nil {
			p.table[at] = &flowSet{}
		}
		sets[i] = p.table[at]
	}
	return findFlow(sets, hash, p.epoch, nowNs)
}

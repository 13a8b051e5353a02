// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"slices"

	"github.com/cakectl/cakectl/pkg/rates"
)

// A simulator of senders, one shaped device and what leaves it. Everything in it happens in virtual time and is the same
// in every run. It models what decides about pacing and leaves out the rest: packets are never lost behind the device.

const (
	microsecond int64 = 1_000
	millisecond int64 = 1_000_000
	second      int64 = 1_000_000_000

	fullPacket = 1514
	segment    = 1448
)

type event struct {
	atNs int64
	// order keeps events of the same time in the order in which they were made.
	order int
	do    func()
}

type events []event

func (e events) Len() int      { return len(e) }
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e events) Less(i, j int) bool {
	if e[i].atNs != e[j].atNs {
		return e[i].atNs < e[j].atNs
	}
	return e[i].order < e[j].order
}
func (e *events) Push(x any) { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// departure is a packet that left the device.
type departure struct {
	atNs  int64
	flow  int
	bytes int64
}

type rateChange struct {
	atNs int64
	rate rates.Rate
}

type sim struct {
	nowNs    int64
	pending  events
	made     int
	random   *rand.Rand
	device   device
	left     []departure
	reorders int
	changes  []rateChange
}

// device is a shaper. send reports whether it took the packet; gone is called when the packet has left.
type device interface {
	send(p *simPacket) bool
	setRate(rate rates.Rate)
}

type simPacket struct {
	flow     int
	tin      int
	bytes    int64
	segments int64
	// forwarded packets have no socket that waits for them.
	forwarded bool
	gone      func()
}

func newSim(rate rates.Rate, makeDevice func(*sim, rates.Rate) device) *sim {
	s := &sim{random: rand.New(rand.NewPCG(1, 2)), changes: []rateChange{{0, rate}}}
	s.device = makeDevice(s, rate)
	return s
}

func (s *sim) at(atNs int64, do func()) {
	s.made++
	heap.Push(&s.pending, event{max(atNs, s.nowNs), s.made, do})
}

func (s *sim) run(untilNs int64) {
	for len(s.pending) > 0 && s.pending[0].atNs <= untilNs {
		e := heap.Pop(&s.pending).(event)
		s.nowNs = e.atNs
		e.do()
	}
	s.nowNs = untilNs
}

func (s *sim) setRate(atNs int64, rate rates.Rate) {
	s.changes = append(s.changes, rateChange{atNs, rate})
	s.at(atNs, func() { s.device.setRate(rate) })
}

func (s *sim) rate() rates.Rate { return s.rateAt(s.nowNs) }

func (s *sim) rateAt(ns int64) rates.Rate {
	rate := s.changes[0].rate
	for _, change := range s.changes {
		if change.atNs <= ns {
			rate = change.rate
		}
	}
	return rate
}

// pathDevice is a device shaped by the rule: the rule decides when a packet leaves, and it leaves then.
type pathDevice struct {
	sim    *sim
	path   *Path
	queues int
	// tins are those of a device that has more than one; its rate does not change.
	tins []rates.TinConfig
	// last is the latest departure of each flow.
	last map[int]int64
	// active is what the controller was told last, and granted what it planned from that.
	active  []rates.Cell
	granted []rates.Grant
	// The controller plans lagNs after it was told, unless it is dead. replan: it is about to.
	lagNs        int64
	dead, replan bool
	sweeping     bool
}

const simFlows = 1024

func newPathDevice(s *sim, rate rates.Rate, queues int, lagNs int64) *pathDevice {
	return &pathDevice{
		sim: s, path: New(settingsFor(rate), simFlows), queues: queues, last: map[int]int64{}, lagNs: lagNs,
	}
}

// settingsFor are those of a device with one tin, as the control plane makes them.
func settingsFor(rate rates.Rate) Settings {
	packetNs := durationNs(fullPacket, rate)
	return Settings{
		Bandwidth:        rate,
		LocalHorizonNs:   60 * second,
		ForwardHorizonNs: max(100*millisecond, 20*packetNs),
		FullPacketBytes:  fullPacket,
		EpochNs:          min(max(32*packetNs, 4*millisecond), 128*millisecond),
		EqualFlows:       true,
		Tins: []TinSettings{{
			Rate: rate, Ceil: rates.Unlimited,
			AQMTargetNs: max(5*millisecond, packetNs*3/2), AQMIntervalNs: max(100*millisecond, packetNs*3),
		}},
	}
}

// durationNs is how long bytes take at a rate.
func durationNs(bytes int64, rate rates.Rate) int64 {
	return int64(float64(bytes) * 8e9 / float64(rate))
}

func hashOf(flow int) uint32 { return uint32(flow+1) * 2654435761 }

func (d *pathDevice) send(p *simPacket) bool {
	hash := hashOf(p.flow)
	verdict := d.path.Enqueue(d.sim.nowNs, Packet{
		Queue: int(uint64(hash) * uint64(d.queues) >> 32), Tin: p.tin, Hash: hash,
		Bytes: p.bytes, Segments: p.segments, Forwarded: p.forwarded,
	})
	d.tell()
	if verdict.Dropped {
		return false
	}
	if verdict.DepartureNs < d.last[p.flow] {
		d.sim.reorders++
	}
	d.last[p.flow] = verdict.DepartureNs
	d.sim.at(verdict.DepartureNs, func() {
		d.sim.left = append(d.sim.left, departure{d.sim.nowNs, p.flow, p.bytes})
		p.gone()
	})
	return true
}

func (d *pathDevice) setRate(rate rates.Rate) {
	d.path.Configure(d.sim.nowNs, settingsFor(rate))
	d.plan()
}

// tell tells the controller when what is active has changed, and keeps the sweep going.
func (d *pathDevice) tell() {
	active := d.path.Active()
	slices.SortFunc(active, func(a, b rates.Cell) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Tin, b.Tin))
	})
	if len(active) > 0 && !d.sweeping {
		d.sweeping = true
		d.sim.at(d.sim.nowNs+holdEpochs*d.path.settings.EpochNs, func() {
			d.sweeping = false
			d.path.Sweep(d.sim.nowNs)
			d.tell()
		})
	}
	if slices.Equal(active, d.active) {
		return
	}
	d.active = active
	d.plan()
}

func (d *pathDevice) plan() {
	if d.dead || d.replan {
		return
	}
	d.replan = true
	d.sim.at(d.sim.nowNs+d.lagNs, func() {
		d.replan = false
		for _, g := range d.granted {
			d.path.SetCell(g.Queue, g.Tin, 0)
		}
		rate, tins := d.path.settings.Bandwidth, d.tins
		if tins == nil {
			tins = []rates.TinConfig{{Rate: rate, Ceil: rates.Unlimited}}
		}
		d.granted = rates.Plan(rates.Config{Bandwidth: rate, Split: rates.SplitFlows, Tins: tins}, d.active)
		for _, g := range d.granted {
			d.path.SetCell(g.Queue, g.Tin, g.Rate)
		}
	})
}

// drrDevice is what CAKE does, as far as it matters here: it splits super-packets, queues them by flow, and sends the
// queues' packets by deficit round robin, flows that were not waiting first.
type drrDevice struct {
	sim     *sim
	rate    rates.Rate
	queues  map[int]*drrQueue
	fresh   []*drrQueue
	waiting []*drrQueue
	busy    bool
}

type drrQueue struct {
	flow     int
	segments []drrSegment
	bytes    int64
	deficit  int64
	listed   bool
}

type drrSegment struct {
	bytes int64
	gone  func()
}

func newDRRDevice(s *sim, rate rates.Rate) *drrDevice {
	return &drrDevice{sim: s, rate: rate, queues: map[int]*drrQueue{}}
}

func (d *drrDevice) setRate(rate rates.Rate) { d.rate = rate }

func (d *drrDevice) send(p *simPacket) bool {
	queue := d.queues[p.flow]
	if queue == nil {
		queue = &drrQueue{flow: p.flow}
		d.queues[p.flow] = queue
	}
	if p.forwarded && queue.bytes > 30*fullPacket {
		return false
	}
	for i := range p.segments {
		part := drrSegment{bytes: p.bytes / p.segments, gone: func() {}}
		if i == p.segments-1 {
			part.gone = p.gone
		}
		queue.segments = append(queue.segments, part)
		queue.bytes += part.bytes
	}
	if !queue.listed {
		queue.listed = true
		queue.deficit = fullPacket
		d.fresh = append(d.fresh, queue)
	}
	if !d.busy {
		d.next()
	}
	return true
}

func (d *drrDevice) next() {
	d.busy = false
	for len(d.fresh)+len(d.waiting) > 0 {
		list, isFresh := &d.waiting, false
		if len(d.fresh) > 0 {
			list, isFresh = &d.fresh, true
		}
		queue := (*list)[0]
		if queue.deficit > 0 && len(queue.segments) > 0 {
			d.transmit(queue)
			return
		}
		*list = (*list)[1:]
		if queue.deficit <= 0 {
			queue.deficit += fullPacket
			d.waiting = append(d.waiting, queue)
		} else if isFresh {
			d.waiting = append(d.waiting, queue)
		} else {
			queue.listed = false
		}
	}
}

func (d *drrDevice) transmit(queue *drrQueue) {
	part := queue.segments[0]
	queue.segments = queue.segments[1:]
	queue.bytes -= part.bytes
	queue.deficit -= part.bytes
	d.busy = true
	d.sim.left = append(d.sim.left, departure{d.sim.nowNs, queue.flow, part.bytes})
	part.gone()
	d.sim.at(d.sim.nowNs+durationNs(part.bytes, d.rate), d.next)
}

// sender is anything that sends, with how long its packets waited.
type sender struct {
	flow    int
	waitsNs []int64
	sent    int
	dropped int
}

// tcpSender sends as the network lets it: its window doubles every round trip while it is used, and the small queue
// limit keeps two super-packets in the device.
type tcpSender struct {
	sender
	sim      *sim
	rttNs    int64
	stopNs   int64
	segments func(rates.Rate) int64
	tin      int
	// forwarded: another machine sends it, and super-packets are what its bursts are merged into.
	forwarded bool
	// remaining is what is left to send, in bytes.
	remaining int64

	window   float64 // segments
	inFlight int64   // bytes that were not acknowledged
	most     int64   // the most of them lately
	inDevice int64
	smoothNs float64
}

const endless = int64(1) << 50

// gsoSegments is the largest super-packet in segments: 0.25 ms of the rate, never less than 2 full packets.
func gsoSegments(rate rates.Rate) int64 {
	return min(max(2, int64(rate)/32_000/fullPacket), wholeSegments)
}

// wholeSegments is a super-packet that nothing limits.
const wholeSegments = 43

func oneSegment(rates.Rate) int64 { return 1 }

func (s *sim) addTCP(flow int, startNs, stopNs, rttNs int64, segments func(rates.Rate) int64, bytes int64) *tcpSender {
	t := &tcpSender{
		sender: sender{flow: flow}, sim: s, rttNs: rttNs, stopNs: stopNs, segments: segments, remaining: bytes,
		window: 10, smoothNs: float64(rttNs) + 1e5,
	}
	s.at(startNs, func() { // the handshake
		s.device.send(&simPacket{flow: flow, bytes: 74, segments: 1, gone: func() {
			s.at(s.nowNs+rttNs, t.send)
		}})
	})
	return t
}

func (t *tcpSender) send() {
	for t.sim.nowNs < t.stopNs && t.remaining > 0 {
		room := int64(t.window) - (t.inFlight+segment-1)/segment
		pacing := 2 * t.window * segment / t.smoothNs * 1e6 / segment // segments a millisecond
		size := min(max(2, int64(pacing)), t.segments(t.sim.rate()))
		if t.forwarded {
			size = t.segments(t.sim.rate())
		}
		if room <= 0 || !t.forwarded && t.inDevice > 0 && t.inDevice >= max(2*size, int64(pacing), 4) {
			return
		}
		size = min(size, room, (t.remaining+segment-1)/segment)
		if !t.sendOne(size) {
			return
		}
	}
}

func (t *tcpSender) sendOne(segments int64) bool {
	sentNs := t.sim.nowNs
	t.inFlight += segments * segment
	t.most = max(t.most, t.inFlight)
	t.inDevice += segments
	t.remaining -= segments * segment
	t.sent++
	accepted := t.sim.device.send(&simPacket{flow: t.flow, tin: t.tin, forwarded: t.forwarded, bytes: segments * fullPacket, segments: segments, gone: func() {
		waitedNs := t.sim.nowNs - sentNs
		t.waitsNs = append(t.waitsNs, waitedNs)
		t.inDevice -= segments
		t.sim.at(t.sim.nowNs+t.rttNs, func() { t.acknowledged(segments, waitedNs) })
		t.sim.at(t.sim.nowNs+2*microsecond, t.send)
	}})
	if !accepted {
		t.dropped++
		t.inFlight -= segments * segment
		t.inDevice -= segments
		t.remaining += segments * segment
		t.window = max(2, t.window/2)
		t.sim.at(t.sim.nowNs+t.rttNs, t.send)
	}
	return accepted
}

func (t *tcpSender) acknowledged(segments, waitedNs int64) {
	used := t.window < 2*float64(t.most)/segment
	t.inFlight -= segments * segment
	if used && t.window < 4000 {
		t.window += float64(segments)
	}
	t.most = max(t.most-t.most/64, t.inFlight)
	t.smoothNs += (float64(waitedNs+t.rttNs) - t.smoothNs) / 8
	t.send()
}

// udpSender sends datagrams at a rate through a socket with the default buffer: 92 full packets. It blocks when that is
// full, until half of it is free.
type udpSender struct {
	sender
	sim      *sim
	stopNs   int64
	gapNs    int64
	nextNs   int64
	inDevice int
	blocked  bool
}

const (
	udpBytes  = 1442
	udpBuffer = 92
)

func (s *sim) addUDP(flow int, startNs, stopNs int64, rate rates.Rate) *udpSender {
	u := &udpSender{
		sender: sender{flow: flow}, sim: s, stopNs: stopNs, gapNs: durationNs(udpBytes, rate), nextNs: startNs,
	}
	s.at(startNs, u.send)
	return u
}

func (u *udpSender) send() {
	if u.sim.nowNs >= u.stopNs {
		return
	}
	if u.inDevice >= udpBuffer {
		u.blocked = true
		return
	}
	sentNs := u.sim.nowNs
	u.inDevice++
	u.sent++
	if !u.sim.device.send(&simPacket{flow: u.flow, bytes: udpBytes, segments: 1, gone: func() {
		u.inDevice--
		u.waitsNs = append(u.waitsNs, u.sim.nowNs-sentNs)
		if u.blocked && u.inDevice < udpBuffer/2 {
			u.blocked = false
			u.sim.at(u.sim.nowNs+5*microsecond, u.send)
		}
	}}) {
		u.inDevice--
		u.dropped++
	}
	u.nextNs = max(u.nextNs+u.gapNs, u.sim.nowNs-10*millisecond)
	u.sim.at(max(u.nextNs, u.sim.nowNs+5*microsecond), u.send)
}

// pacedSender sends datagrams at even distances, give or take jitter, whatever becomes of them.
type pacedSender struct {
	sender
	sim       *sim
	gapNs     int64
	jitter    float64
	bytes     int64
	forwarded bool
}

func (s *sim) addPaced(flow int, startNs, gapNs int64, jitter float64, bytes int64, forwarded bool) *pacedSender {
	p := &pacedSender{
		sender: sender{flow: flow}, sim: s, gapNs: gapNs, jitter: jitter, bytes: bytes, forwarded: forwarded,
	}
	s.at(startNs, p.send)
	return p
}

func (p *pacedSender) send() {
	sentNs := p.sim.nowNs
	p.sent++
	if !p.sim.device.send(&simPacket{flow: p.flow, bytes: p.bytes, segments: 1, forwarded: p.forwarded, gone: func() {
		p.waitsNs = append(p.waitsNs, p.sim.nowNs-sentNs)
	}}) {
		p.dropped++
	}
	gap := float64(p.gapNs) * (1 + p.jitter*(2*p.sim.random.Float64()-1))
	p.sim.at(p.sim.nowNs+int64(gap), p.send)
}

const pingFlow = 900

func (s *sim) addPing() *pacedSender {
	return s.addPaced(pingFlow, 3*millisecond, 10*millisecond, 0.05, 98, false)
}

// Measures.

// windows is what left in windows of a length, as parts of what the rate carries in them: the most and the 99th
// percentile of all windows that begin at a multiple of 0.5 ms in [fromNs, toNs-length].
func (s *sim) windows(lengthNs, fromNs, toNs int64) (most, p99 float64) {
	const bin = millisecond / 2
	bits := make([]float64, toNs/bin)
	carried := make([]float64, toNs/bin)
	for _, d := range s.left {
		if d.atNs < toNs {
			bits[d.atNs/bin] += float64(d.bytes) * 8
		}
	}
	for i := range carried {
		carried[i] = float64(s.rateAt(int64(i)*bin)) * float64(bin) / float64(second)
	}
	var parts []float64
	for first := fromNs / bin; first+lengthNs/bin <= toNs/bin; first++ {
		sent, could := 0.0, 0.0
		for i := first; i < first+lengthNs/bin; i++ {
			sent += bits[i]
			could += carried[i]
		}
		parts = append(parts, sent/could)
	}
	slices.Sort(parts)
	return parts[len(parts)-1], parts[len(parts)*99/100]
}

// total is what left from one time to another as a part of what the rate carries.
func (s *sim) total(fromNs, toNs int64) float64 {
	sent, could := 0.0, 0.0
	for _, bytes := range s.bytes(fromNs, toNs) {
		sent += float64(bytes) * 8
	}
	for ns := fromNs; ns < toNs; ns += millisecond {
		could += float64(s.rateAt(ns)) / 1000
	}
	return sent / could
}

// bytes is what left of each flow.
func (s *sim) bytes(fromNs, toNs int64) map[int]int64 {
	sent := map[int]int64{}
	for _, d := range s.left {
		if d.atNs >= fromNs && d.atNs < toNs {
			sent[d.flow] += d.bytes
		}
	}
	return sent
}

// share is the least that one of flows [first, first+n) had of an n-th of what all flows [0, all) should have of the
// rate, and the most.
func (s *sim) share(fromNs, toNs int64, first, n, all int) (least, most float64) {
	sent := s.bytes(fromNs, toNs)
	fair := float64(s.rateAt(fromNs)) / 8 * float64(toNs-fromNs) / float64(second) / float64(all)
	least = float64(sent[first]) / fair
	for flow := first; flow < first+n; flow++ {
		least = min(least, float64(sent[flow])/fair)
		most = max(most, float64(sent[flow])/fair)
	}
	return least, most
}

// jain is Jain's index of fairness over flows [0, n): 1 when all had the same.
func (s *sim) jain(fromNs, toNs int64, n int) float64 {
	sent := s.bytes(fromNs, toNs)
	sum, squares := 0.0, 0.0
	for flow := range n {
		x := float64(sent[flow])
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(n) * squares)
}

// percentile is the p-th part of waits, in milliseconds.
func (s *sender) percentileMs(p float64) float64 {
	waits := slices.Sorted(slices.Values(s.waitsNs))
	if len(waits) == 0 {
		return 0
	}
	return float64(waits[min(int(p*float64(len(waits))), len(waits)-1)]) / float64(millisecond)
}

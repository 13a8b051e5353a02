// SPDX-License-Identifier: BSD-2-Clause

package model

import "maps"

const (
	// ticksAhead is how many ticks the data path's ring holds. What lies further ahead than that
	// cannot be booked.
	ticksAhead = 4096

	// nearProbes ticks are looked at first, then hintProbes from the hint, then freeProbes from
	// the later of both, and farProbes behind lumps. What is not found within them is booked in the
	// last one.
	nearProbes = 2
	hintProbes = 4
	freeProbes = 4
	farProbes  = 64

	// repayTicks is how many ticks one packet asks to repay what is overfilled.
	repayTicks = 32

	// closeTicks is how many ticks are closed at once. After a longer silence those before count
	// for nothing.
	closeTicks = 16

	// demandShift smooths demand: a tick counts for 1/64. One that says less than the mean, and
	// of which more than a quarter stayed idle, counts for 1/8: flows have stopped.
	demandShift     = 6
	demandIdleShift = 3
	idlePart        = 4

	// demandTicks bounds what one tick may say about demand.
	demandTicks = 4

	// leftoverIdlePart: a tick of which more than this part stays idle makes the leftover clock stop
	// waiting.
	leftoverIdlePart = 32

	// idleMemoryTicks is for how long that shows.
	idleMemoryTicks = 16

	// idleWeight is how much less demand an idle byte stands for.
	idleWeight = 2

	// leftoverFloor is the part of the line that leftover bookings may always have, and boostPart
	// that of a tick which goes to packets that do not wait.
	leftoverFloor = 128
	boostPart     = 4

	// nearPackets: with no more than so many in this tick and the next, the line is about to idle.
	nearPackets = 2

	// smallPart: a packet below this part of a full one may be boosted beside any other.
	smallPart = 4

	// A lump is a packet of more than lumpPackets full ones, and of more than a lumpPart of a tick.
	lumpPackets = 2
	lumpPart    = 4

	// dueTicks: what a guarantee overfills for being due is repaid within so many ticks.
	dueTicks = 128

	// lagTicks is by how much a departure may miss its guarantee before that counts as lost.
	lagTicks = 2

	// shallowPackets and shallowTicks are how far ahead a flow may have booked, in packets at its
	// guarantee or in ticks, to be shallow.
	shallowPackets = 2
	shallowTicks   = 2
)

// tick is what is booked to leave in 2^shift ns, in bytes.
type tick struct {
	// booked is all of it: packets that start in this tick, what earlier ticks were overfilled by,
	// and time that passed unused.
	booked int64
	// entitled is what flows took by their guarantee, and half of what they missed of it.
	entitled int64
	// lost is what time passed over before anybody booked it.
	lost int64
}

// line is the calendar of the line, and what past ticks tell of those to come. Bytes everywhere, so
// that a change of the bandwidth leaves everything where it is.
type line struct {
	// A tick is 2^shift ns and carries tickBytes at the bandwidth, whose pace is pace.
	shift     uint
	tickBytes int64
	pace      pace

	// ticks are those in which something is booked, by number; the past ones are forgotten.
	ticks map[int64]*tick
	// current is the tick of the latest packet.
	current int64
	// idleTick is the last tick that idled in part.
	idleTick int64
	// freeHint: no tick before it has room.
	freeHint int64
	// madeShift and madeBytes are the tick that the estimates are made for.
	madeShift uint
	madeBytes int64
	// demand is what flows take of a tick by their guarantees, smoothed.
	demand int64
	// leftoverNs is when all bytes booked from the leftover would have left at the rate that the
	// guarantees leave, and leftoverNsPerByteQ8 is that rate.
	leftoverNs, leftoverNsPerByteQ8 int64
	// boostNs is when all that left at once would have left at a boostPart of the line.
	boostNs int64
	// lumpEnd is the end of what the furthest lump has filled.
	lumpEnd int64
	// debt is what overfills ticks and no later tick has repaid.
	debt int64
}

// bookedAs is the reason why a packet may leave when it does.
type bookedAs int

const (
	byGuarantee bookedAs = iota
	fromLeftover
	asBoost
)

// booking is one packet's way through the calendar: what is asked, and what is found.
type booking struct {
	nowNs int64
	bytes int64
	// fullPacketBytes is the size of the largest packet that may be a boost.
	fullPacketBytes int64
	// guaranteeNs is when the flow's guarantee lets the packet leave. A booking from the leftover
	// moves it.
	guaranteeNs int64
	// passedNs is how much of the guarantee time has passed over while the flow had packets waiting.
	passedNs int64
	// guaranteeCostNs is what the packet takes at its flow's guarantee.
	guaranteeCostNs int64
	// earliestNs is the flow's last departure, or now; leftoverEarliestNs holds, beside it, what
	// is no guarantee.
	earliestNs, leftoverEarliestNs int64
	// waits: the flow has packets waiting or is ahead of its guarantee, or the tin is ahead of its
	// ceiling. Such a packet is no boost.
	waits bool
	// alone: no other tin has active flows.
	alone bool

	tick        int64
	departureNs int64
	as          bookedAs
	// leftoverNs is the leftover clock after this packet; 0 leaves it where it is.
	leftoverNs int64
	// gainedNs is by how much a booking from the leftover moved the guarantee.
	gainedNs int64
	// lateNs is how much of the flow's guarantee the packet misses.
	lateNs int64
}

func (l *line) tickOf(ns int64) int64  { return ns >> l.shift }
func (l *line) startNs(n int64) int64  { return n << l.shift }
func (l *line) tickNs() int64          { return 1 << l.shift }
func (l *line) hasRoom(n int64) bool   { return l.at(n).booked < l.tickBytes }
func (l *line) overfill(n int64) int64 { return max(0, l.at(n).booked-l.tickBytes) }

// at is what is known of a tick.
func (l *line) at(n int64) tick {
	if t := l.ticks[n]; t != nil {
		return *t
	}
	return tick{}
}

// book is a tick that something is to be booked in.
func (l *line) book(n int64) *tick {
	if l.ticks[n] == nil {
		l.ticks[n] = &tick{}
	}
	return l.ticks[n]
}

// goneBytes is what time has passed of the present tick.
func (l *line) goneBytes(nowNs int64) int64 {
	return (nowNs - l.startNs(l.tickOf(nowNs))) * l.tickBytes >> l.shift
}

// smoothed moves a mean to a sample by 2^-shift of the difference, and by 1 where that is nothing.
func smoothed(mean, sample int64, shift int) int64 {
	difference := sample - mean
	switch {
	case difference > 0 && difference < 1<<shift:
		return mean + 1
	case difference < 0 && -difference < 1<<shift:
		return mean - 1
	}
	return mean + difference>>shift
}

// roll closes the ticks before now.
func (l *line) roll(nowNs int64) {
	now := l.tickOf(nowNs)
	if now == l.current && l.shift == l.madeShift {
		return
	}
	passed := min(now-l.current, closeTicks)
	l.current = now
	// A change of the rate changes what a tick carries, or how long it is and so its number.
	if l.madeBytes != 0 {
		l.demand = l.demand * l.tickBytes / l.madeBytes
	}
	if l.madeShift != l.shift {
		l.freeHint, l.lumpEnd = now, now
		passed = 0
	}
	l.madeShift, l.madeBytes = l.shift, l.tickBytes

	for n := now - passed; n < now; n++ {
		l.close(n)
	}
	maps.DeleteFunc(l.ticks, func(n int64, _ *tick) bool { return n < now })

	floor := l.tickBytes/leftoverFloor + 1
	free := l.tickBytes - l.demand
	if free <= floor {
		free = floor
	}
	l.leftoverNsPerByteQ8 = l.tickNs() << 8 / free

	if l.freeHint < now || l.freeHint >= now+ticksAhead {
		l.freeHint = now
	}
	if l.lumpEnd < now || l.lumpEnd >= now+ticksAhead {
		l.lumpEnd = now
	}
}

// close learns from a tick that is over.
func (l *line) close(n int64) {
	t := l.at(n)
	idle := max(0, l.tickBytes-t.booked)
	demand := max(0, min(t.entitled, demandTicks*l.tickBytes)-idleWeight*idle)
	idle += t.lost

	// The line has idled: what waits for the leftover need not wait longer.
	if idle > l.tickBytes/leftoverIdlePart {
		l.leftoverNs = min(l.leftoverNs, l.startNs(n+1))
		l.idleTick = n
	}
	// While much of the line idles, less demand than before is believed sooner.
	shift := demandShift
	if demand < l.demand && idle > l.tickBytes/idlePart {
		shift = demandIdleShift
	}
	l.demand = smoothed(l.demand, demand, shift)
}

// findRoom is the first tick with room at or after n, as far as the probes go: the last one may be
// full.
func (l *line) findRoom(n int64) int64 {
	for range nearProbes {
		if l.hasRoom(n) {
			return n
		}
		n++
	}
	for range hintProbes {
		if l.hasRoom(l.freeHint) {
			break
		}
		l.freeHint++
	}
	n = max(n, l.freeHint)
	for range freeProbes + farProbes {
		if l.hasRoom(n) {
			break
		}
		n++
	}
	return n
}

// repay adds what overfills tick n-1 to the debt, and takes the debt from the ticks from n on that
// have room. The hint follows over those that are full now: a super-packet may fill more than one
// search looks over. Returns the tick after the last one that was asked.
func (l *line) repay(n, overfill int64) int64 {
	if l.debt += overfill; l.debt == 0 {
		return n
	}
	if l.freeHint == n-1 && !l.hasRoom(n-1) {
		l.freeHint = n
	}
	end := n + repayTicks
	for ; n < end && l.debt > 0; n++ {
		if room := min(l.debt, l.tickBytes-l.at(n).booked); room > 0 {
			l.book(n).booked += room
			l.debt -= room
		}
		if l.freeHint == n && !l.hasRoom(n) {
			l.freeHint = n + 1
		}
	}
	return n
}

// placeNs is when a packet leaves that is booked in tick n now: behind what is booked there.
func (l *line) placeNs(nowNs, n int64) int64 {
	booked := l.at(n).booked
	if n == l.tickOf(nowNs) {
		booked = max(booked, l.goneBytes(nowNs))
	}
	return l.startNs(n) + min(l.pace.costNs(booked), l.tickNs()-1)
}

// boostFits: boosts take boostPart of the line. A packet waits for the one before to be paid for, but
// a small one only if that is more than a full one.
func (l *line) boostFits(nowNs, bytes, full int64) bool {
	var slackNs int64
	if bytes < full/smallPart {
		slackNs = boostPart * l.pace.costNs(full)
	}
	return bytes <= full && l.boostNs <= nowNs+slackNs
}

// aheadBytes is what the line has booked from now to the end of the next tick.
func (l *line) aheadBytes(nowNs int64) int64 {
	n := l.tickOf(nowNs)
	return max(0, l.at(n).booked-l.goneBytes(nowNs)) + l.at(n+1).booked
}

// find finds when a packet may leave. It books nothing.
func (l *line) find(b *booking) {
	l.roll(b.nowNs)
	now := l.tickOf(b.nowNs)

	b.as = byGuarantee
	if !b.waits && l.boostFits(b.nowNs, b.bytes, b.fullPacketBytes) {
		b.as = asBoost
		b.tick = now
		b.departureNs = b.nowNs
		return
	}

	allowedNs := max(b.leftoverEarliestNs, b.earliestNs)
	entitled := l.tickOf(max(b.guaranteeNs, b.earliestNs))
	found := func(n int64) {
		b.tick = n
		b.departureNs = max(l.placeNs(b.nowNs, n), b.earliestNs)
	}

	// Use it or lose it: what the line has no other use for now is nobody's loss.
	shallow := b.earliestNs < b.nowNs+max(shallowPackets*b.guaranteeCostNs, shallowTicks*l.tickNs())
	if shallow && l.aheadBytes(b.nowNs) <= nearPackets*min(max(b.bytes, b.fullPacketBytes), l.lumpBytes(b.fullPacketBytes)) {
		found(l.findRoom(l.tickOf(allowedNs)))
		if b.departureNs+b.guaranteeCostNs < b.guaranteeNs {
			b.as = fromLeftover
			b.gainedNs = b.guaranteeNs - b.departureNs
			b.guaranteeNs = b.departureNs
		}
		return
	}

	// Behind what was booked from the leftover before, unless the guarantee comes first. A flow that
	// has not booked far ahead may be one packet ahead of its guarantee: so those that send a packet
	// when another leaves, as TCP does, fill the line without gaps.
	// Where one tin has the line to itself and the line has idled of late, what guarantees leave is the
	// tin's own, and a flow that has not booked far ahead may have it at once.
	atOnce := shallow && b.alone && uint32(l.tickOf(b.nowNs)-l.idleTick) <= idleMemoryTicks
	leftoverNs, fromNs := allowedNs, b.guaranteeNs
	if !atOnce {
		leftoverNs = max(leftoverNs, l.leftoverNs)
	}
	if shallow {
		fromNs = max(b.guaranteeNs-max(b.guaranteeCostNs, l.tickNs()), allowedNs)
	}
	if min(leftoverNs, fromNs) < b.guaranteeNs {
		if n := l.findRoom(l.tickOf(min(leftoverNs, fromNs))); n <= entitled {
			if leftoverNs < fromNs {
				leftoverNs = max(leftoverNs, l.startNs(n))
				b.as = fromLeftover
				b.gainedNs = max(0, b.guaranteeNs-leftoverNs)
				b.guaranteeNs -= b.gainedNs
				if !atOnce {
					b.leftoverNs = leftoverNs + b.bytes*l.leftoverNsPerByteQ8>>8
				}
			}
			found(n)
			return
		}
	}
	// What a lump fills is not closed to guarantees: they are due, and ticks after it repay, if there are
	// any with room soon.
	n, due := l.findRoom(entitled), l.tickOf(max(fromNs, b.earliestNs))
	if due < l.lumpEnd && n-due <= dueTicks && b.bytes <= l.lumpBytes(b.fullPacketBytes) && l.debt < repayTicks*l.tickBytes {
		n = due
	}
	found(n)
}

// lumpBytes is the largest packet that is no lump: what the cap on super-packets allows.
func (l *line) lumpBytes(fullPacketBytes int64) int64 {
	return max(lumpPackets*fullPacketBytes, l.tickBytes/lumpPart)
}

// lateNs is how much later than its guarantee allows a packet leaves, beyond what ticks round and what
// its flow can make up for: the time of one such packet.
func (l *line) lateNs(b *booking, pacedNs int64) int64 {
	dueNs := max(b.guaranteeNs, pacedNs) + lagTicks*l.tickNs() + b.guaranteeCostNs
	return max(0, b.departureNs-dueNs)
}

// take books what find found.
func (l *line) take(b *booking) {
	t := l.book(b.tick)
	if b.tick == l.tickOf(b.nowNs) {
		// What time has passed unused cannot be used any more.
		lost := max(0, l.goneBytes(b.nowNs)-t.booked)
		t.booked += lost
		t.lost += lost
	}
	already := l.overfill(b.tick)
	t.booked += b.bytes

	switch b.as {
	case fromLeftover:
		if b.leftoverNs != 0 {
			l.leftoverNs = b.leftoverNs
		}
		// What the flow would have got by its guarantee is demand all the same.
		if b.gainedNs < b.guaranteeCostNs {
			t.entitled += b.bytes * (b.guaranteeCostNs - b.gainedNs) / b.guaranteeCostNs
		}
	case asBoost:
		l.boostNs = max(l.boostNs, b.nowNs) + boostPart*l.pace.costNs(b.bytes)
		fallthrough
	case byGuarantee:
		// Of what the flow lost of its guarantee, half is added to the demand, so that more is
		// kept free for it.
		var missed int64
		if b.guaranteeCostNs > 0 {
			missed = (b.lateNs + b.passedNs) * b.bytes / (2 * b.guaranteeCostNs)
		}
		t.entitled += b.bytes + min(missed, l.tickBytes)
	}
	end := l.repay(b.tick+1, l.overfill(b.tick)-already)
	if b.bytes > l.lumpBytes(b.fullPacketBytes) {
		l.lumpEnd = max(l.lumpEnd, end)
	}
}

// resize carries what is booked from now on over to ticks of another length. A tick that becomes
// several is spread over them; several that become one add up. What lies beyond the ring of shorter
// ticks is forgotten.
func (l *line) resize(nowNs int64, shift uint) {
	old := *l
	l.ticks, l.shift = map[int64]*tick{}, shift
	for n, was := range old.ticks {
		if n < old.tickOf(nowNs) {
			continue
		}
		parts := max(1, old.tickNs()/l.tickNs())
		for part := range parts {
			if to := l.tickOf(old.startNs(n)) + part; to < l.tickOf(nowNs)+ticksAhead {
				l.book(to).booked += (was.booked + part) / parts
			}
		}
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"math/bits"
	"time"

	"github.com/cakectl/cakectl/pkg/rates"
)

const (
	// ticks is the number of ticks in the calendar's ring.
	ticks = 4096

	// minTickShift makes a tick 1.05 ms or longer; tickPackets full packets must fit into it.
	minTickShift = 20
	tickPackets  = 4

	// nearProbes ticks are looked at first, then hintProbes from the hint, then freeProbes from the later of both.
	nearProbes = 2
	hintProbes = 2
	freeProbes = 3

	// repayTicks is how many ticks one packet asks to repay what is overfilled.
	repayTicks = 32

	// closeTicks is the longest silence whose ticks are looked at one by one. A longer one forgets the demand.
	closeTicks = 64

	// demandShift smooths demand: a tick counts for 1/64. One that says less than the mean, and of which more than a
	// quarter stayed idle, counts for 1/8: flows have stopped.
	demandShift     = 6
	demandIdleShift = 3
	idlePart        = 4

	// demandTicks bounds what one tick may say about demand.
	demandTicks = 4

	// leftoverFloor is the part of the line that leftover bookings may always have.
	leftoverFloor = 128
)

// tick is what is booked to leave in 2^shift ns.
type tick struct {
	number int64
	// booked is the work on the line: packets that start in this tick, those reaching in from the one before, debts
	// repaid, and time that passed unused.
	booked int64
	// demand is what flows took by their guarantee in this tick, and missed of it.
	demand int64
	// boosted is what left at once because its flow had not been sending.
	boosted int64
}

// calendar is the line: a ring of ticks, and what past ticks tell about those to come. Bytes everywhere, so that a
// change of the bandwidth leaves everything where it is.
type calendar struct {
	ring [ticks]tick
	// shift is the length of a tick, 2^shift ns, and tickBytes what it carries.
	shift     uint
	tickBytes int64
	// current is the tick of the latest packet; no tick before freeHint has room, and none after lastBooked has a booking.
	current, freeHint, lastBooked int64
	// demand is the mean of the closed ticks' demand, and free what it leaves of a tick to leftover bookings.
	demand, free int64
	// leftoverNs is the clock of leftover bookings: it advances by their bytes at the rate that is free.
	leftoverNs int64
	// debt is what overfills ticks and no later tick has repaid.
	debt int64
}

// tickShift is the length of a tick for a bandwidth, as a power of two of nanoseconds.
func tickShift(bandwidth rates.Rate, fullPacketBytes int) uint {
	shift := uint(minTickShift)
	for bytesIn(bandwidth, shift) < int64(tickPackets*fullPacketBytes) {
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

func (c *calendar) tickNs() int64           { return 1 << c.shift }
func (c *calendar) startNs(n int64) int64   { return n << c.shift }
func (c *calendar) tickOf(ns int64) int64   { return ns >> c.shift }
func (c *calendar) hasRoom(n int64) bool    { return c.at(n).booked < c.tickBytes }
func (c *calendar) overfill(n int64) int64  { return max(0, c.at(n).booked-c.tickBytes) }
func (c *calendar) roomBytes(n int64) int64 { return max(0, c.tickBytes-c.at(n).booked) }

// at is tick n. One of an earlier round of the ring counts as empty.
func (c *calendar) at(n int64) *tick {
	t := &c.ring[n%ticks]
	if t.number != n {
		*t = tick{number: n}
	}
	return t
}

// placeNs is when a packet leaves that is booked in tick n now: behind what is booked there.
func (c *calendar) placeNs(n int64) int64 {
	return c.startNs(n) + min(c.at(n).booked*c.tickNs()/c.tickBytes, c.tickNs()-1)
}

// advance closes the ticks before now, and takes from the present one what time has passed.
func (c *calendar) advance(nowNs int64) {
	now := c.tickOf(nowNs)
	if now-c.current > closeTicks {
		c.current, c.demand = now, 0
		c.leftoverNs = min(c.leftoverNs, nowNs)
	}
	for c.current < now {
		c.close()
	}
	c.freeHint = max(c.freeHint, now)
	passed := (nowNs - c.startNs(now)) * c.tickBytes >> c.shift
	c.at(now).booked = max(c.at(now).booked, passed)
}

// close learns from the current tick and goes on to the next.
func (c *calendar) close() {
	t, idle := c.at(c.current), c.roomBytes(c.current)
	demand, shift := min(t.demand, demandTicks*c.tickBytes), demandShift
	if demand < c.demand && idle > c.tickBytes/idlePart {
		shift = demandIdleShift
	}
	c.demand = smooth(c.demand, demand, shift)
	c.setFree()
	c.current++
	// An idle line shows that more was kept free than was needed: leftover bookings move up.
	if ahead := c.leftoverNs - c.startNs(c.current); ahead > 0 {
		c.leftoverNs -= ahead * idle / c.tickBytes
	}
}

func (c *calendar) setFree() {
	c.free = max(c.tickBytes-c.demand, c.tickBytes/leftoverFloor)
}

// smooth moves a mean to a sample by 2^-shift of the difference, rounded away from the mean.
func smooth(mean, sample int64, shift int) int64 {
	round := int64(1)<<shift - 1
	if sample > mean {
		return mean + (sample-mean+round)>>shift
	}
	return mean - (mean-sample+round)>>shift
}

// findRoom is the first tick with room at or after n, as far as the probes go: the last one may be full.
func (c *calendar) findRoom(n int64) int64 {
	for range nearProbes {
		if c.hasRoom(n) {
			return n
		}
		n++
	}
	for range hintProbes {
		if c.hasRoom(c.freeHint) {
			break
		}
		c.freeHint++
	}
	n = max(n, c.freeHint)
	for range freeProbes {
		if c.hasRoom(n) {
			return n
		}
		n++
	}
	if c.overfill(n) < c.tickBytes {
		return n
	}
	return c.lastBooked + 1
}

// book adds bytes to tick n. What overfills it is a debt that later ticks repay: the next one, into which the packet
// reaches, and then the first ones with room.
func (c *calendar) book(n, bytes int64) {
	over := c.overfill(n)
	c.lastBooked = max(c.lastBooked, n)
	c.at(n).booked += bytes
	c.debt += c.overfill(n) - over
	c.repay(n + 1)
	for i := int64(0); i < repayTicks && c.debt > 0; i++ {
		c.repay(max(n+2, c.freeHint) + i)
	}
}

func (c *calendar) repay(n int64) {
	bytes := min(c.debt, c.roomBytes(n))
	if bytes > 0 {
		c.at(n).booked += bytes
		c.lastBooked = max(c.lastBooked, n)
		c.debt -= bytes
	}
}

// rebook carries the bookings from now on over to ticks of another length. A tick that becomes several is spread over
// them; several that become one add up. What lies beyond a ring of shorter ticks is forgotten.
func (c *calendar) rebook(nowNs int64, shift uint) {
	old := *c
	c.ring = [ticks]tick{}
	c.shift = shift
	c.lastBooked = 0
	for n := old.tickOf(nowNs); n < old.tickOf(nowNs)+ticks; n++ {
		was := old.ring[n%ticks]
		if was.number != n {
			continue
		}
		parts := max(1, old.tickNs()/c.tickNs())
		for part := range parts {
			number := c.tickOf(old.startNs(n)) + part
			if number >= c.tickOf(nowNs)+ticks {
				break
			}
			to := c.at(number)
			to.booked += was.booked / parts
			to.demand += was.demand / parts
			c.lastBooked = to.number
		}
	}
	c.current = c.tickOf(nowNs)
	c.freeHint = c.current
	c.lastBooked = max(c.lastBooked, c.current)
}

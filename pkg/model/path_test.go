// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cakectl/cakectl/pkg/rates"
)

// anyRate draws a rate the program supports, small and large ones alike.
func anyRate(t *rapid.T) rates.Rate {
	exponent := rapid.IntRange(0, 22).Draw(t, "exponent")
	return min(rapid.Custom(func(t *rapid.T) rates.Rate {
		return rates.Rate(rapid.Int64Range(64_000, 128_000).Draw(t, "mantissa")) << exponent
	}).Draw(t, "rate"), 400*rates.Gbit)
}

// anyPacket draws a packet: small, full or super, of a local or a forwarded flow, with and without pacing and plan.
func anyPacket(t *rapid.T, nowNs int64) Packet {
	p := Packet{
		Bytes: rapid.OneOf(
			rapid.Int64Range(60, 200), rapid.Just(int64(fullPacket)), rapid.Int64Range(fullPacket, 2*fullPacket),
			rapid.Int64Range(fullPacket, 65536),
		).Draw(t, "bytes"),
		HorizonNs: rapid.SampledFrom([]int64{100 * millisecond, 8 * second}).Draw(t, "horizon"),
	}
	if rapid.IntRange(0, 9).Draw(t, "paced") == 0 {
		p.NotBeforeNs = nowNs + rapid.Int64Range(-second, second).Draw(t, "not before")
	}
	if rapid.Bool().Draw(t, "planned") {
		p.Plan = anyRate(t)
	}
	return p
}

// anyPause draws the time to the next packet: bursts, and silences longer than any memory.
func anyPause(t *rapid.T) int64 {
	return rapid.OneOf(
		rapid.Just(int64(0)), rapid.Int64Range(0, 50*microsecond), rapid.Int64Range(0, 5*millisecond),
		rapid.Int64Range(0, 30*second),
	).Draw(t, "pause")
}

// anyStart draws when a device starts to send: a machine's clock does not begin at 0.
func anyStart(t *rapid.T) int64 { return rapid.Int64Range(second, 1<<52).Draw(t, "start") }

func TestDeparturesKeepOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nowNs := anyStart(t)
		p := New(anyRate(t), fullPacket)
		flows := make([]Flow, 4)
		for range rapid.IntRange(1, 300).Draw(t, "packets") {
			nowNs += anyPause(t)
			if rapid.IntRange(0, 19).Draw(t, "change") == 0 {
				p.SetBandwidth(nowNs, anyRate(t))
			}
			flow := &flows[rapid.IntRange(0, len(flows)-1).Draw(t, "flow")]
			packet, before := anyPacket(t, nowNs), flow.DepartureNs
			departureNs, accepted := p.Enqueue(nowNs, flow, packet)
			if !accepted {
				continue
			}
			if departureNs < max(nowNs, before, packet.NotBeforeNs) || departureNs > nowNs+packet.HorizonNs {
				t.Fatalf("departure %d, want between now %d, the flow's last %d, its own pacing %d, and %d",
					departureNs, nowNs, before, packet.NotBeforeNs, nowNs+packet.HorizonNs)
			}
			if flow.DepartureNs != departureNs {
				t.Fatalf("flow's last departure %d, want %d", flow.DepartureNs, departureNs)
			}
		}
	})
}

// TestDropChangesNothing offers packets that cannot leave in time: no clock moves and nothing is booked. Only what is
// known of where to look for room may change.
func TestDropChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nowNs := anyStart(t)
		p := New(anyRate(t), fullPacket)
		flows := make([]Flow, 3)
		for range rapid.IntRange(1, 100).Draw(t, "packets") {
			nowNs += anyPause(t)
			p.Enqueue(nowNs, &flows[rapid.IntRange(0, 2).Draw(t, "flow")], anyPacket(t, nowNs))

			before, flowsBefore, flowsCounted := p.line.bookings(nowNs), slices.Clone(flows), p.Flows(nowNs)
			demand, leftoverNs, debt := p.line.demand, p.line.leftoverNs, p.line.debt
			packet := anyPacket(t, nowNs)
			packet.HorizonNs = -1
			if _, accepted := p.Enqueue(nowNs, &flows[rapid.IntRange(0, 2).Draw(t, "dropped flow")], packet); accepted {
				t.Fatal("accepted a packet that cannot leave in time")
			}
			if !slices.Equal(flowsBefore, flows) || p.Flows(nowNs) != flowsCounted {
				t.Fatalf("flows are %+v and %d count, were %+v and %d", flows, p.Flows(nowNs), flowsBefore, flowsCounted)
			}
			if p.line.demand != demand || p.line.leftoverNs != leftoverNs || p.line.debt != debt {
				t.Fatal("demand, the leftover clock or the debt changed")
			}
			if !slices.Equal(before, p.line.bookings(nowNs)) {
				t.Fatal("the bookings changed")
			}
		}
	})
}

// bookings is what is booked in the ring from now on.
func (c *calendar) bookings(nowNs int64) []tick {
	all := make([]tick, ticks)
	for i := range all {
		all[i] = *c.at(c.tickOf(nowNs) + int64(i))
	}
	return all
}

// TestTicksAreNotSoldTwice holds any traffic to what the calendar promises. A tick carries what it has room for and the
// packet that reaches into the next; where the probes find none with room, as much again; and boosts. And each byte has
// a place of its own on the line: what overfills a tick takes that of later ones, or is known as debt.
func TestTicksAreNotSoldTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nowNs := anyStart(t)
		p := New(anyRate(t), fullPacket)
		first := p.line.tickOf(nowNs)
		flows := make([]Flow, 5)
		leaving := map[int64]int64{}
		var accepted, largest int64
		for range rapid.IntRange(1, 400).Draw(t, "packets") {
			nowNs += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, p.TickNs()/4)).Draw(t, "pause")
			packet := anyPacket(t, nowNs)
			packet.NotBeforeNs = 0
			departureNs, ok := p.Enqueue(nowNs, &flows[rapid.IntRange(0, 4).Draw(t, "flow")], packet)
			if !ok {
				continue
			}
			leaving[p.line.tickOf(departureNs)] += packet.Bytes
			accepted += packet.Bytes
			largest = max(largest, packet.Bytes)
		}
		for tick, bytes := range leaving {
			if most := 2*p.TickBytes() + largest + max(p.TickBytes()/boostPart, fullPacket); bytes > most {
				t.Fatalf("tick %d carries %d bytes, more than %d", tick-first, bytes, most)
			}
		}
		var places int64
		for tick := first; tick <= p.line.lastBooked; tick++ {
			places += min(p.line.at(tick).booked, p.TickBytes())
		}
		if places+p.line.debt < accepted {
			t.Fatalf("%d bytes were accepted, with places for %d and a debt of %d", accepted, places, p.line.debt)
		}
	})
}

// TestProbesEndInFullTicks books where no probe finds room, because what is free lies before: no tick carries more than
// twice what it holds and a packet.
func TestProbesEndInFullTicks(t *testing.T) {
	p := New(mbit40, fullPacket)
	const first, last, bookings = 100, 200, 2000
	for n := int64(first); n < last; n++ {
		p.line.book(n, p.TickBytes())
	}
	for range bookings {
		p.line.book(p.line.findRoom(first), fullPacket)
	}
	var booked int64
	for n := range int64(ticks) {
		bytes := p.line.at(n).booked
		booked += bytes
		if most := 2*p.TickBytes() + fullPacket; bytes > most {
			t.Errorf("tick %d carries %d bytes, more than %d", n, bytes, most)
		}
	}
	// What overfills a tick is booked twice: where it leaves, and where it is repaid.
	if want := (last-first)*p.TickBytes() + bookings*fullPacket; booked+p.line.debt < want {
		t.Errorf("%d bytes are booked and %d owed, want %d at least", booked, p.line.debt, want)
	}
}

// TestBandwidthChangeKeepsClocks changes the bandwidth under a backlog: no clock moves, and what is booked stays booked.
func TestBandwidthChangeKeepsClocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nowNs := anyStart(t)
		anyFastRate := func() rates.Rate { return max(anyRate(t), 2*rates.Mbit) }
		p := New(anyFastRate(), fullPacket)
		flows := make([]Flow, 3)
		for range rapid.IntRange(1, 200).Draw(t, "packets") {
			packet := anyPacket(t, nowNs)
			packet.HorizonNs = min(packet.HorizonNs, second)
			p.Enqueue(nowNs, &flows[rapid.IntRange(0, 2).Draw(t, "flow")], packet)
		}
		before := p.line
		flowsBefore := slices.Clone(flows)

		p.SetBandwidth(nowNs, anyFastRate())

		if !slices.Equal(flowsBefore, flows) {
			t.Fatalf("flows are %+v, were %+v", flows, flowsBefore)
		}
		after := &p.line
		if after.leftoverNs != before.leftoverNs || after.debt != before.debt {
			t.Fatalf("leftover clock %d, debt %d; were %d and %d", after.leftoverNs, after.debt, before.leftoverNs, before.debt)
		}
		booked, ticksBooked := before.all()
		bookedAfter, _ := after.all()
		lost := booked - bookedAfter
		// A tick that is split loses the remainder of its division.
		parts := max(1, before.tickNs()/after.tickNs())
		if lost < 0 || lost > ticksBooked*(parts-1) {
			t.Fatalf("%d bytes are booked, %d were, in %d ticks of which each becomes %d", bookedAfter, booked, ticksBooked, parts)
		}
	})
}

// all is what is booked in the whole ring, and in how many ticks.
func (c *calendar) all() (bytes, ticksBooked int64) {
	for _, t := range c.ring {
		bytes += t.booked
		if t.booked > 0 {
			ticksBooked++
		}
	}
	return bytes, ticksBooked
}

// fill books the line with two TCP-like flows for about 100 ms.
func fill(p *Path, nowNs int64) {
	var flows [2]Flow
	for i := range 2 * int(100*millisecond/p.TickNs()) * int(p.TickBytes()) / fullPacket / 2 {
		p.Enqueue(nowNs, &flows[i%2], Packet{Bytes: fullPacket, HorizonNs: second})
	}
}

func TestFlowThatWasNotSendingLeavesAtOnce(t *testing.T) {
	const nowNs = second
	p := New(mbit40, fullPacket)
	fill(p, nowNs)
	budget := max(p.TickBytes()/boostPart, fullPacket)
	const ping = 98
	waited := 0
	for i := range budget/ping + 50 {
		departureNs, _ := p.Enqueue(nowNs, &Flow{}, Packet{Bytes: ping, HorizonNs: second})
		if departureNs == nowNs {
			continue
		}
		if waited++; i < budget/ping-fullPacket/ping { // the two flows had a first packet too
			t.Fatalf("ping %d leaves after %d ns, within the budget of %d bytes", i, departureNs-nowNs, budget)
		}
	}
	if waited < 50 {
		t.Fatalf("%d pings had to wait, want those beyond the budget to", waited)
	}
}

func TestOwnPacingIsKept(t *testing.T) {
	const nowNs = second
	p := New(mbit40, fullPacket)
	var paced, other Flow
	p.Enqueue(nowNs, &paced, Packet{Bytes: fullPacket, NotBeforeNs: nowNs + 50*millisecond, HorizonNs: second})
	if late := paced.DepartureNs - nowNs - 50*millisecond; late < 0 || late > p.TickNs() {
		t.Errorf("a packet paced to leave in 50 ms leaves %d ns later than that", late)
	}
	// It keeps nobody else waiting.
	for range 20 {
		p.Enqueue(nowNs, &other, Packet{Bytes: fullPacket, HorizonNs: second})
	}
	if wait := other.DepartureNs - nowNs; wait > 20*durationNs(fullPacket, mbit40) {
		t.Errorf("20 packets of another flow take %d ns", wait)
	}
}

func TestOnlyBackloggedFlowsCount(t *testing.T) {
	p := New(mbit40, fullPacket)
	nowNs := second
	trickles := make([]Flow, 31)
	var bulk Flow
	for range 100 {
		nowNs += 20 * millisecond
		for i := range trickles {
			p.Enqueue(nowNs+int64(i), &trickles[i], Packet{Bytes: 80, HorizonNs: second})
		}
	}
	if flows := p.Flows(nowNs); flows != 0 {
		t.Errorf("%d flows count beside trickles, want 0", flows)
	}
	for range 200 {
		p.Enqueue(nowNs+100, &bulk, Packet{Bytes: fullPacket, HorizonNs: second})
	}
	if flows := p.Flows(nowNs); flows != 1 {
		t.Errorf("%d flows count with one backlogged, want 1", flows)
	}
	// It counts while its packets wait, and for an epoch after that.
	const epochNs = int64(1) << epochShift
	if flows := p.Flows(bulk.DepartureNs + epochNs); flows != 1 {
		t.Errorf("%d flows count an epoch after the last departure, want 1", flows)
	}
	if flows := p.Flows(bulk.DepartureNs + 2*epochNs); flows != 0 {
		t.Errorf("%d flows count two epochs after the last departure, want 0", flows)
	}
}

// TestPlanBoundsGuarantee gives a flow a plan of a tenth beside a backlog: it is kept to that, and never gets more than
// its equal part.
func TestPlanBoundsGuarantee(t *testing.T) {
	costNs := func(plan rates.Rate) int64 {
		p := New(mbit40, fullPacket)
		var a, b Flow
		for range 10 {
			p.Enqueue(second, &a, Packet{Bytes: fullPacket, HorizonNs: second})
			p.Enqueue(second, &b, Packet{Bytes: fullPacket, HorizonNs: second})
		}
		return p.guaranteeCostNs(second, &a, Packet{Bytes: fullPacket, Plan: plan})
	}
	full := durationNs(fullPacket, mbit40)
	for plan, want := range map[rates.Rate]int64{0: 2 * full, mbit40: 2 * full, mbit40 / 10: 10 * full} {
		if got := costNs(plan); got < want-10 || got > want+10 {
			t.Errorf("with a plan of %v a packet costs %d ns, want %d", plan, got, want)
		}
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cakectl/cakectl/pkg/rates"
)

// anyRate draws a rate the program supports, small and large ones alike.
func anyRate(t *rapid.T) rates.Rate {
	exponent := rapid.IntRange(0, 22).Draw(t, "exponent")
	return min(rates.Rate(rapid.Int64Range(64_000, 128_000).Draw(t, "mantissa"))<<exponent, 400*rates.Gbit)
}

// anySettings draws settings with two tins, of which the second may have a ceiling.
func anySettings(t *rapid.T) Settings {
	s := settingsFor(anyRate(t))
	s.EqualFlows = rapid.Bool().Draw(t, "equal flows")
	s.Tins = append(s.Tins, TinSettings{Rate: s.Bandwidth / 4, Ceil: rates.Unlimited})
	if rapid.Bool().Draw(t, "ceiling") {
		s.Tins[1].Ceil = s.Tins[1].Rate
	}
	return s
}

// anyHashes draws flows, some of which share a set.
func anyHashes(t *rapid.T) []uint32 {
	return rapid.SliceOfN(rapid.Uint32Range(1, 1<<10), 1, 20).Draw(t, "hashes")
}

// anyPacket draws a packet: small, full or super, of a local or a forwarded flow, with and without a
// departure time of its own.
func anyPacket(t *rapid.T, nowNs int64, hashes []uint32) Packet {
	p := Packet{
		Queue: rapid.IntRange(0, 2).Draw(t, "queue"),
		Tin:   rapid.IntRange(0, 1).Draw(t, "tin"),
		Hash:  rapid.SampledFrom(hashes).Draw(t, "hash"),
		Bytes: rapid.OneOf(
			rapid.Int64Range(1, 200), rapid.Just(int64(fullPacket)), rapid.Int64Range(fullPacket, 65536),
		).Draw(t, "bytes"),
		Segments:   1,
		Forwarded:  rapid.Bool().Draw(t, "forwarded"),
		ECNCapable: rapid.Bool().Draw(t, "ECN"),
	}
	if rapid.IntRange(0, 9).Draw(t, "paced") == 0 {
		p.OwnNs = nowNs + rapid.Int64Range(-second, second).Draw(t, "own")
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
func anyStart(t *rapid.T) int64 { return rapid.Int64Range(100*second, 1<<58).Draw(t, "start") }

// flowKey tells the flows of a test apart.
type flowKey struct {
	queue, tin int
	hash       uint32
}

func keyOf(p Packet) flowKey { return flowKey{p.Queue, p.Tin, p.Hash} }

// TestDeparturesKeepOrder holds any traffic, through changes of the settings, to what is promised of
// each departure. The table is small, so flows share ways and take each other's over.
func TestDeparturesKeepOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nowNs, settings, hashes := anyStart(t), anySettings(t), anyHashes(t)
		p := New(settings, 2*flowWays)
		last := map[flowKey]int64{}
		for range rapid.IntRange(1, 300).Draw(t, "packets") {
			nowNs += anyPause(t)
			if rapid.IntRange(0, 19).Draw(t, "change") == 0 {
				settings = anySettings(t)
				p.Configure(nowNs, settings)
			}
			packet := anyPacket(t, nowNs, hashes)
			v := p.Enqueue(nowNs, packet)
			if v.Dropped {
				continue
			}
			before := last[keyOf(packet)]
			if v.DepartureNs < max(nowNs, before, packet.OwnNs) || v.DepartureNs > nowNs+settings.LocalHorizonNs {
				t.Fatalf("departure %d, want between now %d, the flow's last %d, its own time %d, and %d",
					v.DepartureNs, nowNs, before, packet.OwnNs, nowNs+settings.LocalHorizonNs)
			}
			last[keyOf(packet)] = v.DepartureNs
		}
	})
}

// state is all that a drop must leave as it is.
type state struct {
	ticks                    map[int64]tick
	demand, leftoverNs, debt int64
	ceils                    [2]clock
	flows                    map[flowKey][2]int64
}

func stateOf(p *Path) state {
	s := state{
		ticks: map[int64]tick{}, demand: p.line.demand, leftoverNs: p.line.leftoverNs, debt: p.line.debt,
		ceils: [2]clock{p.tins[0].ceil, p.tins[1].ceil}, flows: map[flowKey][2]int64{},
	}
	for n, t := range p.line.ticks {
		if t.booked > 0 {
			s.ticks[n] = *t
		}
	}
	for key, set := range p.table {
		for _, f := range set {
			if f.guaranteeNs != 0 || f.departureNs != 0 {
				s.flows[flowKey{key.queue, key.tin, f.tag}] = [2]int64{f.guaranteeNs, f.departureNs}
			}
		}
	}
	return s
}

func (s state) equal(o state) bool {
	return maps.Equal(s.ticks, o.ticks) && maps.Equal(s.flows, o.flows) && s.ceils == o.ceils &&
		s.demand == o.demand && s.leftoverNs == o.leftoverNs && s.debt == o.debt
}

// TestDropBooksNothing offers packets that cannot leave in time: no clock moves and nothing is
// booked.
func TestDropBooksNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nowNs, settings, hashes := anyStart(t), anySettings(t), anyHashes(t)
		p := New(settings, simFlows)
		for range rapid.IntRange(1, 100).Draw(t, "packets") {
			nowNs += anyPause(t)
			p.Enqueue(nowNs, anyPacket(t, nowNs, hashes))

			before := stateOf(p)
			p.settings.LocalHorizonNs = -1
			packet := anyPacket(t, nowNs, hashes)
			if v := p.Enqueue(nowNs, packet); !v.Dropped {
				t.Fatal("accepted a packet that cannot leave in time")
			}
			p.Configure(nowNs, settings)
			after := stateOf(p)
			// A flow at rest may have been forgotten.
			for key, clocks := range before.flows {
				if clocks[0] <= nowNs && clocks[1] <= nowNs {
					delete(before.flows, key)
					delete(after.flows, key)
				}
			}
			if !before.equal(after) {
				t.Fatalf("a drop changed %+v to %+v", before, after)
			}
		}
	})
}

// TestTicksAreNotSoldTwice: each byte has a place of its own on the line: what overfills a tick takes
// that of later ones, or is known as debt.
func TestTicksAreNotSoldTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nowNs, hashes := anyStart(t), anyHashes(t)
		p := New(anySettings(t), simFlows)
		var accepted, past int64
		places := func(t tick) int64 { return min(t.booked, p.line.tickBytes) - t.lost }
		for range rapid.IntRange(1, 300).Draw(t, "packets") {
			nowNs += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 2*p.line.tickNs())).Draw(t, "pause")
			for n, t := range p.line.ticks {
				if n < p.line.tickOf(nowNs) {
					past += places(*t)
					delete(p.line.ticks, n)
				}
			}
			packet := anyPacket(t, nowNs, hashes)
			if !p.Enqueue(nowNs, packet).Dropped {
				accepted += packet.Bytes
			}
			ahead := p.line.debt
			for _, t := range p.line.ticks {
				ahead += places(*t)
			}
			if past+ahead != accepted {
				t.Fatalf("%d bytes were accepted; there are places for %d, a debt of %d among them", accepted, past+ahead, p.line.debt)
			}
		}
	})
}

// TestChangeResetsNoClock changes the settings under a backlog: no clock moves, and what is booked
// stays booked.
func TestChangeResetsNoClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nowNs, hashes := anyStart(t), anyHashes(t)
		fast := func() Settings {
			s := anySettings(t)
			s.Bandwidth = max(s.Bandwidth, 2*rates.Mbit)
			s.LocalHorizonNs = second // so that no booking lies beyond a ring of shorter ticks
			return s
		}
		p := New(fast(), simFlows)
		for range rapid.IntRange(1, 200).Draw(t, "packets") {
			p.Enqueue(nowNs, anyPacket(t, nowNs, hashes))
		}
		before, tickNs := stateOf(p), p.line.tickNs()
		p.Configure(nowNs, fast())
		after := stateOf(p)

		if !maps.Equal(before.flows, after.flows) || before.ceils != after.ceils ||
			before.leftoverNs != after.leftoverNs || before.debt != after.debt {
			t.Fatalf("clocks are %+v, were %+v", after, before)
		}
		booked := func(s state) (bytes int64) {
			for _, t := range s.ticks {
				bytes += t.booked
			}
			return bytes
		}
		// A tick that is split may lose or gain the remainder of its division.
		parts := max(1, tickNs/p.line.tickNs())
		if difference := booked(after) - booked(before); difference < -parts*int64(len(before.ticks)) || difference > parts*int64(len(before.ticks)) {
			t.Fatalf("%d bytes are booked, were %d", booked(after), booked(before))
		}
	})
}

// TestSparseFlowLeavesAtOnce: a ping beside a backlog does not wait, as long as a quarter of the line
// is enough for all of them.
func TestSparseFlowLeavesAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nowNs := anyStart(t)
		p := New(settingsFor(anyRate(t)), simFlows)
		backlog := []int64{1, 2}
		for nowNs += second; len(backlog) > 0; {
			for i, flow := range slices.Backward(backlog) {
				if p.Enqueue(nowNs, Packet{Hash: uint32(flow), Bytes: fullPacket, Segments: 1}).DepartureNs > nowNs+200*millisecond {
					backlog = slices.Delete(backlog, i, i+1)
				}
			}
			if p.line.tickBytes > 1<<20 {
				break // does not fill within a test
			}
		}
		nowNs += rapid.Int64Range(p.line.tickNs(), 100*millisecond+p.line.tickNs()).Draw(t, "later")
		v := p.Enqueue(nowNs, Packet{Hash: 99, Bytes: rapid.Int64Range(1, 200).Draw(t, "bytes"), Segments: 1})
		if v.DepartureNs != nowNs {
			t.Fatalf("a ping waits %d ns", v.DepartureNs-nowNs)
		}
	})
}

// TestOnlyBackloggedFlowsCount: trickles take nobody's share.
func TestOnlyBackloggedFlowsCount(t *testing.T) {
	p := New(settingsFor(mbit40), simFlows)
	nowNs := 100 * second
	for range 100 {
		nowNs += 20 * millisecond
		for i := range 31 {
			p.Enqueue(nowNs+int64(i), Packet{Hash: hashOf(i), Bytes: 80, Segments: 1})
		}
	}
	if p.flows != 0 {
		t.Errorf("%d flows count beside trickles, want 0", p.flows)
	}
	nowNs += 100
	departureNs := int64(0)
	for range 200 {
		departureNs = p.Enqueue(nowNs, Packet{Hash: hashOf(99), Bytes: fullPacket, Segments: 1}).DepartureNs
	}
	if p.flows != 1 {
		t.Errorf("%d flows count with one backlogged, want 1", p.flows)
	}
	// It counts while its packets wait. It has not counted before, so it does not count after that.
	countAt := func(nowNs int64) int64 {
		p.Enqueue(nowNs, Packet{Hash: hashOf(1), Bytes: 80, Segments: 1})
		return p.flows
	}
	if flows := countAt(departureNs - 1); flows != 1 {
		t.Errorf("%d flows count before the last departure, want 1", flows)
	}
	if flows := countAt(departureNs + p.settings.EpochNs); flows != 0 {
		t.Errorf("%d flows count an epoch after the last departure, want 0", flows)
	}
}

// TestFlowIsHeldAsLongAsItLasted: a flow that pauses counts for as long as it has counted before, up
// to a bound, though its shard sees no packet meanwhile.
func TestFlowIsHeldAsLongAsItLasted(t *testing.T) {
	for _, lasted := range []int64{0, 1, 10, holdEpochs, 100} {
		countAfter := func(epochs int64) int64 {
			p := New(settingsFor(mbit40), simFlows)
			epochNs := p.settings.EpochNs
			startNs := 1000 * epochNs
			var departureNs int64
			for nowNs := startNs; nowNs <= startNs+lasted*epochNs; nowNs += epochNs {
				for departureNs <= nowNs+epochNs {
					departureNs = p.Enqueue(nowNs, Packet{Hash: hashOf(1), Bytes: fullPacket, Segments: 1}).DepartureNs
				}
			}
			p.Enqueue(departureNs+epochs*epochNs, Packet{Hash: hashOf(2), Bytes: 80, Segments: 1})
			return p.flows
		}
		held := min(lasted, holdEpochs)
		if flows := countAfter(held); flows != 1 && held > 0 {
			t.Errorf("a flow that lasted %d epochs: %d flows count %d epochs after its last departure, want 1", lasted, flows, held)
		}
		if flows := countAfter(held + 2); flows != 0 {
			t.Errorf("a flow that lasted %d epochs: %d flows count %d epochs after its last departure, want 0", lasted, flows, held+2)
		}
	}
}

// TestWaitingFlowCountsThroughSilence: a flow whose packets wait for some epochs counts in all of
// them, though its shard sees no packet meanwhile.
func TestWaitingFlowCountsThroughSilence(t *testing.T) {
	p := New(settingsFor(mbit40), simFlows)
	nowNs := 100 * second
	waits := Packet{Hash: hashOf(1), Bytes: fullPacket, Segments: 1}
	for p.Enqueue(nowNs, waits).DepartureNs < nowNs+50*p.settings.EpochNs {
	}
	p.Enqueue(nowNs+49*p.settings.EpochNs, Packet{Hash: hashOf(2), Bytes: 80, Segments: 1})
	if p.flows != 1 {
		t.Errorf("%d flows count after 49 epochs of silence with one waiting, want 1", p.flows)
	}
}

// TestIdleLineMovesLeftover: after a tick that was idle altogether nothing waits for the leftover, at
// the slowest bandwidth and the fastest.
func TestIdleLineMovesLeftover(t *testing.T) {
	for _, rate := range []rates.Rate{64 * rates.Kbit, 400 * rates.Gbit} {
		p := New(settingsFor(rate), simFlows)
		nowNs := 100 * second
		p.line.roll(nowNs)
		endNs := p.line.startNs(p.line.tickOf(nowNs) + 1)
		p.line.leftoverNs = endNs + p.line.tickNs()
		p.line.roll(endNs)
		if ahead := p.line.leftoverNs - endNs; ahead != 0 {
			t.Errorf("%v: the leftover clock is %d ns ahead", rate, ahead)
		}
	}
}

// window is the most bytes that leave within so many nanoseconds.
func window(left []departure, lengthNs int64) int64 {
	slices.SortStableFunc(left, func(a, b departure) int { return int(min(max(a.atNs-b.atNs, -1), 1)) })
	var inside, most int64
	first := 0
	for _, d := range left {
		inside += d.bytes
		for ; left[first].atNs <= d.atNs-lengthNs; first++ {
			inside -= left[first].bytes
		}
		most = max(most, inside)
	}
	return most
}

// anySenders draws senders that each keep some packets in the device, as sockets do, and runs them
// for so many packets in all. It returns what left, sorted.
func anySenders(t *rapid.T, p *Path, nowNs int64, packets int) []departure {
	n := rapid.IntRange(1, 12).Draw(t, "senders")
	s := &sim{nowNs: nowNs}
	sent := 0
	for flow := range n {
		bytes := rapid.Int64Range(1000, fullPacket).Draw(t, "bytes")
		var send func()
		send = func() {
			if sent++; sent > packets {
				return
			}
			hash := hashOf(flow)
			verdict := p.Enqueue(s.nowNs, Packet{Queue: flow % 3, Hash: hash, Bytes: bytes, Segments: 1})
			if verdict.Dropped {
				t.Fatalf("a packet is dropped within the horizon")
			}
			s.at(verdict.DepartureNs, func() {
				s.left = append(s.left, departure{s.nowNs, flow, bytes})
				s.at(s.nowNs+1, send)
			})
		}
		for range rapid.IntRange(2, 40).Draw(t, "in flight") {
			s.at(nowNs, send)
		}
	}
	s.run(math.MaxInt64)
	return s.left
}

// TestRateHoldsOverAnyWindow holds senders that keep the line full to the bandwidth, from above over
// every window, from below over the whole: the line is never idle while something waits.
func TestRateHoldsOverAnyWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nowNs := anyStart(t)
		settings := settingsFor(anyRate(t))
		settings.LocalHorizonNs = 1000 * second // at 64 kbit/s all senders' packets take 90
		p := New(settings, simFlows)
		const packets = 1500
		left := anySenders(t, p, nowNs, packets)
		perNs := float64(settings.Bandwidth) / 8e9
		// The packets at the very end leave as the senders run dry.
		full := left[:packets*2/3]
		var sent int64
		for _, d := range full {
			sent += d.bytes
		}
		spanNs := full[len(full)-1].atNs - nowNs
		slack := float64(4*p.line.tickBytes + 4*fullPacket)
		if could := perNs * float64(spanNs); float64(sent) < could*0.99-slack {
			t.Fatalf("%d bytes left while something waited, the line carries %.0f", sent, could)
		}
		for _, lengthNs := range []int64{p.line.tickNs(), 8 * p.line.tickNs(), 64 * p.line.tickNs(), spanNs} {
			most, carries := window(left, lengthNs), perNs*float64(lengthNs)
			if float64(most) > carries*1.01+slack {
				t.Fatalf("%d bytes leave within %d ns, in which the line carries %.0f", most, lengthNs, carries)
			}
		}
	})
}

// TestCeilingHoldsOverAnyWindow sends a tin more than its ceiling, by flows that stay and by new ones
// that never had a packet waiting.
func TestCeilingHoldsOverAnyWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nowNs := anyStart(t)
		settings := settingsFor(anyRate(t))
		ceil := max(settings.Bandwidth/rates.Rate(rapid.IntRange(1, 64).Draw(t, "ceiling's part")), 64*rates.Kbit)
		settings.Tins = []TinSettings{{Rate: ceil, Ceil: ceil}}
		p := New(settings, simFlows)
		newFlows := rapid.IntRange(0, 8).Draw(t, "new flows of 8")
		meanNs := durationNs(fullPacket, 2*ceil)
		var left []departure
		for i := range 500 {
			nowNs += rapid.Int64Range(0, 2*meanNs).Draw(t, "pause")
			packet := Packet{Hash: hashOf(i % 4), Bytes: rapid.Int64Range(64, fullPacket).Draw(t, "bytes"), Segments: 1}
			if rapid.IntRange(1, 8).Draw(t, "new flow") <= newFlows {
				packet.Hash = hashOf(100 + i)
			}
			if v := p.Enqueue(nowNs, packet); !v.Dropped {
				left = append(left, departure{v.DepartureNs, 0, packet.Bytes})
			}
		}
		perNs := float64(ceil) / 8e9
		for _, lengthNs := range []int64{10 * millisecond, 100 * millisecond, second, 10 * second} {
			allowed := perNs*float64(lengthNs+ceilSlackNs+2*p.line.tickNs()) + 2*fullPacket
			if most := window(left, lengthNs); float64(most) > allowed {
				t.Fatalf("%d bytes leave within %d ns, the ceiling allows %.0f", most, lengthNs, allowed)
			}
		}
	})
}

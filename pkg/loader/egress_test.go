// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cakectl/cakectl/pkg/rates"
)

func testSettings(bandwidth rates.Rate) Settings {
	return Settings{
		Bandwidth:       bandwidth,
		LocalHorizon:    2 * time.Second,
		ForwardHorizon:  100 * time.Millisecond,
		FullPacketBytes: 1514,
		EqualFlows:      true,
		Epoch:           4 * time.Millisecond,
		Tins:            []TinSettings{{Rate: bandwidth, Ceil: rates.Unlimited}},
	}
}

func oneTin(t *testing.T, bandwidth rates.Rate) *injected {
	return newInjected(t, Options{Queues: 1, Tins: 1, LinkHeaderBytes: 14}, testSettings(bandwidth))
}

// TestRateIsExact sends a backlog of one flow and looks at when its last byte leaves.
func TestRateIsExact(t *testing.T) {
	for _, bandwidth := range []rates.Rate{64 * rates.Kbit, 2 * rates.Mbit, 600 * rates.Mbit, rates.Gbit, 100 * rates.Gbit, 400 * rates.Gbit} {
		for _, bytes := range []int{64, 1514, 9014, 65514} {
			t.Run(fmt.Sprintf("%v/%d", bandwidth, bytes), func(t *testing.T) {
				settings := testSettings(bandwidth)
				settings.LocalHorizon = time.Minute
				settings.Leases = true
				in := newInjected(t, Options{Queues: 1, Tins: 1, LinkHeaderBytes: 14}, settings)
				// Enough that truncation to whole ticks and nanoseconds would show, and
				// within the horizon.
				cost := float64(bytes) * 8e9 / float64(bandwidth)
				n := int(min(2000, 1.5e9/cost)) + 2
				now, sent := injectedEpoch, 0
				var first, last time.Duration
				for i := range n {
					last = in.send(packet{at: now, flow: 1, bytes: bytes})
					if i == 0 {
						first, last = now, now
					}
					if last-now > time.Second {
						now = last - time.Second/2
					}
					sent += bytes
				}
				want := float64(sent-bytes) * 8e9 / float64(bandwidth)
				got := float64(last - first)
				// A tick's end is rounded to a byte, and what overfills one is repaid by the
				// next: allow a packet and 1/5000.
				if math.Abs(got-want) > want/5000+cost+float64(time.Duration(1)<<tickShift(bandwidth, 1514)) {
					t.Errorf("%d packets took %.6f s, want %.6f s", n, got/1e9, want/1e9)
				}
			})
		}
	}
}

// closedLoop drives flows that each keep so many packets in the shaper: as one departs, the next is
// sent. It returns the bytes that each flow got between from and to, and fails on reordering.
func closedLoop(t *testing.T, in *injected, flows []packet, outstanding int, from, to time.Duration) []int {
	t.Helper()
	return closedLoopObserved(t, in, flows, outstanding, from, to, func(time.Duration) {})
}

// closedLoopObserved calls observe before each packet.
func closedLoopObserved(t *testing.T, in *injected, flows []packet, outstanding int, from, to time.Duration, observe func(since time.Duration)) []int {
	t.Helper()
	type slot struct {
		flow int
		at   time.Duration
	}
	var waiting []slot
	for i := range flows {
		for range outstanding {
			waiting = append(waiting, slot{i, injectedEpoch})
		}
	}
	got := make([]int, len(flows))
	last := make([]time.Duration, len(flows))
	for {
		next := 0
		for i := range waiting {
			if waiting[i].at < waiting[next].at {
				next = i
			}
		}
		s := waiting[next]
		if s.at-injectedEpoch > to {
			return got
		}
		observe(s.at - injectedEpoch)
		p := flows[s.flow]
		p.at = s.at
		departure := max(in.send(p), s.at)
		if departure < last[s.flow] {
			t.Fatalf("flow %d: departure %v after %v", s.flow, departure, last[s.flow])
		}
		last[s.flow] = departure
		if since := departure - injectedEpoch; since >= from && since < to {
			got[s.flow] += p.bytes
		}
		waiting[next].at = max(departure, s.at+time.Microsecond)
	}
}

func TestFlowsShareEqually(t *testing.T) {
	in := oneTin(t, 40*rates.Mbit)
	flows := make([]packet, 16)
	for i := range flows {
		flows[i] = packet{flow: uint16(100 + i), bytes: 1514}
	}
	got := closedLoop(t, in, flows, 4, time.Second, 3*time.Second)
	total := 0
	for i, bytes := range got {
		total += bytes
		if want := 2 * 5e6 / 16.0; math.Abs(float64(bytes)-want) > want/20 {
			t.Errorf("flow %d got %d bytes, want %.0f", i, bytes, want)
		}
	}
	if math.Abs(float64(total)-1e7) > 1e7/200 {
		t.Errorf("all flows got %d bytes, want 10000000", total)
	}
}

func TestSparseFlowDoesNotWait(t *testing.T) {
	in := oneTin(t, 40*rates.Mbit)
	for i := range 400 {
		in.send(packet{at: injectedEpoch, flow: uint16(1 + i%4)})
	}
	at := injectedEpoch + 20*time.Millisecond
	if wait := in.send(packet{at: at, flow: 99, bytes: 98}) - at; wait > 0 {
		t.Errorf("a ping waits %v behind 100 ms of others' packets", wait)
	}
	if wait := in.send(packet{at: at, flow: 1}) - at; wait < 50*time.Millisecond {
		t.Errorf("a packet of a backlogged flow waits %v only", wait)
	}
}

func TestCeilingIsHard(t *testing.T) {
	settings := testSettings(100 * rates.Mbit)
	settings.Tins[0].Ceil = 10 * rates.Mbit
	settings.Tins[0].Rate = 10 * rates.Mbit
	in := newInjected(t, Options{Queues: 1, Tins: 1, LinkHeaderBytes: 14}, settings)
	flows := []packet{{flow: 1, bytes: 1514}, {flow: 2, bytes: 1514}, {flow: 3, bytes: 1514}}
	got := closedLoop(t, in, flows, 8, 0, 2*time.Second)
	if total := got[0] + got[1] + got[2]; math.Abs(float64(total)-2.5e6) > 2.5e6/50 {
		t.Errorf("a tin with a ceiling of 10 Mbit/s sent %d bytes in 2 s, want 2500000", total)
	}
}

func TestBeyondHorizonIsDropped(t *testing.T) {
	settings := testSettings(8 * rates.Mbit)
	settings.LocalHorizon = 50 * time.Millisecond
	in := newInjected(t, Options{Queues: 1, Tins: 1, LinkHeaderBytes: 14}, settings)
	for range 48 {
		in.send(packet{at: injectedEpoch, flow: 1, bytes: 1000})
	}
	in.send(packet{at: injectedEpoch, flow: 1, bytes: 6000})
	for range 10 {
		in.send(packet{at: injectedEpoch + time.Millisecond, flow: 1, bytes: 60000, verdict: actShot})
	}
	counters, err := in.TinCounters(0)
	if err != nil {
		t.Fatal(err)
	}
	if got := counters.Drops[0]; got != (Drops{Packets: 10, Bytes: 600000}) {
		t.Errorf("counted as dropped: %+v", got)
	}
	if counters.Packets != 49 {
		t.Errorf("counted as sent: %d packets, want 49", counters.Packets)
	}
	// The drops took no time of the line: the next packet follows the 49.
	at := injectedEpoch + 10*time.Millisecond
	if wait := in.send(packet{at: at, flow: 1, bytes: 1000}) - injectedEpoch; wait > 57*time.Millisecond {
		t.Errorf("the packet after the drops leaves at +%v", wait)
	}
}

func TestOwnPacing(t *testing.T) {
	in := oneTin(t, 100*rates.Mbit)
	paced := injectedEpoch + 7*time.Millisecond
	if got := in.send(packet{at: injectedEpoch, flow: 1, tstamp: paced}); got != paced {
		t.Errorf("a packet paced to +7ms leaves at +%v", got-injectedEpoch)
	}
	wallClock := time.Duration(time.Now().UnixNano())
	if got := in.send(packet{at: injectedEpoch, flow: 2, tstamp: wallClock}); got > injectedEpoch+time.Millisecond {
		t.Errorf("a packet with a receive timestamp leaves at +%v", got-injectedEpoch)
	}
}

// TestRateChangeKeepsOrder changes the rate under a backlog, to ticks of other lengths too.
func TestRateChangeKeepsOrder(t *testing.T) {
	in := oneTin(t, 200*rates.Mbit)
	var last time.Duration
	for step, bandwidth := range []rates.Rate{200 * rates.Mbit, 100 * rates.Mbit, 10 * rates.Mbit, 400 * rates.Mbit} {
		settings := testSettings(bandwidth)
		settings.Queues = 1
		if err := in.Configure(settings); err != nil {
			t.Fatal(err)
		}
		at := injectedEpoch + time.Duration(step)*time.Millisecond
		for range 50 {
			departure := in.send(packet{at: at, flow: 1})
			if departure < last {
				t.Fatalf("at %v: departure +%v after +%v", bandwidth, departure-injectedEpoch, last-injectedEpoch)
			}
			last = departure
		}
	}
}

func TestWhatIsNotIPIsPassed(t *testing.T) {
	in := oneTin(t, 64*rates.Kbit)
	arp := make([]byte, 60)
	binary.BigEndian.PutUint16(arp[12:], 0x0806)
	lying := ipv4Frame(0, 1, 64)
	lying[14] = 0x65
	for range 10 {
		if departure := in.send(packet{at: injectedEpoch, frame: arp, bytes: 60}); departure != 0 {
			t.Errorf("ARP is delayed to %v", departure)
		}
		in.send(packet{at: injectedEpoch, frame: lying})
	}
	bypassed, err := in.Bypassed()
	if err != nil {
		t.Fatal(err)
	}
	if bypassed["not_ip"] != 10 || bypassed["malformed"] != 10 {
		t.Errorf("counted as passed unshaped: %v", bypassed)
	}
}

func TestCountersCountSegments(t *testing.T) {
	in := oneTin(t, rates.Gbit)
	in.send(packet{at: injectedEpoch, flow: 1, bytes: 10 * 1514, segs: 10})
	in.send(packet{at: injectedEpoch, flow: 1, bytes: 1514})
	counters, err := in.TinCounters(0)
	if err != nil {
		t.Fatal(err)
	}
	if counters.Packets != 11 || counters.Bytes != 11*1514 || counters.DelayedPackets != 1 {
		t.Errorf("counted %+v", counters)
	}
	var inBuckets uint64
	for _, n := range counters.SojournBuckets {
		inBuckets += n
	}
	if inBuckets != 11 {
		t.Errorf("%d packets in the sojourn histogram, want 11", inBuckets)
	}
	queue, err := in.QueueCounters(0)
	if err != nil {
		t.Fatal(err)
	}
	if queue.Packets != 11 || queue.Bytes != 11*1514 {
		t.Errorf("queue counted %+v", queue)
	}
}

// TestEvents: a queue turns active with its first flow that waits, further flows are told, and a
// steady state is silent.
func TestEvents(t *testing.T) {
	in := oneTin(t, 100*rates.Mbit)
	events, err := in.Events()
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	read := func() (kinds []EventKind) {
		for events.Pending() {
			event, err := events.Next(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, event.Kind)
		}
		return kinds
	}
	flows := []packet{{flow: 1, bytes: 1514}, {flow: 2, bytes: 1514}, {flow: 3, bytes: 1514}}
	closedLoop(t, in, flows, 3, 0, 100*time.Millisecond)
	kinds := read()
	if len(kinds) != 3 || kinds[0] != EventActive || kinds[1] != EventFlows || kinds[2] != EventFlows {
		t.Errorf("three flows start: events %v", kinds)
	}
	active, err := in.Active(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(active) != 1 || active[0] != (rates.Cell{Queue: 0, Tin: 0, Flows: 3}) {
		t.Errorf("active: %+v", active)
	}
	for i := range 1000 {
		at := injectedEpoch + 110*time.Millisecond + time.Duration(i)*time.Millisecond
		for flow := range uint16(3) {
			in.send(packet{at: at, flow: 1 + flow, bytes: 5000})
		}
	}
	if kinds := read(); len(kinds) != 0 {
		t.Errorf("a steady state: events %v", kinds)
	}
}

// TestUnanswered looks at the ring beside its reader.
func TestUnanswered(t *testing.T) {
	in := oneTin(t, 100*rates.Mbit)
	want := func(events int, oldest time.Duration) {
		t.Helper()
		gotEvents, gotOldest, err := in.Unanswered()
		if err != nil {
			t.Fatal(err)
		}
		if gotEvents != events || gotOldest != oldest {
			t.Errorf("%d events, the oldest of %v; want %d, %v", gotEvents, gotOldest, events, oldest)
		}
	}
	want(0, 0)
	// Five packets make a flow one that counts.
	start := injectedEpoch + time.Second
	for flow := range uint16(3) {
		for range 5 {
			in.send(packet{at: start + time.Duration(flow)*time.Millisecond, flow: 1 + flow, bytes: 1514})
		}
	}
	want(3, start)
	events, err := in.Events()
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	for left := range 3 {
		if _, err := events.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left == 2 {
			want(0, 0)
		} else {
			want(2-left, start+time.Duration(left+1)*time.Millisecond)
		}
	}
}

// TestRingOverflow: an event that finds no room is counted, and what it told is in the shards.
func TestRingOverflow(t *testing.T) {
	in := oneTin(t, 100*rates.Mbit)
	const eventBytes = 32
	room := int(in.objects.Events.MaxEntries()) / eventBytes
	// A flow more, or fewer, in each epoch.
	at := injectedEpoch
	for sent := 0; sent <= room+10; at += 10 * time.Second {
		for flow := range uint16(2) {
			for range 5 {
				in.send(packet{at: at, flow: 1 + flow, bytes: 1514})
			}
			sent++
		}
	}
	lost, err := in.EventsLost()
	if err != nil {
		t.Fatal(err)
	}
	waiting, _, err := in.Unanswered()
	if err != nil {
		t.Fatal(err)
	}
	if lost == 0 || waiting < room-2 {
		t.Errorf("%d events lost, %d wait, the ring holds %d", lost, waiting, room)
	}
	active, err := in.Active(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(active) != 1 || active[0].Flows != 2 {
		t.Errorf("active: %+v", active)
	}
}

// TestCells: what is written is read back, and what is cleared is not there.
func TestCells(t *testing.T) {
	in := oneTin(t, 100*rates.Mbit)
	var want []rates.Grant
	for i, rate := range []rates.Rate{rates.Slowest, rates.Mbit, 33_333_333, 400 * rates.Gbit} {
		want = append(want, rates.Grant{Queue: 0, Tin: i, Rate: rates.RateFromNsPerByteQ24(rates.NsPerByteQ24(rate))})
		if err := in.WriteCell(0, i, rate); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want []rates.Grant) {
		t.Helper()
		got, err := in.Cells()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("cells %v, want %v", got, want)
		}
	}
	check(want)
	for _, empty := range []rates.Rate{0, rates.Unlimited} {
		if err := in.WriteCell(0, 1, empty); err != nil {
			t.Fatal(err)
		}
		check(slices.Delete(slices.Clone(want), 1, 2))
	}
	if err := in.WriteCell(in.Queues(), 0, rates.Mbit); err == nil {
		t.Error("a cell of a queue that the maps have no room for can be written")
	}
	check(slices.Delete(slices.Clone(want), 1, 2))
}

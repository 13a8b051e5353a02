// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cakectl/cakectl/pkg/rates"
)

// inTable reports whether a flow of a queue has a slot of its own.
func (in *injected) inTable(queue int, hash uint32) bool {
	in.t.Helper()
	for i := range DefaultFlows / FlowWays {
		var set dataPathFlowSet
		if err := in.objects.Flows.Lookup(uint32(queue*DefaultFlows/FlowWays+i), &set); err != nil {
			in.t.Fatal(err)
		}
		for _, flow := range set.Ways {
			if flow.Tag == max(hash, 1) {
				return true
			}
		}
	}
	return false
}

func (in *injected) activeFlows() uint32 {
	in.t.Helper()
	cells, err := in.Active(nil)
	if err != nil {
		in.t.Fatal(err)
	}
	var flows uint32
	for _, cell := range cells {
		flows += cell.Flows
	}
	return flows
}

// TestNewFlowsFindASlot: beside 500 flows that wait, on one queue, under 1 % of new flows share with
// one of them. With 32 queues the hashes of a queue have their highest bits in common.
func TestNewFlowsFindASlot(t *testing.T) {
	const busy, fresh = 500, 1000
	for _, queues := range []int{1, 32} {
		in := newInjected(t, Options{Queues: queues, Tins: 1, LinkHeaderBytes: 14}, testSettings(200*rates.Mbit))
		queue := queues / 4
		random := rand.New(rand.NewPCG(1, 2))
		hashes := make([]uint32, 0, busy+fresh)
		for len(hashes) < cap(hashes) {
			if hash := random.Uint32(); int(uint64(hash)*uint64(queues)>>32) == queue {
				hashes = append(hashes, hash)
			}
		}
		send := func(hash uint32, p packet) {
			if err := in.hash.Set(hash); err != nil {
				t.Fatal(err)
			}
			in.send(p)
		}
		for range 50 {
			for _, hash := range hashes[:busy] {
				send(hash, packet{at: injectedEpoch})
			}
		}
		shared := 0
		at := injectedEpoch
		for _, hash := range hashes[busy:] {
			// A small packet's time at its flow's part has passed when the next one comes.
			at += busy * 64 * 8 * time.Second / time.Duration(200*rates.Mbit)
			if send(hash, packet{at: at, bytes: 64}); !in.inTable(queue, hash) {
				shared++
			}
		}
		if shared >= fresh/100 {
			t.Errorf("%d queues: %d of %d new flows share with one of %d that wait", queues, shared, fresh, busy)
		}
	}
}

// TestFlowsThatTakeTurns: two sparse flows that pick the same way of the same set do not push each other
// out; one that has been silent for long is forgotten.
func TestFlowsThatTakeTurns(t *testing.T) {
	const low = 0x12345 // what picks both sets and the way
	in := newInjected(t, Options{Queues: 1, Tins: 1, LinkHeaderBytes: 14}, testSettings(200*rates.Mbit))
	at := injectedEpoch
	send := func(hash uint32) {
		t.Helper()
		if err := in.hash.Set(hash); err != nil {
			t.Fatal(err)
		}
		at += 10 * time.Millisecond
		in.send(packet{at: at, bytes: 64})
	}
	const one, other = 1<<24 | low, 2<<24 | low
	for range 10 {
		send(one)
		send(other)
		if !in.inTable(0, one) || !in.inTable(0, other) {
			t.Fatal("of two flows that take turns one has lost its slot")
		}
	}
	at += 2 * time.Second
	send(3<<24 | low)
	if in.inTable(0, one) {
		t.Error("a new flow did not get the way that it picked from one that was silent for 2 s")
	}
}

// TestFlowsCountAtLowRates: flows that always have some packets waiting all count, although seconds
// pass between two packets of one.
func TestFlowsCountAtLowRates(t *testing.T) {
	for _, bandwidth := range []rates.Rate{64 * rates.Kbit, rates.Mbit, 10 * rates.Mbit} {
		settings := testSettings(bandwidth)
		settings.LocalHorizon = time.Minute
		settings.Epoch = 128 * time.Millisecond
		in := newInjected(t, Options{Queues: 1, Tins: 1, LinkHeaderBytes: 14}, settings)
		flows := make([]packet, 20)
		for i := range flows {
			flows[i] = packet{flow: uint16(1 + i), bytes: 1514}
		}
		round := time.Duration(len(flows)) * 1514 * 8 * time.Second / time.Duration(bandwidth)
		// Each packet that leaves is followed by another, so all flows are active all the time.
		closedLoopObserved(t, in, flows, 3, 0, 20*round, func(since time.Duration) {
			if got := in.activeFlows(); since > 3*round && got != uint32(len(flows)) {
				t.Fatalf("%v: %d flows count after %v, want %d", bandwidth, got, since, len(flows))
			}
		})
	}
}

// TestShortFlowsCountBriefly: one flow that lasts, beside 10,000 a second of six packets each. The
// count is to be near the number of flows that have packets waiting.
func TestShortFlowsCountBriefly(t *testing.T) {
	in := oneTin(t, rates.Gbit)
	const gap = 100 * time.Microsecond
	var until []time.Duration // the last departure of each short flow that waits
	var counted, waiting, samples int
	var bulk time.Duration
	for i := range 20000 {
		at := injectedEpoch + time.Duration(i)*gap
		for bulk < at+2*gap {
			bulk = max(in.send(packet{at: at, flow: 1}), at)
		}
		var last time.Duration
		for range 6 {
			last = in.send(packet{at: at, flow: uint16(1000 + i), bytes: 1514})
		}
		still := until[:0]
		for _, departure := range append(until, last) {
			if departure > at {
				still = append(still, departure)
			}
		}
		until = still
		if i > 10000 && i%97 == 0 {
			counted += int(in.activeFlows())
			waiting += 1 + len(until)
			samples++
		}
	}
	t.Logf("flows that count: %d, that wait: %d", counted/samples, waiting/samples)
	if counted > waiting+50*samples {
		t.Errorf("%d flows count, %d have packets that wait", counted/samples, waiting/samples)
	}
	// What was counted in ceases to count, all of it.
	at := injectedEpoch + 10*time.Second
	in.send(packet{at: at, flow: 1})
	in.send(packet{at: at, flow: 1})
	if got := in.activeFlows(); got != 1 {
		t.Errorf("%d flows count 8 s after the last short one, want 1", got)
	}
}

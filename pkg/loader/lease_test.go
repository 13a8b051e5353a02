// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/rates"
)

// booked are the bytes that are booked for packets in all ticks from one on, and those of them that the CPU
// has booked ahead.
func (in *injected) booked(from time.Duration, bandwidth rates.Rate) (all, ahead uint64) {
	in.t.Helper()
	shift := tickShift(bandwidth, 1514)
	var calendar dataPathCalendar
	if err := in.objects.Calendar.Lookup(uint32(0), &calendar); err != nil {
		in.t.Fatal(err)
	}
	for _, tick := range calendar.Ticks {
		if stamp := uint32(tick.StampAndBytes >> 32); stamp >= uint32(uint64(from)>>shift) {
			// What overfills a tick is booked in later ones as well.
			all += uint64(min(uint32(tick.StampAndBytes), tickBytes(bandwidth, shift)) - tick.Lost)
		}
	}
	var leases []dataPathLease
	if err := in.objects.Leases.Lookup(uint32(0), &leases); err != nil {
		in.t.Fatal(err)
	}
	return all, uint64(leases[0].Bytes)
}

// newLeased keeps the test on one CPU, whose lease is then the only one.
func newLeased(t *testing.T, bandwidth rates.Rate, leases bool) *injected {
	t.Helper()
	runtime.LockOSThread() // and never unlocks: the thread ends with the test
	var cpu unix.CPUSet
	cpu.Set(0)
	if err := unix.SchedSetaffinity(0, &cpu); err != nil {
		t.Fatalf("stay on CPU 0: %v", err)
	}
	settings := testSettings(bandwidth)
	settings.Leases = leases
	return newInjected(t, Options{Queues: 1, Tins: 1, LinkHeaderBytes: 14}, settings)
}

// Whatever is booked ahead is used by later packets or given back: nothing of the line is lost.
func TestLeasesLoseNothing(t *testing.T) {
	const bandwidth = 100 * rates.Gbit
	in := newLeased(t, bandwidth, true)
	sent, most := uint64(0), uint64(0)
	for i := range 60_000 { // some 7 ticks
		p := packet{at: injectedEpoch, flow: uint16(i % 5), bytes: 200 + i%1300}
		in.send(p)
		sent += uint64(p.bytes)
		if i%997 != 0 {
			continue
		}
		all, ahead := in.booked(injectedEpoch, bandwidth)
		if all != sent+ahead {
			t.Fatalf("after %d packets with %d bytes, %d bytes are booked and %d of them ahead", i+1, sent, all, ahead)
		}
		most = max(most, ahead)
	}
	if most == 0 {
		t.Error("nothing is booked ahead")
	}
	lease := leaseBytes(tickBytes(bandwidth, tickShift(bandwidth, 1514)), 1514)
	if most > uint64(lease) {
		t.Errorf("%d bytes are booked ahead, want %d at most", most, lease)
	}
}

// A packet leaves when it would leave without leases, but for the few microseconds that are booked ahead.
func TestLeasesKeepDepartures(t *testing.T) {
	const bandwidth = 100 * rates.Gbit
	with, without := newLeased(t, bandwidth, true), newLeased(t, bandwidth, false)
	for i := range 60_000 {
		p := packet{at: injectedEpoch, flow: 1}
		a, b := with.send(p), without.send(p)
		if difference := (a - b).Abs(); difference > 4*time.Microsecond {
			t.Fatalf("packet %d leaves at %v, and without leases at %v", i, a-injectedEpoch, b-injectedEpoch)
		}
	}
}

// A CPU that sends a packet a tick books nothing ahead, and at low rates none does.
func TestSparseCPUTakesNoLease(t *testing.T) {
	for _, test := range []struct {
		bandwidth rates.Rate
		gap       time.Duration
	}{{100 * rates.Gbit, 2 * time.Millisecond}, {rates.Gbit, 0}} {
		in := newLeased(t, test.bandwidth, true)
		at := injectedEpoch
		for range 100 {
			in.send(packet{at: at, flow: 1})
			if _, ahead := in.booked(at, test.bandwidth); ahead != 0 {
				t.Fatalf("%v: %d bytes are booked ahead", test.bandwidth, ahead)
			}
			at += test.gap
		}
	}
}

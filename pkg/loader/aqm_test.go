// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/cakectl/cakectl/pkg/rates"
)

const (
	testTarget   = 5 * time.Millisecond
	testInterval = 100 * time.Millisecond
)

// aqmLine is a line of 8 Mbit/s, so that a packet of 1,000 bytes takes a millisecond.
func aqmLine(t *testing.T, forwardHorizon time.Duration) *injected {
	settings := testSettings(8 * rates.Mbit)
	settings.ForwardHorizon = forwardHorizon
	settings.Tins[0].AQMTarget, settings.Tins[0].AQMInterval = testTarget, testInterval
	in := newInjected(t, Options{Queues: 1, Tins: 1, LinkHeaderBytes: 14}, settings)
	if err := in.forwarded.Set(true); err != nil {
		t.Fatal(err)
	}
	return in
}

// TestAQMFollowsCoDel floods the line with a forwarded flow that heeds nothing, and compares when
// signals come with CoDel's law: after an interval above the target, then each an interval over the
// square root of their number after the one before.
func TestAQMFollowsCoDel(t *testing.T) {
	in := aqmLine(t, 2*time.Second)
	const gap = 500 * time.Microsecond
	var signals []time.Duration
	above := time.Duration(-1)
	for at := time.Duration(0); at < 1500*time.Millisecond; at += gap {
		departure := in.send(packet{at: injectedEpoch + at, flow: 1, bytes: 1000, verdict: anyVerdict})
		if in.verdict == actShot {
			signals = append(signals, at)
		} else if above < 0 && departure-injectedEpoch-at > testTarget {
			above = at
		}
	}
	want := above + testInterval
	for n, at := range signals {
		// A signal waits for the next packet.
		if late := at - want; late < -gap || late > 2*gap {
			t.Fatalf("signal %d came at %v, CoDel has it at %v", n+1, at, want)
		}
		want = at + time.Duration(float64(testInterval)/math.Sqrt(float64(n+1)))
	}
	if len(signals) < 40 {
		t.Errorf("%d signals in 1.5 s, want 40 and more", len(signals))
	}
	counters, err := in.TinCounters(0)
	if err != nil {
		t.Fatal(err)
	}
	for reason, drops := range counters.Drops {
		want := uint64(0)
		if DropReason(reason).String() == "aqm" {
			want = uint64(len(signals))
		}
		if drops.Packets != want {
			t.Errorf("%d packets dropped for reason %v, want %d", drops.Packets, DropReason(reason), want)
		}
	}
}

func onesSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// TestAQMMarksWhatIsECNCapable looks at the frames that leave.
func TestAQMMarksWhatIsECNCapable(t *testing.T) {
	const ect0, ce = 2, 3
	in := aqmLine(t, time.Second)
	var marked uint64
	for at := time.Duration(0); at < 300*time.Millisecond; at += 500 * time.Microsecond {
		in.send(packet{at: injectedEpoch + at, bytes: 1000, frame: ipv4Frame(0, 1, 64, ect0)})
		switch ecn := in.frame[15] & 3; {
		case ecn == ce:
			marked++
		case ecn != ect0:
			t.Fatalf("ECN field %d, want ECT(0) or CE", ecn)
		}
		if sum := onesSum(in.frame[14:34]); sum != 0xffff {
			t.Fatalf("IPv4 checksum is wrong: %#x", sum)
		}
	}
	counters, err := in.TinCounters(0)
	if err != nil {
		t.Fatal(err)
	}
	if counters.ECNMarkedPackets != marked || marked < 3 {
		t.Errorf("counted %d marks, saw %d, want the same and 3 or more", counters.ECNMarkedPackets, marked)
	}
	if counters.Packets != 600 {
		t.Errorf("%d of 600 packets accepted", counters.Packets)
	}
}

// TestAQMSparesLocalSockets: what its own socket's buffer stops is neither marked nor dropped.
func TestAQMSparesLocalSockets(t *testing.T) {
	in := aqmLine(t, time.Second)
	if err := in.forwarded.Set(false); err != nil {
		t.Fatal(err)
	}
	const ect0 = 2
	for at := time.Duration(0); at < 500*time.Millisecond; at += 500 * time.Microsecond {
		in.send(packet{at: injectedEpoch + at, bytes: 1000, frame: ipv4Frame(0, 1, 64, ect0)})
		if in.frame[15]&3 != ect0 {
			t.Fatalf("a local packet was marked at %v", at)
		}
	}
}

// TestAQMLeavesShortQueuesAlone: bursts that drain within an interval are no standing queue, and a
// flow whose packets are far apart because its guarantee is small is not told for that.
func TestAQMLeavesShortQueuesAlone(t *testing.T) {
	t.Run("bursts", func(t *testing.T) {
		in := aqmLine(t, time.Second)
		for burst := range 20 {
			at := injectedEpoch + time.Duration(burst)*90*time.Millisecond
			for range 60 {
				in.send(packet{at: at, flow: 1, bytes: 1000})
			}
		}
	})
	t.Run("many flows", func(t *testing.T) {
		// 32 flows with one packet waiting each: 32 ms, far above the target.
		in := aqmLine(t, time.Second)
		closedLoop(t, in, manyFlows(32, 1000), 1, 0, 2*time.Second)
	})
}

// TestForwardedFlowsKeepSomePackets: a forwarded flow of a small share may have some packets waiting
// though they take longer than the horizon, and no more.
func TestForwardedFlowsKeepSomePackets(t *testing.T) {
	settings := testSettings(800 * rates.Kbit)
	in := newInjected(t, Options{Queues: 1, Tins: 1, LinkHeaderBytes: 14}, settings)
	if err := in.forwarded.Set(true); err != nil {
		t.Fatal(err)
	}
	accepted := 0
	for range 100 {
		for flow := range uint16(16) {
			in.send(packet{at: injectedEpoch, flow: flow + 1, bytes: 1000, verdict: anyVerdict})
			if in.verdict != actShot {
				accepted++
			}
		}
	}
	// A packet takes 10 ms, and 160 ms at a flow's guarantee; the horizon is 100 ms.
	if accepted < 3*16 || accepted > 6*16 {
		t.Errorf("%d packets of 16 flows were accepted, want 3 to 6 of each", accepted)
	}
}

func manyFlows(n, bytes int) []packet {
	flows := make([]packet, n)
	for i := range flows {
		flows[i] = packet{flow: uint16(i + 1), bytes: bytes}
	}
	return flows
}

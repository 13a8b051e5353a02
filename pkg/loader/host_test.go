// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/cakectl/cakectl/pkg/rates"
)

// between is a frame of a flow from one host to another, with IPv4 or IPv6 and UDP.
func between(source, destination string, port uint16) []byte {
	from, to := netip.MustParseAddr(source), netip.MustParseAddr(destination)
	udp := binary.BigEndian.AppendUint16(nil, port)
	udp = append(udp, 0x13, 0x89, 0, 8, 0, 0)
	frame := make([]byte, 12)
	if from.Is4() {
		frame = append(frame, 0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0)
	} else {
		frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64)
	}
	return append(append(append(frame, from.AsSlice()...), to.AsSlice()...), udp...)
}

// tunnelled is a frame within an IPv4 header of the same two ends, whatever it carries: IPIP, 6in4, GRE
// or VXLAN.
func tunnelled(kind string, frame []byte) []byte {
	packet := frame[14:]
	protocol := map[string]byte{"ipip": 4, "6in4": 41, "gre": 47, "vxlan": 17}[kind]
	var header []byte
	switch kind {
	case "gre":
		header = append([]byte{0, 0}, frame[12:14]...)
	case "vxlan":
		// The source port tells flows apart: senders make it of the inner packet's hash.
		header = []byte{0x80 + frame[29], frame[35], 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 7, 0}
		packet = frame
	}
	outer := between("192.0.2.1", "192.0.2.2", 0)[:34]
	outer[14+9] = protocol
	payload := append(header, packet...)
	binary.BigEndian.PutUint16(outer[16:], uint16(20+len(payload)))
	return append(outer, payload...)
}

// TestHostsShare: who gets how much of the line, over 8 queues, with the rates planned as the
// controller does it.
func TestHostsShare(t *testing.T) {
	const a, b = "10.0.0.1", "10.0.0.2"
	other := func(i int) string { return fmt.Sprintf("10.1.0.%d", 1+i) }
	// One flow, and then eight.
	flows := func(one []byte, eight func(i int) []byte) [][]byte {
		frames := [][]byte{one}
		for i := range 8 {
			frames = append(frames, eight(i))
		}
		return frames
	}
	bySource := flows(between(a, other(0), 1), func(i int) []byte { return between(b, other(0), uint16(i)) })
	byDestination := flows(between(other(0), a, 1), func(i int) []byte { return between(other(0), b, uint16(i)) })
	toMany := flows(between(a, other(9), 1), func(i int) []byte { return between(b, other(i), 1) })
	fromMany := flows(between(other(9), a, 1), func(i int) []byte { return between(other(i), b, 1) })
	v6 := flows(between("fd00::1", "fd00::9", 1), func(i int) []byte { return between("fd00::2", fmt.Sprintf("fd00::1%d", i), 1) })
	tests := []struct {
		name      string
		isolation Isolation
		frames    [][]byte
		one       float64 // what the one flow gets
	}{
		{"flows", IsolateFlows, bySource, 1.0 / 9},
		{"srchost", IsolateSrcHost, bySource, 0.5},
		{"srchost by destination", IsolateSrcHost, byDestination, 1.0 / 9},
		{"dsthost", IsolateDstHost, byDestination, 0.5},
		{"hosts", IsolateHosts, bySource, 0.5},
		{"hosts to many", IsolateHosts, toMany, 1.0 / 9},
		{"dual-srchost", IsolateDualSrcHost, bySource, 0.5},
		{"dual-srchost to many", IsolateDualSrcHost, toMany, 0.5},
		{"dual-srchost from many", IsolateDualSrcHost, fromMany, 1.0 / 9},
		{"dual-dsthost", IsolateDualDstHost, byDestination, 0.5},
		{"triple by source", IsolateTriple, toMany, 0.5},
		{"triple by destination", IsolateTriple, fromMany, 0.5},
		{"triple with IPv6", IsolateTriple, v6, 0.5},
	}
	for kind, inner := range map[string][][]byte{"ipip": bySource, "gre": bySource, "vxlan": bySource, "6in4": v6} {
		var frames [][]byte
		for _, frame := range inner {
			frames = append(frames, tunnelled(kind, frame))
		}
		tests = append(tests, struct {
			name      string
			isolation Isolation
			frames    [][]byte
			one       float64
		}{"dual-srchost in " + kind, IsolateDualSrcHost, frames, 0.5})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			settings := testSettings(40 * rates.Mbit)
			settings.Isolation = test.isolation
			in := newInjected(t, Options{Queues: 8, Tins: 1, LinkHeaderBytes: 14}, settings)
			var packets []packet
			for _, frame := range test.frames {
				packets = append(packets, packet{frame: frame, bytes: 1514})
			}
			got := sharesOf(t, in, packets)
			if math.Abs(got[0]-test.one) > test.one/12 {
				t.Errorf("the one flow got %.3f of the line, want %.3f", got[0], test.one)
			}
			if test.isolation < IsolateDualSrcHost && test.isolation != IsolateFlows {
				return // within a host it is first come, first served
			}
			for i, share := range got[1:] {
				want := (1 - test.one) / 8
				if math.Abs(share-want) > want/8 {
					t.Errorf("flow %d of eight got %.3f of the line, want %.3f", i, share, want)
				}
			}
		})
	}
}

// TestFlowsInTunnelsAreToldApart: by the kernel, which looks into these tunnels for the hash.
func TestFlowsInTunnelsAreToldApart(t *testing.T) {
	for kind, addresses := range map[string][2]string{
		"ipip": {"10.0.0.1", "10.0.0.2"}, "gre": {"10.0.0.1", "10.0.0.2"}, "6in4": {"fd00::1", "fd00::2"},
	} {
		in := oneTin(t, rates.Mbit)
		const flows = 5
		for port := range uint16(flows) {
			frame := tunnelled(kind, between(addresses[0], addresses[1], port))
			for range 5 { // enough for the flow to count
				in.send(packet{at: injectedEpoch, frame: frame, bytes: 1514})
			}
		}
		if got := in.activeFlows(); got != flows {
			t.Errorf("%s: %d flows count of %d in a tunnel", kind, got, flows)
		}
	}
}

// TestIsolationChanges under traffic: no packet overtakes another of its flow, and what is in force
// then is as if it had always been.
func TestIsolationChanges(t *testing.T) {
	settings := testSettings(40 * rates.Mbit)
	settings.Queues = 8
	in := newInjected(t, Options{Queues: 8, Tins: 1, LinkHeaderBytes: 14}, settings)
	var packets []packet
	for i := range 9 {
		packets = append(packets, packet{frame: between(fmt.Sprintf("10.0.0.%d", 1+min(i, 1)), "10.1.0.1", uint16(i)), bytes: 1514})
	}
	isolations := []Isolation{IsolateFlows, IsolateDualSrcHost, IsolateTriple, IsolateFlows, IsolateDualDstHost, IsolateDualSrcHost}
	next := 0
	closedLoopObserved(t, in, packets, 4, 0, time.Duration(len(isolations))*time.Second, func(since time.Duration) {
		if since < time.Duration(next)*time.Second || next == len(isolations) {
			return
		}
		settings.Isolation = isolations[next]
		if err := in.configure(settings, uint64(injectedEpoch+since)); err != nil {
			t.Fatal(err)
		}
		next++
	})
	state := in.deviceState()
	if flows, weight := state.Flows, state.Tins[0].Weight; flows != 9 || weight < flowWeight*19/10 || weight > flowWeight*21/10 {
		t.Errorf("9 flows of 2 hosts: %d count and weigh %.2f hosts", flows, float64(weight)/flowWeight)
	}
	// And nothing is left of either when they stop.
	if err := in.now.Set(uint64(injectedEpoch + time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := in.sweep.Run(&ebpf.RunOptions{Data: packets[0].frame}); err != nil {
		t.Fatal(err)
	}
	if state := in.deviceState(); state.Tins[0].Weight != 0 {
		t.Errorf("no flow counts, and they weigh %d", state.Tins[0].Weight)
	}
}

// flowWeight is FLOW_WEIGHT of bpf/types.h.
const flowWeight = 1 << 14

func (in *injected) deviceState() dataPathDeviceState {
	in.t.Helper()
	var state dataPathDeviceState
	if err := in.objects.Device.Lookup(uint32(0), &state); err != nil {
		in.t.Fatal(err)
	}
	return state
}

// sharesOf is what closed-loop senders get of the line, from a second after their start.
func sharesOf(t *testing.T, in *injected, packets []packet) []float64 {
	t.Helper()
	config := rates.Config{Bandwidth: 40 * rates.Mbit, Split: rates.SplitFlows, Tins: []rates.TinConfig{{Rate: 40 * rates.Mbit}}}
	planned := time.Duration(-1)
	bytes := closedLoopObserved(t, in, packets, 24, time.Second, 3*time.Second, func(since time.Duration) {
		if since-planned < 20*time.Millisecond {
			return
		}
		planned = since
		active, err := in.Active(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, grant := range rates.Plan(config, active) {
			if err := in.WriteCell(grant.Queue, grant.Tin, grant.Rate); err != nil {
				t.Fatal(err)
			}
		}
	})
	total := 0
	for _, n := range bytes {
		total += n
	}
	if line := float64(total) / 1e7; line < 0.99 || line > 1.01 {
		t.Errorf("all flows got %.3f of the line", line)
	}
	shares := make([]float64, len(bytes))
	for i, n := range bytes {
		shares[i] = float64(n) / float64(total)
	}
	return shares
}

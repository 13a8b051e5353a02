// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cakectl/cakectl/pkg/rates"
)

func TestSizeFQ(t *testing.T) {
	const (
		kernelBuffer = 212_992
		second       = 1_000_000_000
		gib          = 1 << 30
	)
	for _, c := range []struct {
		name                   string
		sizing                 Sizing
		limit, flow, horizonNs uint64
	}{
		// 2 x 212992 / 512 = 832 packets a socket; 10 Mbit/s x 1 s / 64 B = 19531; 64 x 416 = 26624.
		{"slow", Sizing{10 * rates.Mbit, second, second / 10, kernelBuffer, kernelBuffer, 0}, 26_624, 1953, 10 * second},
		// 200 Mbit/s x 8 s / 64 B; forwarded 200 Mbit/s x 0.1 s / 64 B.
		{"long horizon", Sizing{200 * rates.Mbit, 8 * second, second / 10, kernelBuffer, kernelBuffer, 0}, 3_125_000, 39_062, 16 * second},
		// 1 GiB / 8 / 2304.
		{"little memory", Sizing{200 * rates.Mbit, 8 * second, second / 10, kernelBuffer, kernelBuffer, gib}, 58_254, 39_062, 16 * second},
		// The kernel's own limit is the least.
		{"hardly any memory", Sizing{200 * rates.Mbit, 8 * second, second / 10, kernelBuffer, kernelBuffer, gib / 64}, 10_000, 10_000, 16 * second},
		// 2 x 4194304 / 512.
		{"large buffers", Sizing{64 * rates.Kbit, 2 * second, second / 10, kernelBuffer, 4 << 20, 0}, 26_624, 16_384, 10 * second},
		{"fast", Sizing{400 * rates.Gbit, 2 * second, second / 10, kernelBuffer, kernelBuffer, 0}, 1 << 22, 1 << 22, 10 * second},
		{"unlimited", Sizing{rates.Unlimited, 2 * second, second / 10, kernelBuffer, kernelBuffer, 0}, 26_624, 832, 10 * second},
	} {
		want := FQOptions{
			LimitPackets: uint32(c.limit), FlowLimitPackets: uint32(c.flow), HorizonNs: c.horizonNs,
			Buckets: 4096, OrphanMask: 65535, HorizonPolicy: HorizonCap,
		}
		if d := cmp.Diff(want, SizeFQ(c.sizing)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestSizeFQNeverDropsFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Sizing{
			Bandwidth:              rates.Rate(rapid.Uint64Range(uint64(rates.MinBandwidth), uint64(rates.MaxBandwidth)).Draw(t, "bandwidth")),
			LocalHorizonNs:         rapid.Uint64Range(0, 60e9).Draw(t, "local"),
			ForwardHorizonNs:       rapid.Uint64Range(0, 1e9).Draw(t, "forward"),
			SendBufferDefaultBytes: rapid.Uint64Range(4608, 16<<20).Draw(t, "default"),
			SendBufferMaxBytes:     rapid.Uint64Range(4608, 256<<20).Draw(t, "max"),
		}
		o := SizeFQ(s)
		if o.FlowLimitPackets > o.LimitPackets {
			t.Errorf("flow limit %d above limit %d", o.FlowLimitPackets, o.LimitPackets)
		}
		if o.HorizonNs < s.LocalHorizonNs || o.HorizonNs < s.ForwardHorizonNs {
			t.Errorf("horizon %d ns is short", o.HorizonNs)
		}
		if o.LimitPackets == maxLimitPackets {
			return
		}
		if socket := 2 * s.SendBufferMaxBytes / minChargeBytes; uint64(o.FlowLimitPackets) < socket {
			t.Errorf("flow limit %d, a socket holds %d", o.FlowLimitPackets, socket)
		}
		backlog := float64(s.Bandwidth) / 8 * float64(max(s.LocalHorizonNs, s.ForwardHorizonNs)) / 1e9
		if float64(o.LimitPackets) < backlog/minPacketBytes-1 {
			t.Errorf("limit %d, %g bytes wait", o.LimitPackets, backlog)
		}
	})
}

func TestFQOptionsEncode(t *testing.T) {
	if b := (FQOptions{}).encode(); len(b) != 0 {
		t.Errorf("no options are %x", b)
	}
	options := FQOptions{
		LimitPackets: 1, FlowLimitPackets: 2, QuantumBytes: 3, Buckets: 1024, OrphanMask: 5,
		HorizonNs: 1001, HorizonPolicy: HorizonCap, TimerSlackNs: 7,
	}
	shown := options.encode()
	if diff, err := options.diff(shown); err != nil || len(diff) > 0 {
		t.Errorf("an encoding differs from itself: %q, %v", diff, err)
	}
	other := options
	other.LimitPackets, other.Buckets, other.HorizonNs, other.HorizonPolicy = 9, 2048, 2001, HorizonDrop
	diff, err := other.diff(shown)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"limit is 1, want 9", "buckets_log is 10, want 11", "horizon_us is 2, want 3", "horizon_drop is 0, want 1"}
	if d := cmp.Diff(want, diff); d != "" {
		t.Error(d)
	}
	if _, err := options.diff([]byte{2, 0, 1, 0}); err == nil {
		t.Error("a broken attribute was read without an error")
	}
	forever := FQOptions{HorizonNs: 1 << 63}
	if got := forever.attrs()[0].value; got != 1<<32-1 {
		t.Errorf("the longest horizon is %d us", got)
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

func exampleStatus() api.Status {
	bps := func(r rates.Rate) api.BitsPerSec { return api.BitsPerSec(r) }
	changed := time.Date(2026, 11, 30, 20, 15, 2, 0, time.Local)
	const bandwidth = 200 * rates.Mbit
	tin := func(name string, rate, ceil rates.Rate) api.Tin {
		return api.Tin{Name: name, Rate: bps(rate), Ceil: bps(ceil), DroppedPackets: map[string]uint64{"horizon": 0}}
	}
	s := api.Status{
		Device: "eth0", Enforcing: true, Attach: "tcx", RootQdisc: "mq", Bandwidth: bps(bandwidth),
		Diffserv: "diffserv4", Split: "flows", Isolation: "triple", Queues: api.Queues{Total: 8, Active: 6}, Daemon: 4711,
		Framing: framing.Framing{OverIP: true, OverheadBytes: 18, MPUBytes: 64},
		Classes: api.Classes{
			Map:        []tins.Rule{{Field: tins.DSCP, From: 10, To: 14, Tin: "bulk"}, {Field: tins.Mark, From: 16, To: 16, Tin: "voice"}},
			FwmarkMask: 0xff00, InnerDSCP: true, Wash: true,
		},
		Bypassed:  map[string]uint64{"not_ip": 12, "malformed": 0},
		Foresight: api.Foresight{Matched: map[string]uint64{"hash": 999_000}, Mismatched: map[string]uint64{"xps": 1000}},
		Controller: api.Controller{
			Events: 9, Recomputes: 10, UnchangedRecomputes: 1, RateWrites: 40, EventsLost: 2, LastChange: &changed,
		},
		Tins: []api.Tin{
			tin("bulk", 12_500_000, 20*rates.Mbit), tin("best_effort", bandwidth, bandwidth),
			tin("video", 100*rates.Mbit, bandwidth), tin("voice", 50*rates.Mbit, bandwidth),
		},
	}
	bulk, best := &s.Tins[0], &s.Tins[1]
	bulk.ActiveQueues, bulk.ActiveFlows, bulk.SentBytes, bulk.SentPackets = 1, 1, 64000, 1000
	bulk.Sojourn = api.Sojourn{P50: 1.024e-6, P99: 2.097152}
	bulk.Queues = []api.TinQueue{{Queue: 7, EffectiveRate: bps(12_500_000), Active: true, ActiveFlows: 1}}
	best.ActiveQueues, best.ActiveFlows, best.SentBytes, best.SentPackets, best.DelayedPackets = 5, 31, 18_446_744_073_709, 12_184_110_000, 12_000_000_000
	best.DroppedPackets["horizon"] = 3
	best.Sojourn = api.Sojourn{P50: 0.004194304, P99: 0.033554432}
	for _, queue := range []int{0, 1, 2, 4} {
		best.Queues = append(best.Queues, api.TinQueue{Queue: queue, EffectiveRate: bps(37_500_000), Active: true, ActiveFlows: 6})
	}
	best.Queues = append(best.Queues,
		api.TinQueue{Queue: 5, EffectiveRate: bps(43_750_000), Active: true, ActiveFlows: 7},
		api.TinQueue{Queue: 6, Active: true, ActiveFlows: 1}) // not in the plan yet
	return s
}

func TestPrintStatus(t *testing.T) {
	const want = `eth0: 200mbit (overhead 18 mpu 64), diffserv4, split by flows, isolation triple, 8 transmit queues by tcx under mq
enforcing: yes
classes: dscp:10-14=bulk, mark:0x10=voice, fwmark 0xff00, inner DSCP, wash
active: 6 queues, 32 flows
controller: process 4711; 9 events, 10 recomputes (1 without a change), 40 rate writes, 2 events lost; last change 2026-11-30 20:15:02
passed unshaped: 12 packets (not_ip)
queues foreseen: 99.9% of 1000000 packets checked

                   bulk     best_effort    video    voice
rate           12.5mbit         200mbit  100mbit   50mbit
ceil             20mbit         200mbit  200mbit  200mbit
active queues         1               5        0        0
flows                 1              31        0        0
sent bytes        64000  18446744073709        0        0
packets            1000     12184110000        0        0
delayed               0     12000000000        0        0
ecn marked            0               0        0        0
drop horizon          0               3        0        0
sojourn p50     <=1.0us         <=4.2ms        -        -
sojourn p99      <=2.1s          <=34ms        -        -

effective rates
bulk           queue 7 12.5mbit
best_effort    queues 0-2,4 37.5mbit, queue 5 43.75mbit
`
	var got strings.Builder
	if err := printStatus(&got, exampleStatus()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPrintStatusOfABrokenDevice(t *testing.T) {
	const want = `eth1: 64kbit, besteffort, 1 transmit queue by clsact under no qdisc
enforcing: NO: the device is gone
active: 0 queues, 0 flows
controller: no process (rates stay as they are); 0 events, 0 recomputes (0 without a change), 0 rate writes
`
	var got strings.Builder
	err := printStatus(&got, api.Status{
		Device: "eth1", Reason: "the device is gone", Attach: "clsact", Bandwidth: 64000,
		Diffserv: "besteffort", Split: "flows", Isolation: "flows", Queues: api.Queues{Total: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTinRates(t *testing.T) {
	status := exampleStatus()
	status.Bandwidth = api.BitsPerSec(rates.Unlimited)
	for i := range status.Tins {
		status.Tins[i].Rate, status.Tins[i].Ceil = status.Bandwidth, status.Bandwidth
	}
	if got, want := tinRates(status), "no tin has a limit"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	status.Tins[0].Ceil = api.BitsPerSec(5 * rates.Mbit)
	if got, want := tinRates(status), "bulk at most 5mbit"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPrintStatuses(t *testing.T) {
	const want = `DEVICE  BANDWIDTH  TINS       HOOK  QUEUES  ACTIVE  FLOWS  DAEMON  ENFORCING
eth0    200mbit    diffserv4  tcx   8       6       32     4711    yes
eth1    unlimited  diffserv4  tcx   8       6       32     none    NO: the root qdisc is pfifo
`
	broken := exampleStatus()
	broken.Device, broken.Daemon, broken.Enforcing, broken.Reason = "eth1", 0, false, "the root qdisc is pfifo"
	broken.Bandwidth = api.BitsPerSec(rates.Unlimited)
	var got strings.Builder
	if err := printStatuses(&got, []api.Status{exampleStatus(), broken}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWatchLine(t *testing.T) {
	const want = `time            bulk  best_effort       video       voice  queues  flows  recomputes  writes  drops
20:15:03   1.024mbit    195.1mbit           -           -       6     32           2       8      1
20:15:03           -            -           -           -       6     32           0       0      0  NOT ENFORCING: gone
`
	before, after, broken := exampleStatus(), exampleStatus(), exampleStatus()
	after.Tins[0].SentBytes += 64_000
	after.Tins[1].SentBytes += 12_194_321
	after.Tins[1].DroppedPackets = map[string]uint64{"horizon": 4}
	after.Controller.Recomputes += 2
	after.Controller.RateWrites += 8
	broken.Enforcing, broken.Reason = false, "gone"
	at := time.Date(2026, 11, 30, 20, 15, 3, 0, time.Local)
	got := watchHeader(after) + "\n" +
		watchLine(before, after, at, 500*time.Millisecond) + "\n" +
		watchLine(before, broken, at, time.Second) + "\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRoundRate(t *testing.T) {
	for bitsPerSecond, want := range map[float64]string{
		0: "-", 0.9: "-", 1: "1bit", 999: "999bit", 1234: "1.234kbit", 123_456: "123.5kbit",
		99_999_999: "100mbit", 399_987_654_321: "400gbit",
	} {
		if got := roundRate(bitsPerSecond); got != want {
			t.Errorf("%g: %s, want %s", bitsPerSecond, got, want)
		}
	}
}

func TestRanges(t *testing.T) {
	for want, numbers := range map[string][]int{
		"": nil, "0": {0}, "0-1": {0, 1}, "0-2,4,6-7": {0, 1, 2, 4, 6, 7}, "3,5,9": {3, 5, 9},
	} {
		if got := ranges(numbers); got != want {
			t.Errorf("%v: %q, want %q", numbers, got, want)
		}
	}
}

func TestNearNames(t *testing.T) {
	names := []string{"lo", "eth0", "eth1", "eth10", "enp3s0f0", "enp3s0f1", "wlan0", "a"}
	for name, want := range map[string][]string{
		"l0":       {"lo"},
		"eht0":     {"eth0"},
		"eth":      {"eth0", "eth1"},
		"eth2":     {"eth0", "eth1"},
		"enp3s0":   {"enp3s0f0", "enp3s0f1"},
		"emp3s0f1": {"enp3s0f1", "enp3s0f0"},
		"wan0":     {"wlan0"},
		"bond0":    nil,
		"ppp7":     nil,
	} {
		if diff := cmp.Diff(want, nearNames(name, names)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestEditDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"eth0", "eth0", 0}, {"", "lo", 2}, {"eth0", "eht0", 1}, {"eth0", "eth10", 1},
		{"eth0", "th0", 1}, {"eth0", "eth1", 1}, {"kitten", "sitting", 3},
	} {
		if got := editDistance(test.a, test.b); got != test.want {
			t.Errorf("%q, %q: %d, want %d", test.a, test.b, got, test.want)
		}
		if got := editDistance(test.b, test.a); got != test.want {
			t.Errorf("%q, %q: %d, want %d", test.b, test.a, got, test.want)
		}
	}
}

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		"a: b":                      "a: b",
		"a: b\nc\r\n\nd":            "a: b; c; d",
		"1\n2\n3\n4\n5\n6\n7\n8":    "1; 2; 3; 4; 5; 6; 7; 8",
		"1\n2\n3\n4\n5\n6\n7\n8\n9": "1; ... 5 lines, which --log-level debug shows; 7; 8; 9",
	} {
		if got := oneLine(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/rates"
)

func TestTopScreen(t *testing.T) {
	before := exampleStatus()
	before.Queues.Counters = make([]api.QueueCounters, 8)
	after := exampleStatus()
	after.Queues.Counters = slices.Clone(before.Queues.Counters)
	after.Queues.Counters[0].Bytes, after.Queues.Counters[3].Bytes = 50_000_000, 1000
	after.Tins = slices.Clone(after.Tins)
	best := &after.Tins[1]
	best.SentBytes += 50_000_000
	best.SentPackets += 40_000
	best.DelayedPackets += 30_000
	best.DroppedPackets = map[string]uint64{"horizon": 13}
	sojourns := func(counts ...uint64) api.Sojourn {
		return api.Sojourn{Buckets: []api.SojournBucket{
			{LE: 0.016777216, Cumulative: counts[0]}, {LE: 0.033554432, Cumulative: counts[1]}, {LE: api.Seconds(math.Inf(1)), Cumulative: counts[2]},
		}}
	}
	before.Tins[1].Sojourn, best.Sojourn = sojourns(5_000_000, 5_000_000, 5_000_010), sojourns(5_039_599, 5_039_600, 5_040_010)
	before.Tins[3].Sojourn, after.Tins[3].Sojourn = sojourns(7, 7, 7), sojourns(7, 7, 9)
	other := api.Status{Device: "wan0", Reason: "not attached: there is no such device yet", Diffserv: "diffserv3", Bandwidth: api.BitsPerSec(rates.Gbit)}
	view := top{
		before: []api.Status{before}, after: []api.Status{after, other}, device: "eth0",
		beforeAt: time.Date(2026, 11, 30, 20, 15, 0, 0, time.Local), afterAt: time.Date(2026, 11, 30, 20, 15, 2, 0, time.Local),
	}
	const want = `20:15:02  2 devices

eth0: 200mbit (overhead 18 mpu 64), diffserv4, split by flows, isolation triple, 8 transmit queues by tcx under mq
          tin    sends      rate     ceil  queues  flows  packets/s  delayed/s  marked/s  dropped/s     p99
         bulk        -  12.5mbit   20mbit       1      1          0          0         0          0       -
  best_effort  200mbit   200mbit  200mbit       5     31      20000      15000         0          5  <=34ms
        video        -   100mbit  200mbit       0      0          0          0         0          0       -
        voice        -    50mbit  200mbit       0      0          0          0         0          0   >34ms
          all  200mbit   200mbit                6     32

queue  sends    effective rates
0      200mbit  best_effort 37.5mbit
1      -        best_effort 37.5mbit
2      -        best_effort 37.5mbit
3      4kbit
4      -        best_effort 37.5mbit
5      -        best_effort 43.75mbit
7      -        bulk 12.5mbit

wan0: 1gbit, diffserv3
NOT ENFORCING: not attached: there is no such device yet
`
	if diff := cmp.Diff(want, view.screen()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTopWithoutATerminal(t *testing.T) {
	s := newShell(t)
	stdout, _ := s.run(exitDone, "top")
	wantContains(t, stdout, "  no device is attached\n")
	s.host.attachSpec("lo", rates.Gbit)
	stdout, _ = s.run(exitDone, "top", "lo")
	wantContains(t, stdout, "lo: 1gbit, diffserv4", "best_effort", "queue  sends")
	s.run(exitNotAttached, "top", "eth0")
}

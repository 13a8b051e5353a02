// SPDX-License-Identifier: BSD-2-Clause

package control

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/cakectl/cakectl/pkg/rates"
)

// TestFlappingQueues is [TestFlappingQueue] on the running kernel: five packets each millisecond, of 32
// queues in turns. The data path lets flows count for a while after their packets, so few of them
// are events; the first ones are.
func TestFlappingQueues(t *testing.T) {
	const (
		queues    = 32
		bandwidth = 100 * rates.Mbit
		duration  = time.Second
	)
	datapath, events := attached(t, queues, bandwidth, time.Millisecond)
	c := New(datapath, Options{Config: oneTin(bandwidth), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error, 1)
	began := time.Now()
	go func() { ran <- c.Run(ctx, events) }()
	sendInTurns(t, queues, time.Millisecond)
	for time.Since(began) < duration || c.Counters().Events == 0 {
		select {
		case err := <-ran:
			t.Fatalf("the loop ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	counters, took := c.Counters(), time.Since(began)
	// What TestStormOfEventsIsLimited finds in injected time.
	if n := totalRecomputes(counters); float64(n) > recomputeBurst+recomputesPerSecond*took.Seconds() {
		t.Errorf("%d recomputes in %v", n, took)
	}
	t.Logf("%d events, %d recomputes, %d writes in %v", counters.Events, totalRecomputes(counters), counters.RateWrites, took)
}

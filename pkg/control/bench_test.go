// SPDX-License-Identifier: BSD-2-Clause

package control

import (
	"context"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/rates"
)

// BenchmarkReactionOnBusyCPUs measures the time from a packet that makes a queue active, or the timer
// that finds one idle, to the rates that this leads to being written: on the running kernel, with a
// process that computes on every CPU. `make bench-controller` runs it.
func BenchmarkReactionOnBusyCPUs(b *testing.B) {
	const (
		queues    = 32
		bandwidth = 10 * rates.Mbit
		// A queue counts as idle two epochs after its last packet has left.
		epoch = time.Millisecond
	)
	testnet.Enter(b)
	device := testnet.Veth(b, queues)
	datapath, err := loader.Load(loader.Options{Queues: queues, Tins: 1, LinkHeaderBytes: 14})
	if err != nil {
		b.Fatal(err)
	}
	defer datapath.Close()
	err = datapath.Configure(loader.Settings{
		Bandwidth: bandwidth, LocalHorizon: time.Second, ForwardHorizon: time.Second, FullPacketBytes: 1514,
		Epoch: epoch, EqualFlows: true, Queues: queues, Tins: []loader.TinSettings{{Rate: bandwidth, Ceil: rates.Unlimited}},
	})
	if err != nil {
		b.Fatal(err)
	}
	attachment, err := datapath.Attach(device, "")
	if err != nil {
		b.Fatal(err)
	}
	defer datapath.Detach(device, attachment, filepath.Join(b.TempDir(), "none"))
	events, err := datapath.Events()
	if err != nil {
		b.Fatal(err)
	}
	defer events.Close()
	senders := make([]net.Conn, queues)
	for i := range senders {
		if senders[i], err = net.Dial("udp", net.JoinHostPort(testnet.PeerAddress, strconv.Itoa(2000+i))); err != nil {
			b.Fatal(err)
		}
		defer senders[i].Close()
	}
	for range runtime.NumCPU() {
		busy := exec.CommandContext(b.Context(), "sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			b.Fatal(err)
		}
		defer func() {
			_ = busy.Process.Kill()
			_ = busy.Wait()
		}()
	}

	reacted := make(chan time.Duration, b.N+1)
	c := New(datapath, Options{
		Config:  oneTin(bandwidth),
		Reacted: func(took time.Duration) { reacted <- took },
		Log:     slog.New(slog.DiscardHandler),
	})
	c.limiter = rate.NewLimiter(rate.Inf, 0) // which would make 10,000 of them take a quarter of an hour
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, events) }()
	payload := make([]byte, 1400)
	var took []time.Duration
	pause := time.NewTicker(4 * epoch) // half of what the bandwidth carries
	defer pause.Stop()
	for i := 0; len(took) < b.N; {
		select {
		case t := <-reacted:
			took = append(took, t)
		case <-pause.C:
			for range 2 { // the second has the first before it, so that the flow counts
				if _, err := senders[i%queues].Write(payload); err != nil {
					b.Fatal(err)
				}
			}
			i++
		}
	}
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
	slices.Sort(took)
	report := func(quantile float64, unit string) {
		at := int(quantile * float64(len(took)-1))
		b.ReportMetric(float64(took[at].Microseconds()), unit)
	}
	report(0.5, "us-p50")
	report(0.99, "us-p99")
	report(1, "us-max")
}

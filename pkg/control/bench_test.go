// SPDX-License-Identifier: BSD-2-Clause

package control

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
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
	datapath, events := attached(b, queues, bandwidth, epoch)
	for range runtime.NumCPU() {
		runBeside(b, exec.Command("sh", "-c", "while :; do :; done"))
	}
	// Half of what the bandwidth carries, and from another process: the daemon sends nothing.
	sendInTurns(b, queues, 4*epoch)

	var took []time.Duration
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	c := New(datapath, Options{
		Config: oneTin(bandwidth),
		Reacted: func(t time.Duration) {
			if took = append(took, t); len(took) == b.N {
				cancel()
			}
		},
		Log: slog.New(slog.DiscardHandler),
	})
	c.limiter = rate.NewLimiter(rate.Inf, 0) // which would make 10,000 of them take a quarter of an hour
	if err := c.Run(ctx, events); err != nil {
		b.Fatal(err)
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

// attached is a data path with one tin at work on a device.
func attached(t testing.TB, queues int, bandwidth rates.Rate, epoch time.Duration) (*loader.DataPath, *loader.Events) {
	t.Helper()
	testnet.Enter(t)
	device := testnet.Veth(t, queues)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	datapath, err := loader.Load(loader.Options{Queues: queues, Tins: 1, LinkHeaderBytes: 14})
	must(err)
	t.Cleanup(func() { datapath.Close() })
	must(datapath.Configure(loader.Settings{
		Bandwidth: bandwidth, LocalHorizon: time.Second, ForwardHorizon: time.Second, FullPacketBytes: 1514,
		Epoch: epoch, EqualFlows: true, Queues: queues, Tins: []loader.TinSettings{{Rate: bandwidth, Ceil: rates.Unlimited}},
	}))
	attachment, err := datapath.Attach(device, "")
	must(err)
	t.Cleanup(func() { datapath.Detach(device, attachment, filepath.Join(t.TempDir(), "none")) })
	events, err := datapath.Events()
	must(err)
	t.Cleanup(func() { events.Close() })
	return datapath, events
}

// runBeside runs a command until the test ends: in a session of its own, as services are. Kernels with
// CONFIG_SCHED_AUTOGROUP share the CPUs out by session.
func runBeside(t testing.TB, command *exec.Cmd) {
	t.Helper()
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
}

// sendInTurns lets flows send in turns, from another process, until the test ends.
func sendInTurns(t testing.TB, flows int, pause time.Duration) {
	t.Helper()
	sender := exec.Command(os.Args[0])
	sender.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", senderVariable, flows, pause))
	runBeside(t, sender)
}

// senderVariable makes the test binary a sender: a number of flows, and the pause from one to the next.
const senderVariable = "CAKECTL_BENCH_SENDER"

func TestMain(m *testing.M) {
	if task := os.Getenv(senderVariable); task != "" {
		fmt.Fprintln(os.Stderr, send(task))
		os.Exit(1)
	}
	m.Run()
}

// send lets flows send in turns until the process ends, five packets at a time: enough for a flow to
// count.
func send(task string) error {
	var flows int
	var pause string
	if _, err := fmt.Sscan(task, &flows, &pause); err != nil {
		return err
	}
	gap, err := time.ParseDuration(pause)
	if err != nil {
		return err
	}
	senders := make([]net.Conn, flows)
	for i := range senders {
		if senders[i], err = net.Dial("udp", net.JoinHostPort(testnet.PeerAddress, strconv.Itoa(2000+i))); err != nil {
			return err
		}
	}
	payload := make([]byte, 1400)
	for i := 0; ; i++ {
		for range 5 {
			if _, err := senders[i%flows].Write(payload); err != nil {
				return err
			}
		}
		time.Sleep(gap)
	}
}

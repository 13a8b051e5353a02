// SPDX-License-Identifier: BSD-2-Clause

// Command cakectl shapes the traffic of multi-queue NICs. Each verb has a file of its own; root.go
// has what they share, daemon.go what attach becomes when the device is attached.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	os.Exit(realMain())
}

func realMain() int {
	ctx, stop := withSignals(context.Background())
	defer stop()
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr, kernelShapers)
}

// interrupted is the cause of a context that a signal ended.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return "interrupted by " + unix.SignalName(i.signal) }

// exitStatus is what a shell makes of a process that the signal ends.
func (i interrupted) exitStatus() int { return 128 + int(i.signal) }

// withSignals gives a context that the first signal ends, so that what was begun can be undone. The
// second signal ends the process at once.
func withSignals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		cancel(interrupted{(<-signals).(syscall.Signal)})
		os.Exit(interrupted{(<-signals).(syscall.Signal)}.exitStatus())
	}()
	return ctx, func() { signal.Stop(signals) }
}

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

	"github.com/cakectl/cakectl/pkg/daemon"
)

func main() {
	os.Exit(realMain())
}

func realMain() int {
	ctx, stop := withSignals(context.Background())
	defer stop()
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr, daemon.KernelShapers)
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
	hangups := make(chan os.Signal, 2)
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signal.Notify(hangups, syscall.SIGHUP)
	}
	next := func() interrupted {
		select {
		case s := <-signals:
			return interrupted{s.(syscall.Signal)}
		case s := <-hangups:
			return interrupted{s.(syscall.Signal)}
		}
	}
	go func() {
		cancel(next())
		os.Exit(next().exitStatus())
	}()
	ctx = context.WithValue(ctx, hangupsKey{}, hangups)
	return ctx, func() { signal.Stop(signals); signal.Stop(hangups) }
}

type hangupsKey struct{}

// takeHangups has SIGHUP come by a channel, and end the process no more, until stop is called.
func takeHangups(ctx context.Context) (hangups <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	if before, ok := ctx.Value(hangupsKey{}).(chan os.Signal); ok {
		signal.Stop(before)
	}
	return c, func() { signal.Stop(c) }
}

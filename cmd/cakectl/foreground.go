// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"net"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/daemon"
	"github.com/cakectl/cakectl/pkg/metrics"
)

// foreground is what attach becomes: the daemon of one device, and somebody to look at.
type foreground struct {
	app       *app
	name      string
	device    *daemon.Device
	collector *metrics.Collector
}

var _ metrics.Source = (*foreground)(nil)

func newForeground(a *app, name string, device daemon.Shaped) *foreground {
	f := &foreground{app: a, name: name}
	f.collector = metrics.New(f, build(), a.env.Log)
	recorder := f.collector.Recorder(name)
	recorder.Changed(metrics.SourceCLI, metrics.ResultOK)
	f.device = daemon.NewDevice(device, recorder)
	return f
}

// serve runs until ctx ends, a client detaches the device, or something fails. Then it detaches the
// device, unless that is done or it is to be kept.
func (f *foreground) serve(ctx context.Context, claim *api.Listener, metricsListener net.Listener, keep bool) error {
	// A reader of our output that goes away must not take the shaping with it.
	signal.Ignore(syscall.SIGPIPE)
	err := f.run(ctx, claim, metricsListener, keep)
	if errors.Is(err, daemon.ErrDetached) {
		err = nil
	}
	return errors.Join(err, f.leave(context.WithoutCancel(ctx), keep), f.device.Close())
}

func (f *foreground) run(ctx context.Context, claim *api.Listener, metricsListener net.Listener, keep bool) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.device.Run(ctx) })
	group.Go(func() error {
		return claim.Serve(ctx, api.Server{Device: f.device, Classify: daemon.KindOf, Netns: f.app.netns, Log: f.app.env.Log})
	})
	if metricsListener != nil {
		group.Go(func() error { return f.collector.Serve(ctx, metricsListener) })
	}
	group.Go(func() error {
		if err := f.announce(ctx, metricsListener, keep); err != nil {
			return err
		}
		tidyUp()
		if isTerminal(f.app.stdout) {
			f.watch(ctx)
		}
		return nil
	})
	return group.Wait()
}

// announce says what was done, and how to go on.
func (f *foreground) announce(ctx context.Context, metricsListener net.Listener, keep bool) error {
	status, err := f.device.Status(ctx)
	if err != nil {
		return err
	}
	if f.device.Adopted() {
		f.app.say("%s: adopted; its clocks and counters go on", f.name)
	}
	f.app.say("%s: %s", f.name, shapedTo(status))
	f.app.say("%s: %s", f.name, tinRates(status))
	if metricsListener != nil {
		f.app.say("%s: metrics on http://%s/metrics", f.name, metricsListener.Addr())
	}
	if !status.Enforcing {
		f.app.say("%s: NOT ENFORCING: %s", f.name, status.Reason)
	}
	if keep {
		f.app.say("%s: Ctrl-C ends this process and leaves the shaping on", f.name)
	} else {
		f.app.say("%s: Ctrl-C detaches it", f.name)
	}
	return nil
}

// leave ends the shaping, unless it is to be kept.
func (f *foreground) leave(ctx context.Context, keep bool) error {
	left, err := f.device.Leave(ctx, keep)
	switch {
	case err != nil:
		return err
	case left == daemon.LeftByClient:
		f.app.say("%s: another cakectl detached it", f.name)
	case left == daemon.LeftKept:
		f.app.say("%s: shaping goes on without a process; cakectl attach %[1]s adopts it, cakectl detach %[1]s ends it", f.name)
	default:
		f.app.say("%s: detached, and as it was found", f.name)
	}
	return nil
}

// Statuses is for the metrics.
func (f *foreground) Statuses(ctx context.Context) ([]api.Status, error) {
	status, err := f.device.Status(ctx)
	if err != nil {
		return nil, err
	}
	return []api.Status{status}, nil
}

// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"net"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/metrics"
)

// daemon is what attach becomes: the controller of a device, and the one who answers for it.
type daemon struct {
	app    *app
	name   string
	device shaped

	collector *metrics.Collector
	recorder  *metrics.Recorder

	stopController func()        // and wait for its end
	end            func()        // ends serve
	mu             sync.Mutex    // guards what follows, and is held while a client detaches
	asked          bool          // a client asked to detach
	detached       error         // how that ended
	controllerDone chan struct{} // closed
}

var (
	_ api.Device     = (*daemon)(nil)
	_ metrics.Source = (*daemon)(nil)
)

func newDaemon(a *app, name string, device shaped) *daemon {
	d := &daemon{app: a, name: name, device: device, controllerDone: make(chan struct{})}
	d.collector = metrics.New(d, build(), a.env.Log)
	d.recorder = d.collector.Recorder(name)
	d.recorder.Changed(metrics.SourceCLI, metrics.ResultOK)
	device.OnReaction(d.recorder.Reacted)
	return d
}

// serve runs until ctx ends, a client detaches the device, or something fails. Then it detaches the
// device, unless that is done or it is to be kept.
func (d *daemon) serve(ctx context.Context, claim *api.Listener, metricsListener net.Listener, keep bool) error {
	// A reader of our output that goes away must not take the shaping with it.
	signal.Ignore(syscall.SIGPIPE)
	err := d.run(ctx, claim, metricsListener, keep)
	return errors.Join(err, d.leave(context.WithoutCancel(ctx), keep), d.device.Close())
}

func (d *daemon) run(ctx context.Context, claim *api.Listener, metricsListener net.Listener, keep bool) error {
	ctx, d.end = context.WithCancel(ctx)
	defer d.end()
	group, ctx := errgroup.WithContext(ctx)
	controllerCtx, cancel := context.WithCancel(ctx)
	d.stopController = func() {
		cancel()
		<-d.controllerDone
	}
	group.Go(func() error {
		defer close(d.controllerDone)
		return d.device.Run(controllerCtx)
	})
	group.Go(func() error {
		return claim.Serve(ctx, api.Server{Device: d, Classify: kindOf, Log: d.app.env.Log})
	})
	if metricsListener != nil {
		group.Go(func() error { return d.collector.Serve(ctx, metricsListener) })
	}
	group.Go(func() error {
		if err := d.announce(ctx, metricsListener, keep); err != nil {
			return err
		}
		if isTerminal(d.app.stdout) {
			d.watch(ctx)
		}
		return nil
	})
	return group.Wait()
}

// announce says what was done, and how to go on.
func (d *daemon) announce(ctx context.Context, metricsListener net.Listener, keep bool) error {
	status, err := d.device.Status(ctx)
	if err != nil {
		return err
	}
	if d.device.Adopted() {
		d.app.say("%s: adopted; its clocks and counters go on", d.name)
	}
	d.app.say("%s: %s", d.name, shapedTo(status))
	d.app.say("%s: %s", d.name, tinRates(status))
	if metricsListener != nil {
		d.app.say("%s: metrics on http://%s/metrics", d.name, metricsListener.Addr())
	}
	if !status.Enforcing {
		d.app.say("%s: NOT ENFORCING: %s", d.name, status.Reason)
	}
	if keep {
		d.app.say("%s: Ctrl-C ends this process and leaves the shaping on", d.name)
	} else {
		d.app.say("%s: Ctrl-C detaches it", d.name)
	}
	return nil
}

// leave ends the shaping, unless it is to be kept.
func (d *daemon) leave(ctx context.Context, keep bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.asked && d.detached != nil:
		return d.detached // what is left can be detached again
	case d.asked:
		d.app.say("%s: another cakectl detached it", d.name)
		return nil
	case keep:
		d.app.say("%s: shaping goes on without a process; cakectl attach %[1]s adopts it, cakectl detach %[1]s ends it", d.name)
		return nil
	}
	if err := d.device.Detach(ctx); err != nil {
		return err
	}
	d.app.say("%s: detached, and as it was found", d.name)
	return nil
}

// Status is for clients.
func (d *daemon) Status(ctx context.Context) (api.Status, error) { return d.device.Status(ctx) }

// Set is for clients.
func (d *daemon) Set(ctx context.Context, change config.Change) (api.Changed, error) {
	changed, err := d.device.Set(ctx, change)
	result := metrics.ResultOK
	switch {
	case err == nil:
	case kindOf(err) == api.KindInvalid:
		result = metrics.ResultInvalid
	default:
		result = metrics.ResultFailed
	}
	d.recorder.Changed(metrics.SourceAPI, result)
	return changed, err
}

// Detach is for clients; it ends the daemon, after the answer.
func (d *daemon) Detach(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.asked {
		d.asked = true
		d.stopController()
		d.detached = d.device.Detach(ctx)
		d.end()
	}
	return d.detached
}

// Statuses is for the metrics.
func (d *daemon) Statuses(ctx context.Context) ([]api.Status, error) {
	status, err := d.device.Status(ctx)
	if err != nil {
		return nil, err
	}
	return []api.Status{status}, nil
}

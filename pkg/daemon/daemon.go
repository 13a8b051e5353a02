// SPDX-License-Identifier: BSD-2-Clause

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/metrics"
	"github.com/cakectl/cakectl/pkg/shaper"
)

const (
	// settleTimeout is how long an answer waits for a device; what is under way then goes on.
	settleTimeout = 20 * time.Second
	// statusTimeout is how long a scrape waits for a device.
	statusTimeout = 3 * time.Second
)

// Daemon keeps many devices. It is the [api.Host], and the [metrics.Source] of all of them.
type Daemon struct {
	runDir    string
	netns     uint64
	shapers   Shapers
	collector *metrics.Collector
	log       *slog.Logger

	ctx     context.Context // of the keepers
	running sync.WaitGroup

	mu      sync.Mutex
	keepers map[string]*keeper
}

var (
	_ api.Host       = (*Daemon)(nil)
	_ metrics.Source = (*Daemon)(nil)
)

// New makes a Daemon without devices, of a network namespace ([api.Server]). What it keeps, it keeps until
// ctx ends; [Daemon.Wait] has to follow.
func New(ctx context.Context, runDir string, netns uint64, shapers Shapers, build metrics.Build, log *slog.Logger) *Daemon {
	d := &Daemon{runDir: runDir, netns: netns, shapers: shapers, log: log, ctx: ctx, keepers: map[string]*keeper{}}
	d.collector = metrics.New(d, build, log)
	return d
}

// Collector has the metrics of all devices.
func (d *Daemon) Collector() *metrics.Collector { return d.collector }

// Wait returns when every device is left, after ctx has ended.
func (d *Daemon) Wait() { d.running.Wait() }

// Start takes on the devices of a file, and those that an earlier process has left attached: such as
// come from a file that does not have them any more are detached.
func (d *Daemon) Start(ctx context.Context, specs []config.Spec) ([]api.Outcome, error) {
	attached, err := d.shapers.List()
	if err != nil {
		return nil, err
	}
	inFile := map[string]bool{}
	for _, spec := range specs {
		recorded, err := d.shapers.Recorded(spec.Device)
		if err != nil {
			return nil, err
		}
		inFile[recorded] = true
	}
	for _, name := range attached {
		if !inFile[name] {
			d.adopt(name)
		}
	}
	return d.Apply(ctx, specs)
}

func hasDevice(specs []config.Spec, name string) bool {
	return slices.ContainsFunc(specs, func(s config.Spec) bool { return s.Device == name })
}

// adopt keeps a device as it is found.
func (d *Daemon) adopt(name string) {
	s, err := d.shapers.Open(name)
	if err != nil {
		if !errors.Is(err, shaper.ErrNotAttached) {
			d.log.Warn("left alone", "device", name, "err", err)
		}
		return
	}
	spec := s.Spec()
	if err := s.Close(); err != nil {
		d.log.Warn("closed with an error", "device", name, "err", err)
	}
	d.keep(spec)
}

// Apply makes the devices of a file as they are there, and detaches those that an earlier file had.
func (d *Daemon) Apply(ctx context.Context, specs []config.Spec) ([]api.Outcome, error) {
	for i, spec := range specs {
		if err := spec.Validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", spec.Device, err)
		}
		if hasDevice(specs[:i], spec.Device) {
			return nil, &api.Error{Kind: api.KindInvalid, Message: spec.Device + " is there twice"}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	results := make(chan api.Outcome)
	asked := 0
	ask := func(name string, do func(context.Context) api.Outcome) {
		asked++
		go func() { results <- within(ctx, name, do) }()
	}
	kept := make([]config.Spec, len(specs))
	for i, spec := range specs {
		if kept[i] = d.known(spec); hasDevice(specs, kept[i].Device) {
			kept[i] = spec // another device is to have the name
		}
	}
	for _, k := range d.kept() {
		if k.spec().FromFile && !hasDevice(kept, k.name) {
			ask(k.name, k.drop)
		}
	}
	for i, spec := range specs {
		ask(spec.Device, func(ctx context.Context) api.Outcome {
			outcome := d.want(ctx, kept[i])
			outcome.Device = spec.Device
			return outcome
		})
	}
	outcomes := make([]api.Outcome, 0, asked)
	for range asked {
		outcomes = append(outcomes, <-results)
	}
	slices.SortFunc(outcomes, func(a, b api.Outcome) int { return strings.Compare(a.Device, b.Device) })
	return outcomes, nil
}

// Attach takes on one device more.
func (d *Daemon) Attach(ctx context.Context, spec config.Spec) (api.Outcome, error) {
	if err := spec.Validate(); err != nil {
		return api.Outcome{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	spec = d.known(spec)
	isNew := d.keeper(spec.Device) == nil
	outcome := within(ctx, spec.Device, func(ctx context.Context) api.Outcome { return d.want(ctx, spec) })
	if outcome.Result != api.ResultFailed {
		return outcome, nil
	}
	if k := d.keeper(spec.Device); k != nil && isNew { // whoever asks for one device is told, and asks again
		within(ctx, k.name, k.drop)
	}
	return api.Outcome{}, outcome.Error
}

// known gives the spec of a device the name that it is kept by: the one that it had when it was
// attached, where it has another now.
func (d *Daemon) known(spec config.Spec) config.Spec {
	if d.keeper(spec.Device) != nil {
		return spec
	}
	if recorded, err := d.shapers.Recorded(spec.Device); err == nil && d.keeper(recorded) != nil {
		spec.Device = recorded
	}
	return spec
}

// want has a device kept as spec says, and tells how that went.
func (d *Daemon) want(ctx context.Context, spec config.Spec) api.Outcome {
	for {
		k, isNew := d.keep(spec)
		switch {
		case isNew:
			return k.settled()
		case !k.isGone():
			return k.want(ctx, spec)
		}
		<-k.ended // and begin anew
	}
}

// within waits for what is done to a device until ctx ends. What has begun is brought to its end all
// the same.
func within(ctx context.Context, name string, do func(context.Context) api.Outcome) api.Outcome {
	done := make(chan api.Outcome, 1)
	go func() { done <- do(context.WithoutCancel(ctx)) }()
	select {
	case outcome := <-done:
		return outcome
	case <-ctx.Done():
		return api.Outcome{Device: name, Result: api.ResultUnderWay}
	}
}

// keep gives the keeper of a device, which is made if there is none.
func (d *Daemon) keep(spec config.Spec) (k *keeper, isNew bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k := d.keepers[spec.Device]; k != nil {
		return k, false
	}
	k = newKeeper(d, spec)
	d.keepers[k.name] = k
	ctx, end := context.WithCancel(d.ctx)
	k.end = end
	d.running.Go(func() {
		defer close(k.ended)
		defer end()
		k.persist(ctx, k.serve)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.keepers, k.name)
	})
	return k, true
}

// keeper is that of a device, nil if there is none.
func (d *Daemon) keeper(name string) *keeper {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.keepers[name]
}

// kept lists the keepers, by the names of their devices.
func (d *Daemon) kept() []*keeper {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.SortedFunc(maps.Values(d.keepers), func(a, b *keeper) int { return strings.Compare(a.name, b.name) })
}

// Devices names the devices that are kept.
func (d *Daemon) Devices() []string {
	names := []string{}
	for _, k := range d.kept() {
		names = append(names, k.name)
	}
	return names
}

// Statuses asks all devices at once. One that does not answer in time is an error, and is not asked
// again before it has answered.
func (d *Daemon) Statuses(ctx context.Context) ([]api.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	type answer struct {
		status api.Status
		err    error
	}
	keepers := d.kept()
	answers := make([]chan answer, len(keepers))
	for i, k := range keepers {
		answers[i] = make(chan answer, 1)
		go func() {
			select {
			case k.asking <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-k.asking }()
			status, err := k.Status(ctx)
			answers[i] <- answer{status, err}
		}()
	}
	var statuses []api.Status
	var errs []error
	for i, k := range keepers {
		select {
		case a := <-answers[i]:
			if a.err != nil {
				errs = append(errs, a.err)
				continue
			}
			statuses = append(statuses, a.status)
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("read the state of %s: no answer in %s", k.name, statusTimeout))
		}
	}
	return statuses, errors.Join(errs...)
}

// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/control"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/qdisc"
)

// OnReaction makes Run report the time from each event to the rates that it led to. It has to be
// called before Run.
func (s *Shaper) OnReaction(reacted func(time.Duration)) { s.reacted = reacted }

// Spec is what the device is shaped to.
func (s *Shaper) Spec() config.Spec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.Spec
}

// Adopted tells whether the device was shaped before [Attach], and went on.
func (s *Shaper) Adopted() bool { return s.adopted }

// Run runs the controller, and follows what becomes of the device, until ctx ends; it returns nil
// then. It returns [ErrBusy] where another process does already. It has to be called in the device's
// network namespace.
func (s *Shaper) Run(ctx context.Context) error {
	l, err := s.env.lockController(s.name)
	if err != nil {
		return err
	}
	defer l.release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	controlled := make(chan error, 1)
	go func() {
		defer cancel()
		controlled <- s.control(ctx)
	}()
	err = s.follow(ctx)
	cancel()
	return errors.Join(err, <-controlled)
}

// control runs the controller until ctx ends: one after the other where the device is made anew and
// gets new maps.
func (s *Shaper) control(ctx context.Context) error {
	for {
		s.mu.Lock()
		if ctx.Err() != nil {
			s.mu.Unlock()
			return nil
		}
		runCtx, stop := context.WithCancel(ctx)
		stopped := make(chan struct{})
		s.stopController = func() {
			stop()
			<-stopped
		}
		datapath, controller, checkQueues := s.datapath, s.controller, s.record.Spec.CheckQueues
		s.mu.Unlock()
		var err error
		if datapath == nil {
			<-runCtx.Done() // the device could not be attached anew yet
		} else {
			err = runController(runCtx, datapath, controller, checkQueues)
		}
		close(stopped)
		stop()
		if err != nil {
			return err
		}
	}
}

func runController(ctx context.Context, datapath *loader.DataPath, controller *control.Controller, checkQueues bool) error {
	events, err := datapath.Events()
	if err != nil {
		return err
	}
	defer events.Close()
	if checkQueues {
		check, err := datapath.CheckQueues()
		if err != nil {
			return fmt.Errorf("check where packets go: %w", err)
		}
		defer check.Close()
	}
	// What happened while nobody listened is in the shards, not in the ring.
	if _, err := controller.Recompute(loader.TriggerStart); err != nil {
		return err
	}
	return controller.Run(ctx, events)
}

// Changed says what a change did.
type Changed struct {
	// RateWrites counts the effective rates that were written.
	RateWrites int `json:"rate_writes"`
	// Spec is what the device is shaped to now.
	Spec config.Spec `json:"spec"`
}

// Set changes rates and policies of the device under way: no packet is lost and no clock reset.
func (s *Shaper) Set(ctx context.Context, change config.Change) (Changed, error) {
	l, err := s.env.lockDevice(ctx, s.name)
	if err != nil {
		return Changed{}, err
	}
	defer l.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recordLost {
		return Changed{}, fmt.Errorf("change %s: the record of it in %s is gone; detach it, then attach it again", s.name, s.env.RunDir)
	}
	// While this one waited for the lock, another command may have changed the device or detached it.
	// Where this process waits for the device it may have no record, and knows all the same.
	record, err := s.env.readRecord(s.name)
	recorded := err == nil
	switch {
	case recorded:
		s.record = record
	case !s.drift.gone || !errors.Is(err, ErrNotAttached):
		return Changed{}, fmt.Errorf("change %s: %w", s.name, err)
	}
	if err := s.refresh(); err != nil {
		return Changed{}, err
	}
	switch {
	case s.old != nil:
		return Changed{}, fmt.Errorf("change %s: %w", s.name, s.errOtherVersion())
	case s.device == nil && s.drift.gone:
		return s.changeAwaited(change, recorded)
	case s.device == nil || s.datapath == nil:
		return Changed{}, fmt.Errorf("change %s: %w", s.name, ErrNotAttached)
	}
	if s.rates, err = s.resolve(s.record.Spec); err != nil {
		return Changed{}, err
	}
	if s.controller == nil {
		if err := s.startController(ctx); err != nil {
			return Changed{}, err
		}
	}
	defer s.nudge() // what is to be done about a drift may be another thing now
	return s.change(ctx, change)
}

// changeAwaited notes a change of a device that this process waits for: it comes back changed.
func (s *Shaper) changeAwaited(change config.Change, recorded bool) (Changed, error) {
	spec, err := s.record.Spec.Apply(change)
	if err != nil {
		return Changed{}, err
	}
	cfg, err := s.resolve(spec)
	if err != nil {
		return Changed{}, err
	}
	s.record.Spec, s.rates = spec, cfg
	s.nudge() // what kept it from being attached anew may be another thing now
	if !recorded {
		return Changed{Spec: spec}, nil
	}
	return Changed{Spec: spec}, s.env.writeRecord(s.record)
}

// change makes a change effective and records it. Either all of it is in force or nothing is.
func (s *Shaper) change(ctx context.Context, change config.Change) (Changed, error) {
	before, beforeRates := s.record.Spec, s.rates
	spec, err := before.Apply(change)
	if err == nil {
		err = before.CheckLive(spec)
	}
	if err == nil && spec.Bandwidth != before.Bandwidth {
		err = s.checkPercent(spec.Bandwidth)
	}
	if err != nil {
		return Changed{}, err
	}
	cfg, err := s.resolve(spec)
	if err != nil {
		return Changed{}, err
	}
	policy := before
	policy.OnDrift = spec.OnDrift
	if reflect.DeepEqual(spec, policy) && spec.OnDrift != before.OnDrift {
		// Nothing to apply, which a drift might not allow.
		s.record.Spec = spec
		return Changed{Spec: spec}, s.env.writeRecord(s.record)
	}
	s.record.Spec, s.rates = spec, cfg
	writes, err := s.applyRates(ctx)
	if err != nil {
		s.record.Spec, s.rates = before, beforeRates
		_, undo := s.applyRates(context.WithoutCancel(ctx))
		return Changed{}, errors.Join(fmt.Errorf("change %s: %w", s.name, err), undo)
	}
	return Changed{RateWrites: writes, Spec: spec}, nil
}

// applyRates makes s.rates effective. The fqs grow before they have to hold more.
func (s *Shaper) applyRates(ctx context.Context) (writes int, err error) {
	if err := s.installQdiscs(ctx); err != nil {
		return 0, err
	}
	writes, err = s.controller.Configure(s.rates, func() error { return s.loadDataPath(ctx) })
	if err != nil {
		return writes, err
	}
	return writes, s.capGSO(ctx)
}

// Detach takes everything of ours off the device and leaves it as it was found.
func (s *Shaper) Detach(ctx context.Context) error {
	l, err := s.env.lockDevice(ctx, s.name)
	if err != nil {
		return err
	}
	defer l.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.env.readRecord(s.name); errors.Is(err, ErrNotAttached) && !s.recordLost {
		return nil // another command was faster
	}
	if s.device == nil {
		if err := s.requireHere(); err != nil {
			return fmt.Errorf("detach %s: %w", s.name, err)
		}
	}
	return s.teardown(ctx)
}

// teardown undoes every step of an attach, whichever of them were done. Each part is tried although
// another failed; the record goes last, so that a detach that failed can be repeated.
func (s *Shaper) teardown(ctx context.Context) error {
	var errs []error
	errs = append(errs, s.refresh())
	if program := s.program(); program != nil {
		errs = append(errs, program.Detach(s.device, s.record.Attachment, s.env.pins(s.name)))
	}
	if s.device != nil {
		errs = append(errs, qdisc.Restore(ctx, s.device, s.record.Found), qdisc.RestoreGSO(s.device, s.record.Found))
	}
	errs = append(errs, loader.Unpin(s.env.pins(s.name)))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detach %s: %w", s.name, err)
	}
	return s.env.removeRecord(s.name)
}

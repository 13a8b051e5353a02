// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/shaper"
)

// shapers is package shaper as the commands use it.
type shapers interface {
	Attach(ctx context.Context, spec config.Spec) (shaped, error)
	Plan(ctx context.Context, spec config.Spec) ([]string, error)
	// Open returns shaper.ErrNotAttached where there is nothing.
	Open(device string) (shaped, error)
	List() ([]string, error)
	// Recorded is the name that a device had when it was attached.
	Recorded(device string) (string, error)
	// Stopped is the process that runs a device's controller and does not answer because it is
	// stopped; 0 is none.
	Stopped(recorded string) int
}

// shaped is an attached device.
type shaped interface {
	api.Device
	Run(ctx context.Context) error
	OnReaction(reacted func(time.Duration))
	Spec() config.Spec
	// Adopted tells whether the device was shaped already, and went on.
	Adopted() bool
	Close() error
}

// kernelShapers are the real ones.
func kernelShapers(env shaper.Env) shapers { return kernel{env} }

type kernel struct{ env shaper.Env }

func (k kernel) Attach(ctx context.Context, spec config.Spec) (shaped, error) {
	s, err := shaper.Attach(ctx, k.env, spec)
	if err != nil {
		return nil, err
	}
	return kernelDevice{s}, nil
}

func (k kernel) Plan(ctx context.Context, spec config.Spec) ([]string, error) {
	return shaper.Plan(ctx, k.env, spec)
}

func (k kernel) Open(device string) (shaped, error) {
	s, err := shaper.Open(k.env, device)
	if err != nil {
		return nil, err
	}
	return kernelDevice{s}, nil
}

func (k kernel) List() ([]string, error) { return shaper.List(k.env) }

func (k kernel) Recorded(device string) (string, error) { return k.env.Recorded(device) }

func (k kernel) Stopped(recorded string) int { return k.env.StoppedController(recorded) }

type kernelDevice struct{ *shaper.Shaper }

func (d kernelDevice) Set(ctx context.Context, change config.Change) (api.Changed, error) {
	changed, err := d.Shaper.Set(ctx, change)
	return api.Changed(changed), err
}

// on does something with an attached device: through its daemon if there is one, else directly.
// do is called a second time when the daemon ends without an answer, so it has to be idempotent.
func (a *app) on(device string, do func(api.Device) error) error {
	recorded, err := a.shapers.Recorded(device)
	if err != nil {
		return err
	}
	if a.shapers.Stopped(recorded) == 0 {
		err := do(api.NewClient(a.env.RunDir, recorded))
		if !errors.Is(err, api.ErrNoDaemon) {
			return err
		}
	}
	s, err := a.shapers.Open(device)
	if err != nil {
		return err
	}
	return errors.Join(do(s), s.Close())
}

// change is on for verbs that change the device. A daemon's own rights count, not ours; without one
// ours are checked before anything is touched.
func (a *app) change(verb, device string, do func(api.Device) error) error {
	recorded, err := a.shapers.Recorded(device)
	if err != nil {
		return err
	}
	// It would find what it controls changed when it goes on.
	if pid := a.shapers.Stopped(recorded); pid != 0 {
		return fmt.Errorf("%s %s: process %d serves it and is stopped: let it go on (kill -CONT %[3]d), or end it (kill -KILL %[3]d)", verb, device, pid)
	}
	return a.on(device, func(d api.Device) error {
		if _, daemon := d.(*api.Client); !daemon {
			if err := requireCapabilities(verb, device); err != nil {
				return err
			}
		}
		return do(d)
	})
}

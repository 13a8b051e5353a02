// SPDX-License-Identifier: BSD-2-Clause

package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/notify"
	"github.com/cakectl/cakectl/pkg/shaper"
)

// Shapers is package shaper as daemons and commands use it.
type Shapers interface {
	Attach(ctx context.Context, spec config.Spec) (Shaped, error)
	// Plan says what Attach would do.
	Plan(ctx context.Context, spec config.Spec) (shaper.Preview, error)
	// Open returns shaper.ErrNotAttached where there is nothing.
	Open(device string) (Shaped, error)
	List() ([]string, error)
	// Recorded is the name that a device had when it was attached.
	Recorded(device string) (string, error)
	// Stopped is the process that runs a device's controller and does not answer because it is
	// stopped; 0 is none.
	Stopped(recorded string) int
	// Controller is the process that runs a device's controller; 0 is none.
	Controller(recorded string) int
	// Await returns when there is a device of that name, or with ctx's error.
	Await(ctx context.Context, device string) error
}

// Shaped is an attached device.
type Shaped interface {
	api.Device
	Run(ctx context.Context) error
	OnReaction(reacted func(time.Duration))
	Spec() config.Spec
	// Adopted tells whether the device was shaped already, and went on.
	Adopted() bool
	CheckQueues(ctx context.Context, duration time.Duration) (api.Foresight, error)
	Close() error
}

// KernelShapers are the real ones.
func KernelShapers(env shaper.Env) Shapers { return kernel{env} }

type kernel struct{ env shaper.Env }

func (k kernel) Attach(ctx context.Context, spec config.Spec) (Shaped, error) {
	s, err := shaper.Attach(ctx, k.env, spec)
	if err != nil {
		return nil, err
	}
	return kernelDevice{s}, nil
}

func (k kernel) Plan(ctx context.Context, spec config.Spec) (shaper.Preview, error) {
	return shaper.Plan(ctx, k.env, spec)
}

func (k kernel) Open(device string) (Shaped, error) {
	s, err := shaper.Open(k.env, device)
	if err != nil {
		return nil, err
	}
	return kernelDevice{s}, nil
}

func (k kernel) List() ([]string, error) { return shaper.List(k.env) }

func (k kernel) Recorded(device string) (string, error) { return k.env.Recorded(device) }

func (k kernel) Stopped(recorded string) int { return k.env.StoppedController(recorded) }

func (k kernel) Controller(recorded string) int { return k.env.ControllerPID(recorded) }

func (k kernel) Await(ctx context.Context, device string) (err error) {
	changes, err := notify.Subscribe(0, device)
	if err != nil {
		return fmt.Errorf("wait for %s: %w", device, err)
	}
	defer func() { err = errors.Join(err, changes.Close()) }()
	for {
		_, err := netlink.LinkByName(device)
		if !isMissing(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changes.C:
		}
	}
}

// isMissing tells whether an error is that there is no such device.
func isMissing(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing)
}

type kernelDevice struct{ *shaper.Shaper }

func (d kernelDevice) Set(ctx context.Context, change config.Change) (api.Changed, error) {
	changed, err := d.Shaper.Set(ctx, change)
	return api.Changed(changed), err
}

// KindOf sorts errors, for exit statuses and for the answers to other processes.
func KindOf(err error) api.Kind {
	var answered *api.Error
	switch {
	case errors.As(err, &answered):
		return answered.Kind
	case errors.Is(err, config.ErrInvalid):
		return api.KindInvalid
	case errors.Is(err, shaper.ErrNotAttached):
		return api.KindNotAttached
	case errors.Is(err, shaper.ErrBusy):
		return api.KindBusy
	default:
		return api.KindFailed
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/daemon"
)

// client asks the daemon of a device of this network namespace.
func (a *app) client(device string) *api.Client {
	return api.NewClient(a.env.RunDir, device).From(a.netns)
}

// host asks the daemon of many devices of this network namespace.
func (a *app) host() *api.HostClient { return api.NewHostClient(a.env.RunDir).From(a.netns) }

// isElsewhere tells whether a daemon of another network namespace has answered.
func isElsewhere(err error) bool { return daemon.KindOf(err) == api.KindElsewhere }

// on does something with an attached device: through its daemon if there is one, else directly.
// do is called a second time when the daemon ends without an answer, so it has to be idempotent.
func (a *app) on(device string, do func(api.Device) error) error {
	recorded, err := a.shapers.Recorded(device)
	if err != nil {
		return err
	}
	if a.shapers.Stopped(recorded) == 0 {
		err := do(a.client(recorded))
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

// stopped is that the daemon of a device is a process that does not answer.
func stopped(pid int) error {
	return fmt.Errorf("process %d serves it and is stopped: let it go on (kill -CONT %[1]d), or end it (kill -KILL %[1]d)", pid)
}

// endTime is how long a process that ends may have the controller when its socket is gone.
const endTime = 2 * time.Second

// unasked refuses to go past a process that controls a device and whose socket is gone: it would not
// learn of a change, and would put back what it knows.
func (a *app) unasked(ctx context.Context, recorded string) error {
	tooLate := time.After(endTime)
	again := time.NewTicker(endTime / 100)
	defer again.Stop()
	for {
		pid := a.shapers.Controller(recorded)
		if pid == 0 {
			return nil
		}
		select {
		case <-again.C:
		case <-tooLate:
			return fmt.Errorf("process %d serves it and cannot be asked, since its socket in %s is gone: end it (kill %[1]d), and start it again", pid, a.env.RunDir)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// change is on for verbs that change the device. A daemon's own rights count, not ours; without one
// ours are checked before anything is touched.
func (a *app) change(ctx context.Context, verb, device string, do func(api.Device) error) error {
	recorded, err := a.shapers.Recorded(device)
	if err != nil {
		return err
	}
	// It would find what it controls changed when it goes on.
	if pid := a.shapers.Stopped(recorded); pid != 0 {
		return prefix(verb, device, stopped(pid))
	}
	return a.on(device, func(d api.Device) error {
		if _, asked := d.(*api.Client); !asked {
			if err := requireCapabilities(verb, device); err != nil {
				return err
			}
			if err := a.unasked(ctx, recorded); err != nil {
				return prefix(verb, device, err)
			}
		}
		return do(d)
	})
}

// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"

	"github.com/cakectl/cakectl/pkg/api"
)

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

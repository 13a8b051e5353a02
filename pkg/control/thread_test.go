// SPDX-License-Identifier: BSD-2-Clause

package control

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestUrgentThread: the controller's thread is an ordinary one that goes first, as far as the process
// may ask for it.
func TestUrgentThread(t *testing.T) {
	for _, test := range []struct {
		name     string
		mayRaise bool
		nice     int32
	}{{"privileged", true, urgentNice}, {"without CAP_SYS_NICE", false, 0}} {
		t.Run(test.name, func(t *testing.T) {
			var got *unix.SchedAttr
			var refused error
			// A thread of its own, which loses what is taken from it here.
			err := onUrgentThread(func(error) {}, func() error {
				attributes := unix.SchedAttr{Policy: unix.SCHED_NORMAL}
				if err := unix.SchedSetAttr(0, &attributes, 0); err != nil {
					return err
				}
				if !test.mayRaise {
					if err := dropSysNice(); err != nil {
						return err
					}
				}
				refused = beUrgent()
				var err error
				got, err = unix.SchedGetAttr(0, 0)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if test.mayRaise && refused != nil || !test.mayRaise && !errors.Is(refused, unix.EPERM) {
				t.Errorf("refused: %v", refused)
			}
			if got.Policy != unix.SCHED_NORMAL || got.Nice != test.nice {
				t.Errorf("policy %d, nice %d, want %d, %d", got.Policy, got.Nice, unix.SCHED_NORMAL, test.nice)
			}
			// Before Linux 6.12 an ordinary thread has no slice of its own, and none is told.
			if slice := time.Duration(got.Runtime); slice != 0 && slice != shortSlice {
				t.Errorf("a slice of %v, want %v", slice, shortSlice)
			}
		})
	}
}

// dropSysNice takes the right to raise priorities from the calling thread.
func dropSysNice() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	sets[unix.CAP_SYS_NICE/32].Effective &^= 1 << (unix.CAP_SYS_NICE % 32)
	return unix.Capset(&header, &sets[0])
}

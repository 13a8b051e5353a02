// SPDX-License-Identifier: BSD-2-Clause

package control

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// shortSlice is the least that the kernel takes. From Linux 6.12 on, a thread that wakes up and asks
	// for less time at once than the one that runs goes first; without it the controller would wait for
	// the end of the other's slice, up to a tick of 4 ms.
	shortSlice = 100 * time.Microsecond
	// urgentNice makes it go first on older kernels too, and come to an end when it takes longer than
	// its slice. With 20 recomputes a second at most it takes nothing from others that they would notice.
	urgentNice = -15
)

// onUrgentThread calls f on a thread of its own, which does little and is to do it at once. It stays
// an ordinary one (SCHED_OTHER): a real-time thread that goes wrong takes the machine with it. Where
// the kernel refuses, told says so, and f runs all the same.
func onUrgentThread(told func(error), f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		if err := beUrgent(); err != nil {
			told(err)
		}
		result <- f()
	}()
	return <-result
}

// beUrgent asks for what it can get: a lower nice value takes CAP_SYS_NICE, a short slice nothing.
func beUrgent() error {
	attributes := unix.SchedAttr{
		Policy: unix.SCHED_NORMAL, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Nice: urgentNice, Runtime: uint64(shortSlice),
	}
	err := unix.SchedSetAttr(0, &attributes, 0)
	if err == nil {
		return nil
	}
	attributes.Nice = 0
	if unix.SchedSetAttr(0, &attributes, 0) == nil {
		return fmt.Errorf("ask for nice %d: %w", urgentNice, err)
	}
	return fmt.Errorf("ask for a short slice: %w", err)
}

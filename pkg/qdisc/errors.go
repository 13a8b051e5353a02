// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNoFQ means that this kernel has no fq qdisc.
	ErrNoFQ = errors.New("this kernel has no sch_fq: load it (modprobe sch_fq), or run a kernel built with CONFIG_NET_SCH_FQ=y or =m")
	// ErrForeign is in the chain of a [ForeignError].
	ErrForeign = errors.New("another qdisc is in place")
	// ErrUnrestorable is in the chain of an [UnrestorableError].
	ErrUnrestorable = errors.New("the qdiscs in place cannot be restored")
	// ErrNotRestored is in the chain of a [RestoreError].
	ErrNotRestored = errors.New("the device is not as it was found")
)

// ForeignError is what Install returns, without [Options.Replace], for a
// device whose root qdisc is neither the kernel's default nor ours, and what
// Restore returns for one that somebody put in place of ours.
type ForeignError struct {
	Device string
	Kind   string
	Handle Handle
	// Lost says what could not be restored at detach; empty means everything can.
	Lost []string
	// Restoring tells that it was Restore that found it.
	Restoring bool
}

func (e *ForeignError) Error() string {
	s := fmt.Sprintf("%s: root qdisc %s %s is in use: it is not as the kernel makes it by default", e.Device, e.Kind, e.Handle)
	switch {
	case e.Restoring:
		return fmt.Sprintf("%s: root qdisc %s %s took the place of ours: left alone; remove it (tc qdisc del dev %[1]s root) and detach again", e.Device, e.Kind, e.Handle)
	case len(e.Lost) == 0:
		return s + "; use --replace to take its place until detach restores it"
	}
	return s + ", and detach could not restore it after --replace (" + strings.Join(e.Lost, "; ") + ")"
}

func (e *ForeignError) Unwrap() error { return ErrForeign }

// UnrestorableError is what Install returns, with [Options.Replace] but
// without [Options.Force], when detach could not put back what is there.
type UnrestorableError struct {
	Device string
	Lost   []string
}

func (e *UnrestorableError) Error() string {
	return fmt.Sprintf("%s: detach could not restore the qdiscs that are in place: %s; save what you need, then remove them (tc qdisc del dev %s root)",
		e.Device, strings.Join(e.Lost, "; "), e.Device)
}

func (e *UnrestorableError) Unwrap() error { return ErrUnrestorable }

// RestoreError is what Restore returns when everything that could be done is
// done and the qdisc tree still differs from the journal.
type RestoreError struct {
	Device      string
	Differences []string
}

func (e *RestoreError) Error() string {
	return fmt.Sprintf("%s: restored, but not as it was found: %s", e.Device, strings.Join(e.Differences, "; "))
}

func (e *RestoreError) Unwrap() error { return ErrNotRestored }

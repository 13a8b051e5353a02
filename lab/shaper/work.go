// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// Work is what a shaper did to keep the rates of its queues in step, since it was attached.
type Work struct {
	// Recomputes are how often it computed rates, Writes how many it set.
	Recomputes, Writes uint64
	// Active is how many (queue, tin)s have a rate now, where the shaper tells.
	Active int
}

// Worker is a shaper that tells of its work.
type Worker interface {
	Work(ctx context.Context) (Work, error)
}

// Process is a shaper with a process that signals can be sent to.
type Process interface {
	Signal(signal syscall.Signal) error
}

func (c *cakectl) Work(ctx context.Context) (Work, error) {
	status, err := c.status(ctx)
	if err != nil {
		return Work{}, err
	}
	work := Work{Recomputes: status.Controller.Recomputes, Writes: status.Controller.RateWrites}
	for _, tin := range status.Tins {
		work.Active += tin.ActiveQueues
	}
	return work, nil
}

func (c *cakectl) Signal(signal syscall.Signal) error {
	if err := c.cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("send %v to cakectl: %w", signal, err)
	}
	return nil
}

// callCount counts the calls of a kernel function.
type callCount struct {
	count   *ebpf.Map
	program *ebpf.Program
	probe   link.Link
}

func countCalls(function string) (_ *callCount, err error) {
	c := &callCount{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("count the calls of %s: %w", function, err), c.close())
		}
	}()
	if c.count, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}); err != nil {
		return nil, err
	}
	c.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word), // the key
			asm.LoadMapPtr(asm.R1, c.count.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		return nil, err
	}
	c.probe, err = link.Kprobe(function, c.program, nil)
	return c, err
}

func (c *callCount) calls() (calls uint64, err error) {
	if err := c.count.Lookup(uint32(0), &calls); err != nil {
		return 0, fmt.Errorf("read the count of calls: %w", err)
	}
	return calls, nil
}

func (c *callCount) close() error {
	var errs []error
	if c.probe != nil {
		errs = append(errs, c.probe.Close())
	}
	return errors.Join(append(errs, c.program.Close(), c.count.Close())...)
}

// Work counts the calls of the function that each queue's cake sets its rates by. It counts from the
// first time that it is asked on, so that other experiments do without the probe.
func (s *cakeMQ) Work(context.Context) (Work, error) {
	if s.configured == nil {
		var err error
		if s.configured, err = countCalls("cake_configure_rates"); err != nil {
			return Work{}, err
		}
	}
	calls, err := s.configured.calls()
	return Work{Recomputes: calls, Writes: calls}, err
}

// SPDX-License-Identifier: BSD-2-Clause

package topo

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// Offsets in struct __sk_buff.
const (
	skbMark         = 8
	skbQueueMapping = 12
)

// tcxNext lets the next program decide.
const tcxNext = -1

// SteerByMark makes packets with a mark of n leave by the transmit queue n-1, as those of a NIC that
// received them on that queue would: a flow's hash is nothing that a program can choose. It comes before
// all programs that hang at the egress by then. Others' queues stay the kernel's choice. It ends with
// the device.
func (p Port) SteerByMark() (err error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "steer",
		Type: ebpf.SchedCLS,
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, skbMark, asm.Word),
			asm.JEq.Imm(asm.R2, 0, "next"),
			asm.StoreMem(asm.R1, skbQueueMapping, asm.R2, asm.Word),
			asm.Mov.Imm(asm.R0, tcxNext).WithSymbol("next"),
			asm.Return(),
		},
		License: "BSD",
	})
	if err != nil {
		return fmt.Errorf("steer what %s sends: %w", p.Device, err)
	}
	defer func() { err = errors.Join(err, program.Close()) }()
	return p.do(func(device netlink.Link) error {
		err := link.RawAttachProgram(link.RawAttachProgramOptions{
			Target:  device.Attrs().Index,
			Program: program,
			Attach:  ebpf.AttachTCXEgress,
			Anchor:  link.Head(),
		})
		if err != nil {
			return fmt.Errorf("steer what it sends: %w", err)
		}
		return nil
	})
}

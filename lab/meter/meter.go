// SPDX-License-Identifier: BSD-2-Clause

package meter

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Classes is how many classes of traffic a meter tells apart.
const Classes = 8

// Span is how long a meter counts from its start; what arrives later is reported as an error.
const Span = slots * time.Millisecond

const slots = 65536

// Classifier gives the class, below [Classes], of each DSCP.
type Classifier [64]uint8

// Meter counts what arrives at one device.
type Meter struct {
	objects meterObjects
	start   time.Duration
	unhook  func() error // takes what Attach added off the device
}

// Attach starts to count at the ingress of a device in the thread's network namespace, before or after
// others that have programs at its clsact qdisc.
func Attach(device netlink.Link, classes Classifier) (_ *Meter, err error) {
	name := device.Attrs().Name
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("meter %s: %w", name, err)
	}
	spec, err := loadMeter()
	if err != nil {
		return nil, fmt.Errorf("meter %s: %w", name, err)
	}
	m := &Meter{start: Now()}
	if err := spec.Variables["start_ns"].Set(uint64(m.start)); err != nil {
		return nil, fmt.Errorf("meter %s: %w", name, err)
	}
	if err := spec.Variables["class_of_dscp"].Set(classes); err != nil {
		return nil, fmt.Errorf("meter %s: %w", name, err)
	}
	if err := spec.LoadAndAssign(&m.objects, nil); err != nil {
		return nil, fmt.Errorf("load the meter of %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.objects.Close())
		}
	}()
	clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: device.Attrs().Index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
	m.unhook = func() error { return netlink.QdiscDel(clsact) }
	err = netlink.QdiscAdd(clsact)
	shared := errors.Is(err, unix.EEXIST)
	if err != nil && !shared {
		return nil, fmt.Errorf("add a clsact qdisc to %s: %w", name, err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: device.Attrs().Index,
			Parent:    netlink.HANDLE_MIN_INGRESS,
			Handle:    1,
			Protocol:  unix.ETH_P_ALL,
			Priority:  1,
		},
		Fd:           m.objects.MeterIngress.FD(),
		Name:         "meter",
		DirectAction: true,
	}
	if shared {
		m.unhook = func() error { return netlink.FilterDel(filter) }
	}
	if err := netlink.FilterAdd(filter); err != nil {
		err = fmt.Errorf("attach the meter to %s: %w", name, err)
		if !shared {
			err = errors.Join(err, m.unhook())
		}
		return nil, err
	}
	return m, nil
}

// Start is when slot 0 began, by [Now].
func (m *Meter) Start() time.Duration { return m.start }

// Read returns what has arrived until now.
func (m *Meter) Read() (*Series, error) {
	var missed uint64
	if err := m.objects.MissedBytes.Get(&missed); err != nil {
		return nil, fmt.Errorf("read the meter: %w", err)
	}
	if missed != 0 {
		return nil, fmt.Errorf("read the meter: %d bytes arrived after its %v", missed, Span)
	}
	memory, err := m.objects.Slots.Memory()
	if err != nil {
		return nil, fmt.Errorf("read the meter: %w", err)
	}
	elapsed := int((Now() - m.start) / time.Millisecond)
	s := &Series{Start: m.start, slots: make([]meterSlot, min(elapsed, slots))}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s.slots))), len(s.slots)*int(unsafe.Sizeof(meterSlot{})))
	if _, err := memory.ReadAt(bytes, 0); err != nil {
		return nil, fmt.Errorf("read the meter: %w", err)
	}
	return s, nil
}

// Close stops counting. It runs in the network namespace of Attach.
func (m *Meter) Close() error {
	return errors.Join(m.unhook(), m.objects.Close())
}

// Now is the clock of the meter, CLOCK_MONOTONIC.
func Now() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(fmt.Sprintf("CLOCK_MONOTONIC: %v", err)) // every Linux has it
	}
	return time.Duration(now.Nano())
}

// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// checkQueuesAlways is a deadline that is never reached.
const checkQueuesAlways = math.MaxUint64

// QueueDecision is what decides a packet's transmit queue.
type QueueDecision int

// String names what decides.
func (d QueueDecision) String() string {
	names := [len(dataPathForesightCounters{}.Matched)]string{"socket", "xps", "mapping", "hash"}
	return names[d]
}

// Foresight counts packets, as they are enqueued, while their queues were checked.
type Foresight struct {
	// Matched and Mismatched went to the queue that was foreseen and to another one, by what was
	// to decide it ([QueueDecision]).
	Matched, Mismatched [len(dataPathForesightCounters{}.Matched)]uint64
	// DriverChooses tells that the driver of the device chooses queues itself, which nobody can
	// foresee.
	DriverChooses bool
}

// Foresight reads what checks have counted since the maps were made.
func (d *DataPath) Foresight() (Foresight, error) {
	var perCPU []dataPathForesightCounters
	if err := d.objects.Foresight.Lookup(uint32(0), &perCPU); err != nil {
		return Foresight{}, fmt.Errorf("read the counters of foreseen queues: %w", err)
	}
	var total Foresight
	for _, cpu := range perCPU {
		for by := range total.Matched {
			total.Matched[by] += cpu.Matched[by]
			total.Mismatched[by] += cpu.Mismatched[by]
		}
		total.DriverChooses = total.DriverChooses || cpu.DriverChooses != 0
	}
	return total, nil
}

// QueueCheck compares foreseen queues with real ones until it is closed. Its counters outlive it.
type QueueCheck struct {
	program    *ebpf.Program
	tracepoint link.Link
}

// CheckQueues starts to compare where packets go with where they were foreseen to go. The data path
// takes part for as long as [DataPath.CheckQueuesFor] or [Settings] say.
func (d *DataPath) CheckQueues() (*QueueCheck, error) {
	var programs queueCheckPrograms
	err := loadQueueCheckObjects(&programs, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		queueCheckMapForeseen:  d.objects.Foreseen,
		queueCheckMapForesight: d.objects.Foresight,
	}})
	if err != nil {
		return nil, fmt.Errorf("load the check of foreseen queues: %w", err)
	}
	c := &QueueCheck{program: programs.CakectlCheck}
	c.tracepoint, err = link.AttachTracing(link.TracingOptions{Program: c.program})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach the check of foreseen queues: %w", err), c.program.Close())
	}
	return c, nil
}

// Close ends the comparison.
func (c *QueueCheck) Close() error { return errors.Join(c.tracepoint.Close(), c.program.Close()) }

// CheckQueuesFor makes the data path note what it foresees for so long from now; it stops by itself.
// Like [DataPath.Configure] it must not run beside another change of the configuration.
func (d *DataPath) CheckQueuesFor(duration time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	var config dataPathDeviceConfig
	if err := d.objects.Config.Lookup(uint32(0), &config); err != nil {
		return fmt.Errorf("read the data path's configuration: %w", err)
	}
	config.CheckQueuesUntilNs = max(config.CheckQueuesUntilNs, uint64(now.Nano()+int64(duration)))
	if err := d.objects.Config.Put(uint32(0), config); err != nil {
		return fmt.Errorf("have the data path note foreseen queues: %w", err)
	}
	return nil
}

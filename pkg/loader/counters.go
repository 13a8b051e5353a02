// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"fmt"
	"time"
)

// DropReason says why the data path dropped a packet; as a label it is [DropReason.String].
type DropReason int

// dropReasons are the names of enum drop_reason (bpf/types.h), in its order. The array's length
// follows the maps' layout, so that a reason without a name does not compile.
func dropReasons() [len(dataPathTinCounters{}.Drops)]string {
	return [...]string{"horizon", "aqm"}
}

// String is the reason's name as metrics and status show it.
func (r DropReason) String() string { return dropReasons()[r] }

// Drops counts dropped packets (GSO segments) and bytes.
type Drops struct {
	Packets, Bytes uint64
}

// TinCounters are totals of one tin since its maps were made. Packets are GSO segments; bytes are
// those on the line, with its framing and each segment's headers.
type TinCounters struct {
	Packets, Bytes, DelayedPackets uint64
	// ECNMarkedPackets are those sent with a CE mark that the AQM gave them.
	ECNMarkedPackets uint64
	// Drops is indexed by [DropReason].
	Drops []Drops
	// Sojourn is the time between enqueue and departure of what was sent: its sum over all packets,
	// and how many packets fall into each bucket of [SojournBound].
	SojournSum     time.Duration
	SojournBuckets []uint64
}

// SojournBound is the upper bound of a bucket: 1.024 us times a power of two. The last bucket has
// none.
func SojournBound(bucket int) time.Duration {
	return time.Duration(1024) << bucket
}

// TinCounters reads the totals of a tin.
func (d *DataPath) TinCounters(tin int) (TinCounters, error) {
	var perCPU []dataPathTinCounters
	if err := d.objects.TinStats.Lookup(uint32(tin), &perCPU); err != nil {
		return TinCounters{}, fmt.Errorf("read the counters of tin %d: %w", tin, err)
	}
	total := TinCounters{
		Drops:          make([]Drops, len(dataPathTinCounters{}.Drops)),
		SojournBuckets: make([]uint64, len(dataPathTinCounters{}.Sojourn)),
	}
	for i := range perCPU {
		cpu := &perCPU[i]
		total.Packets += cpu.Packets
		total.Bytes += cpu.Bytes
		total.DelayedPackets += cpu.DelayedPackets
		total.ECNMarkedPackets += cpu.EcnMarkedPackets
		total.SojournSum += time.Duration(cpu.SojournNs)
		for reason, drops := range cpu.Drops {
			total.Drops[reason].Packets += drops.Packets
			total.Drops[reason].Bytes += drops.Bytes
		}
		for bucket, packets := range cpu.Sojourn {
			total.SojournBuckets[bucket] += packets
		}
	}
	return total, nil
}

// QueueCounters are totals of one transmit queue, as foreseen at egress.
type QueueCounters struct {
	Packets, Bytes uint64
}

// QueueCounters reads the totals of a queue.
func (d *DataPath) QueueCounters(queue int) (QueueCounters, error) {
	var perCPU []dataPathQueueCounters
	if err := d.objects.QueueStats.Lookup(uint32(queue), &perCPU); err != nil {
		return QueueCounters{}, fmt.Errorf("read the counters of queue %d: %w", queue, err)
	}
	var total QueueCounters
	for _, cpu := range perCPU {
		total.Packets += cpu.Packets
		total.Bytes += cpu.Bytes
	}
	return total, nil
}

// Trigger is what made a controller recompute.
type Trigger int

// The triggers, in the order of enum recompute_trigger (bpf/types.h).
const (
	TriggerActive Trigger = iota
	TriggerFlows
	TriggerIdle
	TriggerSet
	TriggerStart
)

// String is the trigger's name as metrics and logs show it.
func (t Trigger) String() string {
	names := [len(dataPathControllerStats{}.Recomputes)]string{"active", "flows", "idle", "set", "start"}
	return names[t]
}

// ControllerCounters are what controllers did since the maps were made, whatever process they ran
// in.
type ControllerCounters struct {
	Events uint64
	// Recomputes is indexed by [Trigger].
	Recomputes                      [len(dataPathControllerStats{}.Recomputes)]uint64
	UnchangedRecomputes, RateWrites uint64
	// LastChange is when an effective rate was last written; zero before the first.
	LastChange time.Time
}

// ControllerCounters reads what [DataPath.PutControllerCounters] wrote last.
func (d *DataPath) ControllerCounters() (ControllerCounters, error) {
	var raw dataPathControllerStats
	if err := d.objects.Controller.Lookup(uint32(0), &raw); err != nil {
		return ControllerCounters{}, fmt.Errorf("read the controller's counters: %w", err)
	}
	counters := ControllerCounters{
		Events:              raw.Events,
		Recomputes:          raw.Recomputes,
		UnchangedRecomputes: raw.UnchangedRecomputes,
		RateWrites:          raw.RateWrites,
	}
	if raw.LastChangeNs != 0 {
		counters.LastChange = time.Unix(0, int64(raw.LastChangeNs))
	}
	return counters, nil
}

// PutControllerCounters keeps the controller's counters with the maps.
func (d *DataPath) PutControllerCounters(c ControllerCounters) error {
	raw := dataPathControllerStats{
		Events:              c.Events,
		Recomputes:          c.Recomputes,
		UnchangedRecomputes: c.UnchangedRecomputes,
		RateWrites:          c.RateWrites,
	}
	if !c.LastChange.IsZero() {
		raw.LastChangeNs = uint64(c.LastChange.UnixNano())
	}
	if err := d.objects.Controller.Put(uint32(0), raw); err != nil {
		return fmt.Errorf("keep the controller's counters: %w", err)
	}
	return nil
}

// Bypassed counts packets that were passed without shaping, by reason.
func (d *DataPath) Bypassed() (map[string]uint64, error) {
	names := map[dataPathBypassReason]string{
		dataPathBypassReasonBYPASS_NOT_IP:    "not_ip",
		dataPathBypassReasonBYPASS_MALFORMED: "malformed",
		dataPathBypassReasonBYPASS_NO_STATE:  "no_state",
	}
	total := make(map[string]uint64, len(names))
	for reason, name := range names {
		var perCPU []uint64
		if err := d.objects.Bypassed.Lookup(uint32(reason), &perCPU); err != nil {
			return nil, fmt.Errorf("read the count of packets passed unshaped (%s): %w", name, err)
		}
		for _, packets := range perCPU {
			total[name] += packets
		}
	}
	return total, nil
}

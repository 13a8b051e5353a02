// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"encoding/json"
	"math"
	"time"

	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

// Status is the kernel's truth about one device, as `cakectl status -o json` prints it.
type Status struct {
	Device string `json:"device"`
	// Enforcing is true when every part that holds the rates is in its place.
	Enforcing bool `json:"enforcing"`
	// Reason says why not; empty while enforcing.
	Reason string `json:"reason"`
	// Attach is the hook in use, "tcx" or "clsact".
	Attach    string     `json:"attach"`
	Bandwidth BitsPerSec `json:"bandwidth_bits_per_second"`
	Diffserv  string     `json:"diffserv"`
	Split     string     `json:"split"`
	// Isolation is what is treated equally within a tin.
	Isolation string `json:"isolation"`
	// Flows is the size of the flow table of each (queue, tin).
	Flows     int    `json:"flow_table_flows"`
	RootQdisc string `json:"root_qdisc"`
	// Framing is what the line adds to a packet: rates and byte counts hold with it.
	Framing framing.Framing `json:"framing"`
	// WholeGSO tells that super-packets are as large as the device takes them.
	WholeGSO bool `json:"whole_gso"`
	// Classes are what decides about a packet's tin beside the preset.
	Classes Classes `json:"classes"`
	Queues  Queues  `json:"queues"`
	Tins    []Tin   `json:"tins"`
	// Bypassed counts packets passed without shaping, by reason.
	Bypassed map[string]uint64 `json:"bypassed_packets"`
	// Foresight tells how well transmit queues are foreseen, from while that was checked.
	Foresight  Foresight  `json:"queue_foresight"`
	Controller Controller `json:"controller"`
	// Drift is what others changed on the device; null where no controller follows it.
	Drift *Drift `json:"drift"`
	// Daemon is the process that runs the controller; 0 is none.
	Daemon int `json:"daemon_pid"`
}

// Classes are a user's settings for which tin a packet belongs to.
type Classes struct {
	Map        []tins.Rule `json:"map"`
	FwmarkMask uint32      `json:"fwmark_mask"`
	InnerDSCP  bool        `json:"inner_dscp"`
	// Wash tells that the DSCP is cleared once it was read.
	Wash bool `json:"wash"`
}

// Drift is what the controller's process found changed by others on the device.
type Drift struct {
	// Policy is what it does then, "repair" or "report".
	Policy   string `json:"policy"`
	Detected uint64 `json:"detected"`
	Repaired uint64 `json:"repaired"`
	// Last is what was found last, and LastDetected when; null if nothing ever was.
	Last         string     `json:"last"`
	LastDetected *time.Time `json:"last_detected"`
	// NextRepair is when it is put back, where that has to wait; else null.
	NextRepair *time.Time `json:"next_repair"`
	// NotificationsLost counts how often the kernel had more to tell than the process read; it looks
	// at everything then.
	NotificationsLost uint64 `json:"notifications_lost"`
}

// Queues counts transmit queues.
type Queues struct {
	Total  int `json:"total"`
	Active int `json:"active"`
	// Counters are totals of each queue, by index.
	Counters []QueueCounters `json:"counters"`
}

// QueueCounters are totals of one transmit queue.
type QueueCounters struct {
	Bytes   uint64 `json:"sent_bytes"`
	Packets uint64 `json:"sent_packets"`
}

// Foresight counts packets, as they were enqueued, by what was to decide their transmit queue: those
// that went where they were foreseen to go, and the others.
type Foresight struct {
	Matched    map[string]uint64 `json:"matched_packets"`
	Mismatched map[string]uint64 `json:"mismatched_packets"`
	// DriverChooses tells that the driver of the device chooses queues itself.
	DriverChooses bool `json:"driver_chooses"`
}

// Totals are over whatever decided.
func (f Foresight) Totals() (matched, mismatched uint64) {
	for _, packets := range f.Matched {
		matched += packets
	}
	for _, packets := range f.Mismatched {
		mismatched += packets
	}
	return matched, mismatched
}

// Tin is the state of one tin. Packets are GSO segments, bytes those on the line, with its framing.
type Tin struct {
	Name string `json:"name"`
	// Rate is guaranteed, and has priority up to it; Ceil is a hard cap.
	Rate           BitsPerSec        `json:"rate_bits_per_second"`
	Ceil           BitsPerSec        `json:"ceil_bits_per_second"`
	ActiveQueues   int               `json:"active_queues"`
	ActiveFlows    int               `json:"active_flows"`
	SentBytes      uint64            `json:"sent_bytes"`
	SentPackets    uint64            `json:"sent_packets"`
	DelayedPackets uint64            `json:"delayed_packets"`
	ECNMarked      uint64            `json:"ecn_marked_packets"`
	DroppedPackets map[string]uint64 `json:"dropped_packets"`
	DroppedBytes   map[string]uint64 `json:"dropped_bytes"`
	Sojourn        Sojourn           `json:"sojourn_seconds"`
	Queues         []TinQueue        `json:"queues"`
}

// Sojourn describes the time between a packet's enqueue and its departure.
type Sojourn struct {
	// P50 and P99 are upper bounds: those of the buckets that the quantiles fall into, each twice the one
	// before.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	// Sum is over all packets, in seconds; Buckets are those of the histogram.
	Sum     float64         `json:"sum"`
	Buckets []SojournBucket `json:"buckets"`
}

// SojournBucket counts the packets with a sojourn of at most LE seconds; the last bucket has no
// bound and LE is +Inf, which JSON writes as the string "+Inf".
type SojournBucket struct {
	LE         Seconds `json:"le"`
	Cumulative uint64  `json:"cumulative_packets"`
}

// TinQueue is the plan for one (queue, tin) that is active or has a rate.
type TinQueue struct {
	Queue         int        `json:"queue"`
	EffectiveRate BitsPerSec `json:"effective_rate_bits_per_second"`
	Active        bool       `json:"active"`
	ActiveFlows   int        `json:"active_flows"`
}

// Controller counts what controllers of this device did since it was attached.
type Controller struct {
	Events              uint64            `json:"events"`
	Recomputes          uint64            `json:"recomputes"`
	RecomputesByTrigger map[string]uint64 `json:"recomputes_by_trigger"`
	RateWrites          uint64            `json:"rate_writes"`
	UnchangedRecomputes uint64            `json:"unchanged_recomputes"`
	EventsLost          uint64            `json:"events_lost"`
	// LastChange is when an effective rate was last written; null before the first.
	LastChange *time.Time `json:"last_change"`
	// State is "running", "stopped" (by a signal or a debugger), or "none".
	State ControllerState `json:"state"`
	// UnansweredEvents wait in the ring, the oldest for UnansweredSeconds. Stale says that this is
	// too long for a controller that does its work; the rates stay as they are then, and the data
	// path holds the bandwidth by itself.
	UnansweredEvents  int     `json:"unanswered_events"`
	UnansweredSeconds float64 `json:"unanswered_seconds"`
	Stale             bool    `json:"stale"`
}

// ControllerState tells whether a process runs the controller.
type ControllerState string

// The states of a controller.
const (
	ControllerRunning ControllerState = "running"
	ControllerStopped ControllerState = "stopped"
	ControllerNone    ControllerState = "none"
)

// BitsPerSec is a rate in JSON: a number, or null for unlimited.
type BitsPerSec rates.Rate

// MarshalJSON writes a number, or null for unlimited.
func (b BitsPerSec) MarshalJSON() ([]byte, error) {
	if rates.Rate(b) == rates.Unlimited {
		return []byte("null"), nil
	}
	return json.Marshal(uint64(b))
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (b *BitsPerSec) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*b = BitsPerSec(rates.Unlimited)
		return nil
	}
	return json.Unmarshal(text, (*uint64)(b))
}

// Seconds is a time in JSON that may be infinite.
type Seconds float64

// MarshalJSON writes a number, or "+Inf".
func (s Seconds) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(s), 1) {
		return []byte(`"+Inf"`), nil
	}
	return json.Marshal(float64(s))
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Seconds) UnmarshalJSON(text []byte) error {
	if string(text) == `"+Inf"` {
		*s = Seconds(math.Inf(1))
		return nil
	}
	return json.Unmarshal(text, (*float64)(s))
}

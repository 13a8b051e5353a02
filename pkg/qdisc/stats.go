// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// LeafStat is what the leaf of one transmit queue counted since it was made.
type LeafStat struct {
	Queue          int
	Kind           string
	Bytes          uint64
	Packets        uint64 // super-packets count as their segments
	Drops          uint32
	Requeues       uint32
	BacklogBytes   uint32
	BacklogPackets uint32 // super-packets count as one
	// FQ is nil for a leaf that isn't an fq.
	FQ *FQStat
}

// FQStat is what fq counts besides (struct tc_fq_qd_stats).
type FQStat struct {
	Throttled         uint64 // times a flow had to wait for a departure time
	FlowLimitDrops    uint64 // the flow was full (flows_plimit)
	AllocationErrors  uint64
	CEMarks           uint64
	HorizonDrops      uint64
	HorizonCaps       uint64
	Flows             uint32
	InactiveFlows     uint32
	ThrottledFlows    uint32
	UnthrottleDelayNs uint32 // smoothed lateness of departures
}

// LeafStats reads the counters of our leaves, ordered by queue. It returns
// none when our root is not in place.
func LeafStats(link netlink.Link) ([]LeafStat, error) {
	c, err := openRTNL()
	if err != nil {
		return nil, err
	}
	defer c.close()
	a := link.Attrs()
	msgs, err := c.dumpTC(unix.RTM_GETQDISC, unix.RTM_NEWQDISC, a.Index, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: read the qdiscs: %w", a.Name, err)
	}
	var stats []LeafStat
	for _, m := range msgs {
		kind := nl.BytesToString(m.attrs[nl.TCA_KIND])
		s := LeafStat{Kind: kind}
		switch {
		case m.parent == parentRoot && m.handle == RootHandle && kind != "mq":
		case m.parent != parentRoot && m.parent.major() == RootHandle:
			s.Queue = int(m.parent.minor()) - 1
		default:
			continue
		}
		if err := s.decode(m.attrs[nl.TCA_STATS2]); err != nil {
			return nil, fmt.Errorf("%s: read the counters of queue %d: %w", a.Name, s.Queue, err)
		}
		stats = append(stats, s)
	}
	slices.SortFunc(stats, func(x, y LeafStat) int { return cmp.Compare(x.Queue, y.Queue) })
	return stats, nil
}

func (s *LeafStat) decode(stats []byte) error {
	attrs, err := attributes(stats)
	if err != nil {
		return err
	}
	order := nl.NativeEndian()
	if b := attrs[nl.TCA_STATS_BASIC]; len(b) >= 12 { // struct gnet_stats_basic
		s.Bytes, s.Packets = order.Uint64(b), uint64(order.Uint32(b[8:]))
	}
	if b := attrs[nl.TCA_STATS_PKT64]; len(b) >= 8 { // only there once 32 bits are not enough
		s.Packets = order.Uint64(b)
	}
	if b := attrs[nl.TCA_STATS_QUEUE]; len(b) >= 20 { // struct gnet_stats_queue
		s.BacklogPackets, s.BacklogBytes = order.Uint32(b), order.Uint32(b[4:])
		s.Drops, s.Requeues = order.Uint32(b[8:]), order.Uint32(b[12:])
	}
	if s.Kind != "fq" {
		return nil
	}
	// Newer kernels append to the structure and older ones show less of it:
	// what is not there reads as zero.
	app := attrs[nl.TCA_STATS_APP]
	b := make([]byte, max(len(app), 104))
	copy(b, app)
	s.FQ = &FQStat{
		Throttled:         order.Uint64(b[24:]),
		FlowLimitDrops:    order.Uint64(b[32:]),
		AllocationErrors:  order.Uint64(b[48:]),
		Flows:             order.Uint32(b[64:]),
		InactiveFlows:     order.Uint32(b[68:]),
		ThrottledFlows:    order.Uint32(b[72:]),
		UnthrottleDelayNs: order.Uint32(b[76:]),
		CEMarks:           order.Uint64(b[80:]),
		HorizonDrops:      order.Uint64(b[88:]),
		HorizonCaps:       order.Uint64(b[96:]),
	}
	return nil
}

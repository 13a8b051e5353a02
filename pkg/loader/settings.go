// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

// Settings are what the data path reads at each packet. They can change at any time: no clock is
// reset and no packet lost by it.
type Settings struct {
	Bandwidth rates.Rate
	// LocalHorizon and ForwardHorizon bound how far ahead a departure may lie, for packets of local
	// sockets and for forwarded ones; a packet beyond is dropped.
	LocalHorizon, ForwardHorizon time.Duration
	// FullPacketBytes is what a packet of the device's MTU takes on the line.
	FullPacketBytes int
	// Epoch is the unit of time that flows are counted in. One that has lasted counts for up to
	// 32 of them after its last packet has left.
	Epoch time.Duration
	// EqualFlows says that all flows of a tin are to get the same (rates.SplitFlows).
	EqualFlows bool
	// Isolation is what is treated equally.
	Isolation Isolation
	// Leases lets each CPU book ahead where the rate is high enough, which spares CPUs that send at the
	// same time from waiting for each other.
	Leases bool
	// Queues is the number of transmit queues in use, at most [DataPath.Queues].
	Queues int
	Tins   []TinSettings
	// CheckQueues makes the data path note what it foresees, for [DataPath.CheckQueues].
	CheckQueues bool
	// Framing is what the line adds to a packet.
	Framing framing.Framing
	// Classes are the tins of DSCPs, and of marks.
	Classes tins.Classes
	// FwmarkMask are the bits of a mark that hold the number of a tin, counted from 1 in the order
	// of FwmarkTins; 0 is none.
	FwmarkMask uint32
	FwmarkTins []int
	// InnerDSCP lets the DSCP of what a tunnel carries decide.
	InnerDSCP bool
	// Wash clears the DSCP of what is sent.
	Wash bool
}

// TinSettings are the rates of one tin; [rates.Unlimited] as a ceiling means none.
type TinSettings struct {
	Rate, Ceil rates.Rate
	// AQMTarget and AQMInterval are CoDel's, for what no socket's buffer stops: a flow whose packets
	// wait longer than the target for an interval is told to slow down. No target is no AQM.
	AQMTarget, AQMInterval time.Duration
}

// Isolation is what the data path treats equally.
type Isolation uint32

// Each flow, each host that sends or receives, each pair of hosts; or hosts, and then the flows of
// each.
const (
	IsolateFlows       = Isolation(dataPathIsolationISOLATE_FLOWS)
	IsolateSrcHost     = Isolation(dataPathIsolationISOLATE_SRCHOST)
	IsolateDstHost     = Isolation(dataPathIsolationISOLATE_DSTHOST)
	IsolateHosts       = Isolation(dataPathIsolationISOLATE_HOSTS)
	IsolateDualSrcHost = Isolation(dataPathIsolationISOLATE_DUAL_SRCHOST)
	IsolateDualDstHost = Isolation(dataPathIsolationISOLATE_DUAL_DSTHOST)
	IsolateTriple      = Isolation(dataPathIsolationISOLATE_TRIPLE)
)

// Configure makes the data path follow the settings from the next packet on.
func (d *DataPath) Configure(s Settings) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	return d.configure(s, uint64(now.Nano()))
}

func (d *DataPath) configure(s Settings, nowNs uint64) error {
	if s.Queues < 1 || s.Queues > d.queues {
		return fmt.Errorf("configure the data path: %d transmit queues, the maps have room for %d", s.Queues, d.queues)
	}
	config := dataPathDeviceConfig{
		BandwidthNsPerByteQ24: rates.NsPerByteQ24(s.Bandwidth),
		LocalHorizonNs:        uint64(s.LocalHorizon),
		ForwardHorizonNs:      uint64(s.ForwardHorizon),
		FullPacketBytes:       uint32(s.FullPacketBytes),
		EpochNs:               uint64(s.Epoch),
		Queues:                uint32(s.Queues),
		Isolation:             dataPathIsolation(s.Isolation),
		LayoutVersion:         LayoutVersion,
		DscpToTin:             s.Classes.DSCPToTin,
		Framing:               framingConfig(s.Framing),
		ByMark:                flag(s.FwmarkMask != 0 || len(s.Classes.MarkToTin) > 0),
		FwmarkMask:            s.FwmarkMask,
		FwmarkShift:           uint8(bits.TrailingZeros32(s.FwmarkMask) & 31),
		InnerDscp:             flag(s.InnerDSCP),
		Wash:                  flag(s.Wash),
	}
	for i, tin := range s.FwmarkTins {
		config.FwmarkToTin[i] = uint8(tin)
	}
	if s.EqualFlows {
		config.EqualFlows = 1
	}
	if s.Bandwidth != rates.Unlimited {
		// Nothing can be booked beyond the calendar's end; the last quarter is left to what the
		// search for a free tick adds.
		span := time.Duration(len(dataPathCalendar{}.Ticks)*3/4) << tickShift(s.Bandwidth, s.FullPacketBytes)
		config.LocalHorizonNs = min(config.LocalHorizonNs, uint64(span))
		config.ForwardHorizonNs = min(config.ForwardHorizonNs, uint64(span))
		config.TickShift = tickShift(s.Bandwidth, s.FullPacketBytes)
		config.TickBytes = tickBytes(s.Bandwidth, config.TickShift)
		if s.Leases {
			config.LeaseBytes = leaseBytes(config.TickBytes, config.FullPacketBytes)
		}
	}
	for i, tin := range s.Tins {
		config.Tins[i].RateNsPerByteQ24 = rates.NsPerByteQ24(tin.Rate)
		config.Tins[i].CeilNsPerByteQ24 = rates.NsPerByteQ24(tin.Ceil)
		config.Tins[i].AqmTargetNs = uint64(tin.AQMTarget)
		config.Tins[i].AqmIntervalNs = uint64(tin.AQMInterval)
	}
	if err := d.setMarks(s.Classes.MarkToTin); err != nil {
		return err
	}
	var before dataPathDeviceConfig
	if err := d.objects.Config.Lookup(uint32(0), &before); err != nil {
		return fmt.Errorf("read the data path's configuration: %w", err)
	}
	if s.CheckQueues {
		config.CheckQueuesUntilNs = checkQueuesAlways
	} else if before.CheckQueuesUntilNs != checkQueuesAlways {
		config.CheckQueuesUntilNs = before.CheckQueuesUntilNs
	}
	// Ticks of another length have other numbers: what is booked is carried over to them.
	var calendar *dataPathCalendar
	if before.TickShift != config.TickShift && before.TickShift != 0 && config.TickShift != 0 {
		calendar = &dataPathCalendar{}
		if err := d.objects.Calendar.Lookup(uint32(0), calendar); err != nil {
			return fmt.Errorf("read the calendar: %w", err)
		}
		*calendar = rebooked(*calendar, nowNs, before.TickShift, config.TickShift)
	}
	if err := d.objects.Config.Put(uint32(0), config); err != nil {
		return fmt.Errorf("configure the data path: %w", err)
	}
	if calendar == nil {
		return nil
	}
	// What is booked from the reading to here is forgotten; its departures stand all the same. That
	// are microseconds, as a pointer is written as it is, while a value would be encoded.
	if err := d.objects.Calendar.Put(uint32(0), calendar); err != nil {
		return fmt.Errorf("write the calendar: %w", err)
	}
	return nil
}

// leaseBytes is how much of a tick a CPU may book ahead: a small part, so that what many CPUs leave
// unused of theirs is little, and nothing where that is a packet or two.
func leaseBytes(tickBytes, fullPacketBytes uint32) uint32 {
	const part, packetsMin = 512, 3
	if lease := tickBytes / part; lease >= packetsMin*fullPacketBytes {
		return lease
	}
	return 0
}

func flag(set bool) uint8 {
	if set {
		return 1
	}
	return 0
}

func framingConfig(f framing.Framing) dataPathFraming {
	config := dataPathFraming{
		InUse:         flag(f != framing.Framing{}),
		OverIp:        flag(f.OverIP),
		OverheadBytes: int32(f.OverheadBytes),
		MpuBytes:      uint32(f.MPUBytes),
		OwnBytesSent:  1,
		UnitBytes:     1,
	}
	switch f.Cells {
	case framing.ATM:
		config.UnitBytes, config.UnitSentBytes, config.OwnBytesSent = 48, 53, 0
	case framing.PTM:
		config.UnitBytes, config.UnitSentBytes = 64, 1
	}
	return config
}

// setMarks makes the data path know these marks and no others.
func (d *DataPath) setMarks(tinOfMark map[uint32]uint8) error {
	var stale []uint32
	var mark, tin uint32
	known := d.objects.MarkToTin.Iterate()
	for known.Next(&mark, &tin) {
		if _, ok := tinOfMark[mark]; !ok {
			stale = append(stale, mark)
		}
	}
	if err := known.Err(); err != nil {
		return fmt.Errorf("read the tins of marks: %w", err)
	}
	// Room first: the map may be full.
	for _, mark := range stale {
		if err := d.objects.MarkToTin.Delete(mark); err != nil {
			return fmt.Errorf("forget the tin of mark %#x: %w", mark, err)
		}
	}
	for mark, tin := range tinOfMark {
		if err := d.objects.MarkToTin.Put(mark, uint32(tin)); err != nil {
			return fmt.Errorf("set the tin of mark %#x: %w", mark, err)
		}
	}
	return nil
}

// rebooked is a calendar of ticks of 2^from ns in ticks of 2^to ns, from now on.
func rebooked(old dataPathCalendar, nowNs uint64, from, to uint32) dataPathCalendar {
	var calendar dataPathCalendar
	ticks := uint64(len(old.Ticks))
	for tick := nowNs >> from; tick < nowNs>>from+ticks; tick++ {
		was := old.Ticks[tick%ticks]
		if was.StampAndBytes>>32 != tick&math.MaxUint32 {
			continue
		}
		// A tick that becomes several is spread over them; several that become one add up.
		parts := max(uint64(1)<<from>>to, 1)
		bytes := was.StampAndBytes & math.MaxUint32
		for part := range parts {
			number := (tick<<from)>>to + part
			if number >= nowNs>>to+ticks {
				break
			}
			at := &calendar.Ticks[number%ticks]
			if at.StampAndBytes>>32 != number&math.MaxUint32 {
				at.StampAndBytes = number << 32
			}
			at.StampAndBytes += (bytes + part) / parts
		}
	}
	return calendar
}

const (
	// A tick is 1.05 ms or longer, and has room for two full packets.
	minTickShift = 20
	tickPackets  = 2
)

// tickShift is the length of the calendar's tick at a bandwidth, as a power of two of nanoseconds.
func tickShift(bandwidth rates.Rate, fullPacketBytes int) uint32 {
	shift := uint32(minTickShift)
	for tickBytes(bandwidth, shift) < uint32(tickPackets*fullPacketBytes) {
		shift++
	}
	return shift
}

// tickBytes is what a bandwidth carries in a tick.
func tickBytes(bandwidth rates.Rate, shift uint32) uint32 {
	hi, lo := bits.Mul64(uint64(bandwidth), 1<<shift)
	bytes, _ := bits.Div64(hi, lo, 8*uint64(time.Second))
	return uint32(bytes)
}

// MaxXPSQueues is the number of transmit queues that one CPU may be given.
const MaxXPSQueues = 16

// SetXPS tells the data path which transmit queues XPS allows each CPU; a CPU without an entry, or
// with none, has no XPS. Queues beyond [MaxXPSQueues] are left out.
func (d *DataPath) SetXPS(queuesOfCPU map[int][]int) error {
	for cpu := range int(d.objects.Xps.MaxEntries()) {
		var entry dataPathXpsEntry
		for _, queue := range queuesOfCPU[cpu] {
			if int(entry.Count) == MaxXPSQueues {
				break
			}
			entry.Queues[entry.Count] = uint16(queue)
			entry.Count++
		}
		if err := d.objects.Xps.Put(uint32(cpu), entry); err != nil {
			return fmt.Errorf("tell the data path the XPS map of CPU %d: %w", cpu, err)
		}
	}
	return nil
}

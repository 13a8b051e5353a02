// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/cakectl/cakectl/pkg/rates"
)

// Settings are what the data path reads at each packet. They can change at any time: no clock is
// reset and no packet lost by it.
type Settings struct {
	Bandwidth rates.Rate
	// LocalHorizon and ForwardHorizon bound how far ahead a departure may lie, for packets of local
	// sockets and for forwarded ones; a packet beyond is dropped.
	LocalHorizon, ForwardHorizon time.Duration
	// FullPacketBytes is the size of a packet of the device's MTU with its link header.
	FullPacketBytes int
	// Epoch is the time within which an active flow sends at least once.
	Epoch time.Duration
	// Queues is the number of transmit queues in use, at most [DataPath.Queues].
	Queues int
	Tins   []TinSettings
	// DSCPToTin is the tin of each DSCP.
	DSCPToTin [64]uint8
}

// TinSettings are the rates of one tin; [rates.Unlimited] as a ceiling means none.
type TinSettings struct {
	Rate, Ceil rates.Rate
}

// Configure makes the data path follow the settings from the next packet on.
func (d *DataPath) Configure(s Settings) error {
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
		LayoutVersion:         LayoutVersion,
		DscpToTin:             s.DSCPToTin,
	}
	if s.Bandwidth != rates.Unlimited {
		config.TickShift = tickShift(s.Bandwidth, s.FullPacketBytes)
		config.TickBytes = tickBytes(s.Bandwidth, config.TickShift)
	}
	for i, tin := range s.Tins {
		config.Tins[i].RateNsPerByteQ24 = rates.NsPerByteQ24(tin.Rate)
		config.Tins[i].CeilNsPerByteQ24 = rates.NsPerByteQ24(tin.Ceil)
	}
	if err := d.objects.Config.Put(uint32(0), config); err != nil {
		return fmt.Errorf("configure the data path: %w", err)
	}
	return nil
}

const (
	// A tick is 1.05 ms or longer, and has room for four full packets.
	minTickShift = 20
	tickPackets  = 4
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

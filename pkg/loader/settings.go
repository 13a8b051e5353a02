// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"fmt"
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
	// DebtLimit bounds how far departures may run ahead of the bandwidth.
	DebtLimit time.Duration
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
		DebtLimitNs:           uint64(s.DebtLimit),
		EpochNs:               uint64(s.Epoch),
		Queues:                uint32(s.Queues),
		LayoutVersion:         LayoutVersion,
		DscpToTin:             s.DSCPToTin,
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

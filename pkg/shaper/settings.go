// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"math/bits"
	"time"

	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/qdisc"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

const (
	// A local socket's packets are charged to it until they leave, so its own buffer stops it long
	// before these horizons; they are sized so that many such sockets fit.
	localSockets    = 64
	minLocalHorizon = 2 * time.Second
	maxLocalHorizon = 60 * time.Second

	// Forwarded packets have nothing that stops them: they get a round-trip time, and never less
	// than this many full packets.
	minForwardPackets = 20

	// Ethernet's; a device without a link layer is taken to have one, which changes no rate.
	linkHeaderBytes = 14

	// An epoch, the unit of time that flows are counted in, is that of so many full packets: at a
	// low rate too a flow that goes on is seen before it is forgotten.
	epochPackets = 32
	minEpoch     = 4 * time.Millisecond
	maxEpoch     = 128 * time.Millisecond
)

// settings derives what the data path needs from what was asked for.
func settings(spec config.Spec, cfg rates.Config, queues int, mtu int, sizing qdisc.Sizing) (loader.Settings, error) {
	def, err := tins.Lookup(string(spec.Preset))
	if err != nil {
		return loader.Settings{}, err
	}
	classes, err := def.Classify(spec.Map)
	if err != nil {
		return loader.Settings{}, err
	}
	fullPacket := spec.Framing.Bytes(mtu+linkHeaderBytes, linkHeaderBytes)
	packet := timeToSend(uint64(fullPacket), cfg.Bandwidth)
	s := loader.Settings{
		Bandwidth:       cfg.Bandwidth,
		LocalHorizon:    min(max(timeToSend(localSockets*sizing.SendBufferDefaultBytes, cfg.Bandwidth), minLocalHorizon), maxLocalHorizon),
		ForwardHorizon:  max(spec.RTT, minForwardPackets*packet),
		FullPacketBytes: fullPacket,
		Epoch:           min(max(epochPackets*packet, minEpoch), maxEpoch),
		EqualFlows:      cfg.Split == rates.SplitFlows,
		Isolation:       isolation(spec.Isolation),
		Leases:          true,
		Queues:          queues,
		CheckQueues:     spec.CheckQueues,
		Framing:         spec.Framing,
		Classes:         classes,
		FwmarkMask:      spec.FwmarkMask,
		FwmarkTins:      def.DisplayOrder,
		InnerDSCP:       spec.InnerDSCP,
		Wash:            spec.Wash,
	}
	for _, tin := range cfg.Tins {
		target, interval := aqm(spec.RTT, timeToSend(uint64(fullPacket), tin.Rate))
		s.Tins = append(s.Tins, loader.TinSettings{Rate: tin.Rate, Ceil: tin.Ceil, AQMTarget: target, AQMInterval: interval})
	}
	return s, nil
}

func isolation(i config.Isolation) loader.Isolation {
	switch i {
	case config.IsolateSrcHost:
		return loader.IsolateSrcHost
	case config.IsolateDstHost:
		return loader.IsolateDstHost
	case config.IsolateHosts:
		return loader.IsolateHosts
	case config.IsolateDualSrcHost:
		return loader.IsolateDualSrcHost
	case config.IsolateDualDstHost:
		return loader.IsolateDualDstHost
	case config.IsolateTriple:
		return loader.IsolateTriple
	}
	return loader.IsolateFlows
}

// aqm is CoDel's target and interval for traffic of a round-trip time, in a tin where a full packet
// takes so long, as CAKE has them: a twentieth of the round-trip time and all of it, and at low rates
// no less than one and a half packets, and two targets.
func aqm(rtt, packet time.Duration) (target, interval time.Duration) {
	target = max(packet+packet/2, rtt/20)
	return target, max(rtt+target-rtt/20, 2*target)
}

// packetRate is what the bandwidth leaves for packets of the device's MTU themselves.
func packetRate(spec config.Spec, bandwidth rates.Rate, mtu int) rates.Rate {
	if bandwidth == rates.Unlimited || spec.Framing == (framing.Framing{}) {
		return bandwidth
	}
	hi, lo := bits.Mul64(uint64(bandwidth), uint64(mtu))
	rate, _ := bits.Div64(hi, lo, uint64(max(spec.Framing.Bytes(mtu+linkHeaderBytes, linkHeaderBytes), 1)))
	return rates.Rate(rate)
}

// timeToSend is how long n bytes take at a rate; an hour and more is an hour.
func timeToSend(n uint64, rate rates.Rate) time.Duration {
	if rate == rates.Unlimited {
		return 0
	}
	hi, lo := bits.Mul64(n, 8*uint64(time.Second))
	if hi >= uint64(rate) {
		return time.Hour
	}
	ns, _ := bits.Div64(hi, lo, uint64(rate))
	return min(time.Duration(min(ns, uint64(time.Hour))), time.Hour)
}

// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"fmt"
	"math"
	"math/bits"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/rates"
)

// The attributes of fq's TCA_OPTIONS (linux/pkt_sched.h, TCA_FQ_*) that are
// written here.
const (
	fqPacketLimit     = 1
	fqFlowPacketLimit = 2
	fqQuantum         = 3
	fqBucketsLog      = 8
	fqOrphanMask      = 10
	fqTimerSlack      = 13
	fqHorizon         = 14
	fqHorizonDrop     = 15
)

// HorizonPolicy says what fq does with a packet whose departure time lies
// beyond its horizon.
type HorizonPolicy uint8

const (
	// HorizonDefault leaves it to the kernel, which drops.
	HorizonDefault HorizonPolicy = iota
	// HorizonCap moves the departure to the horizon.
	HorizonCap
	// HorizonDrop drops the packet.
	HorizonDrop
)

// FQOptions are the options of one fq. A field that is zero is left as the
// kernel has it, by default the value given here.
type FQOptions struct {
	LimitPackets     uint32        // all flows together, and from Linux 6.7 for each of 3 bands; 10000
	FlowLimitPackets uint32        // one flow; 100
	QuantumBytes     uint32        // 2 MTU
	Buckets          uint32        // hash buckets of the flows, a power of two up to 2^18; 1024
	OrphanMask       uint32        // flows of packets without a socket, less one: a power of two less one; 1023
	HorizonNs        uint64        // kept in microseconds, rounded up; 10 s
	HorizonPolicy    HorizonPolicy // HorizonDrop
	TimerSlackNs     uint32        // 10 us
}

// fqAttr is one option in the kernel's terms.
type fqAttr struct {
	name  string
	kind  int
	bytes int
	value uint32
}

// attrs lists the options that are set.
func (o FQOptions) attrs() []fqAttr {
	horizonUs := min((o.HorizonNs+999)/1000, math.MaxUint32)
	all := []struct {
		set bool
		fqAttr
	}{
		{o.LimitPackets > 0, fqAttr{"limit", fqPacketLimit, 4, o.LimitPackets}},
		{o.FlowLimitPackets > 0, fqAttr{"flow_limit", fqFlowPacketLimit, 4, o.FlowLimitPackets}},
		{o.QuantumBytes > 0, fqAttr{"quantum", fqQuantum, 4, o.QuantumBytes}},
		{o.Buckets > 0, fqAttr{"buckets_log", fqBucketsLog, 4, uint32(bits.Len32(o.Buckets) - 1)}},
		{o.OrphanMask > 0, fqAttr{"orphan_mask", fqOrphanMask, 4, o.OrphanMask}},
		{o.TimerSlackNs > 0, fqAttr{"timer_slack", fqTimerSlack, 4, o.TimerSlackNs}},
		{o.HorizonNs > 0, fqAttr{"horizon_us", fqHorizon, 4, uint32(horizonUs)}},
		{o.HorizonPolicy == HorizonCap, fqAttr{"horizon_drop", fqHorizonDrop, 1, 0}},
		{o.HorizonPolicy == HorizonDrop, fqAttr{"horizon_drop", fqHorizonDrop, 1, 1}},
	}
	var set []fqAttr
	for _, a := range all {
		if a.set {
			set = append(set, a.fqAttr)
		}
	}
	return set
}

// encode writes the options that are set as the kernel reads them.
func (o FQOptions) encode() []byte { return encodeFQ(o.attrs()) }

func encodeFQ(attrs []fqAttr) []byte {
	nest := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	for _, a := range attrs {
		value := []byte{byte(a.value)}
		if a.bytes == 4 {
			value = nl.Uint32Attr(a.value)
		}
		nest.AddRtAttr(a.kind, value)
	}
	return nest.Serialize()[unix.SizeofRtAttr:]
}

// diff says in words which of the options that are set are not those of a
// live fq, given the bytes that the kernel shows of it.
func (o FQOptions) diff(shown []byte) ([]string, error) { return fqDiff(o.attrs(), shown) }

func fqDiff(wanted []fqAttr, shown []byte) ([]string, error) {
	got, err := attributes(shown)
	if err != nil {
		return nil, err
	}
	var d []string
	for _, want := range wanted {
		b, ok := got[uint16(want.kind)]
		if !ok || len(b) < want.bytes {
			d = append(d, fmt.Sprintf("%s is unknown to this kernel, want %d", want.name, want.value))
			continue
		}
		value := uint32(b[0])
		if want.bytes == 4 {
			value = nl.NativeEndian().Uint32(b)
		}
		if value != want.value {
			d = append(d, fmt.Sprintf("%s is %d, want %d", want.name, value, want.value))
		}
	}
	return d, nil
}

// Sizing is what SizeFQ sizes the fqs for.
type Sizing struct {
	Bandwidth rates.Rate
	// LocalHorizonNs and ForwardHorizonNs are how far ahead the data path
	// lets the departures of a local socket's and of a forwarded packet be;
	// it drops what lies beyond.
	LocalHorizonNs   uint64
	ForwardHorizonNs uint64
	// SendBufferDefaultBytes and SendBufferMaxBytes are net.core.wmem_default
	// and wmem_max.
	SendBufferDefaultBytes uint64
	SendBufferMaxBytes     uint64
	// MemoryBytes is the memory of the machine; 0 sets no bound by it.
	MemoryBytes uint64
}

const (
	// A packet is charged to its socket with its overhead: struct sk_buff
	// (256) and a head that holds at least its headers and struct
	// skb_shared_info (320). Measured: 768 for small datagrams, 2304 at an
	// MTU of 1500; no kernel gets below this.
	minChargeBytes  = 512
	fullChargeBytes = 2304

	minPacketBytes = 64

	// SO_SNDBUF doubles what it is given, so a socket's buffer reaches twice
	// wmem_max.
	sendBufferFactor = 2

	// As many sockets with the default buffer fit into one queue however slow
	// the device is.
	minSockets = 64

	kernelLimitPackets = 10_000
	maxLimitPackets    = 1 << 22

	kernelHorizonNs = 10_000_000_000

	fqBuckets    = 1 << 12
	fqOrphanBits = 1<<16 - 1
)

// SizeFQ sizes one fq so that it is never the one that drops: the data path
// drops beyond its own horizons, and sockets stop at their send buffers.
//
//   - A flow holds what one socket can have in flight, which is 2 wmem_max at
//     the smallest charge of a packet, or, where flows of forwarded packets
//     share it, all that the bandwidth carries of the smallest packets within
//     the forwarding horizon.
//   - All flows together hold what the bandwidth carries of the smallest
//     packets within the longest horizon, all of it in one queue, and no less
//     than 64 sockets' default buffers. An eighth of the memory, at the charge
//     of full packets, is the bound: it matters only where the data path no
//     longer limits, such as a device slower than its bandwidth.
//   - The horizon is twice the data path's longest, no less than the kernel's
//     10 s, and what lies beyond is moved there and not dropped.
//   - Forwarded packets fall into 65536 flows, not 1024.
func SizeFQ(s Sizing) FQOptions {
	limit := uint64(kernelLimitPackets)
	flow := divideUp(sendBufferFactor*s.SendBufferMaxBytes, minChargeBytes)
	limit = max(limit, flow, minSockets*divideUp(s.SendBufferDefaultBytes, minChargeBytes))
	if s.Bandwidth != rates.Unlimited {
		flow = max(flow, packetsWithin(s.Bandwidth, s.ForwardHorizonNs))
		limit = max(limit, flow, packetsWithin(s.Bandwidth, max(s.LocalHorizonNs, s.ForwardHorizonNs)))
	}
	bound := uint64(maxLimitPackets)
	if s.MemoryBytes > 0 {
		bound = min(bound, max(kernelLimitPackets, s.MemoryBytes/8/fullChargeBytes))
	}
	limit = min(limit, bound)
	return FQOptions{
		LimitPackets:     uint32(limit),
		FlowLimitPackets: uint32(min(flow, limit)),
		Buckets:          fqBuckets,
		OrphanMask:       fqOrphanBits,
		HorizonNs:        max(kernelHorizonNs, 2*max(s.LocalHorizonNs, s.ForwardHorizonNs)),
		HorizonPolicy:    HorizonCap,
	}
}

// packetsWithin is how many of the smallest packets a rate carries in a time.
func packetsWithin(r rates.Rate, ns uint64) uint64 {
	const divisor = 8 * minPacketBytes * 1_000_000_000
	hi, lo := bits.Mul64(uint64(r), ns)
	if hi >= divisor {
		return math.MaxUint64
	}
	quotient, _ := bits.Div64(hi, lo, divisor)
	return quotient
}

func divideUp(a, b uint64) uint64 { return (a + b - 1) / b }

// HostSizing reads the send buffer limits and the memory of this machine into
// a Sizing whose other fields are zero. Network namespaces of older kernels
// don't show the buffer limits; there it takes the kernel's defaults.
func HostSizing() (Sizing, error) {
	const kernelSendBufferBytes = 212_992
	s := Sizing{
		SendBufferDefaultBytes: procNumber("/proc/sys/net/core/wmem_default", kernelSendBufferBytes),
		SendBufferMaxBytes:     procNumber("/proc/sys/net/core/wmem_max", kernelSendBufferBytes),
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Sizing{}, fmt.Errorf("read the size of the memory: %w", err)
	}
	s.MemoryBytes = info.Totalram * uint64(info.Unit)
	return s, nil
}

func procNumber(path string, otherwise uint64) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return otherwise
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}

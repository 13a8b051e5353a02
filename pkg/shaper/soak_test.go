// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/lab/traffic"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/qdisc"
	"github.com/cakectl/cakectl/pkg/rates"
)

// soakTime is how long TestSoak runs: 10 minutes by `make soak`.
var soakTime = flag.Duration("soak", 20*time.Second, "how long TestSoak runs")

const (
	soakQueues   = 8
	soakInterval = 100 * time.Millisecond // between two changes of the rate
	soakMin      = 14 * rates.Mbit
	soakMax      = 28 * rates.Mbit
	soakSeed     = 1
)

// TestSoak keeps a device busy with TCP and UDP of several tins, deep and sparse, and changes the
// bandwidth all the time, at random. Nothing is lost or reordered, no flow stalls, what arrives is
// what the bandwidth allows, and no map grows. It needs a clock that no busy host disturbs: the VM's
// that counts instructions.
//
// What is booked leaves at the rate of its time, so the total is exact only where most of the traffic
// does not book far ahead: of the flows here one does, and the bandwidth varies by a factor of 2.
func TestSoak(t *testing.T) {
	if os.Getenv("CAKECTL_VM") == "" {
		t.Skip("make soak runs this in the VM")
	}
	env, device := newEnv(t, soakQueues)
	here, there := testnet.Here(t), farEnd(t, device)
	s, err := Attach(t.Context(), env, spec("20mbit"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	controller := make(chan error, 1)
	go func() { controller <- here.Do(func() error { return s.Run(ctx) }) }()

	address := netip.MustParseAddr(testnet.PeerAddress)
	tcp := []*traffic.TCP{}
	for _, c := range []traffic.TCPConfig{{Flows: 4}, {Flows: 2, DSCP: dscpBulk}} {
		flows, err := traffic.StartTCP(ctx, here, there, address, c)
		if err != nil {
			t.Fatal(err)
		}
		tcp = append(tcp, flows)
	}
	udp := []*traffic.UDP{}
	for _, c := range []traffic.UDPConfig{
		{Flows: 1, FrameBytes: 1200, RateBitsPerSecond: float64(soakMax)},
		{Flows: 1, FrameBytes: 700, RateBitsPerSecond: 2_000_000, DSCP: dscpVideo},
		{Flows: 16, FrameBytes: 120, RateBitsPerSecond: 10_000},
		{Flows: 1, FrameBytes: 214, RateBitsPerSecond: 87_000, DSCP: dscpVoice},
	} {
		flows, err := traffic.StartUDP(ctx, here, there, address, c)
		if err != nil {
			t.Fatal(err)
		}
		udp = append(udp, flows)
	}

	random := rand.New(rand.NewPCG(soakSeed, 0))
	change := func() rates.Rate {
		rate := soakMin + rates.Rate(random.Int64N(int64(soakMax-soakMin)))
		value := rates.Absolute(rate)
		if _, err := s.Set(t.Context(), config.Change{Bandwidth: &value}); err != nil {
			t.Fatal(err)
		}
		return rate
	}
	received := func() (counts []uint64) {
		for _, flows := range tcp {
			bytes, err := flows.Received()
			if err != nil {
				t.Fatal(err)
			}
			counts = append(counts, bytes...)
		}
		for _, flows := range udp {
			counts = append(counts, flows.Received()...)
		}
		return counts
	}

	time.Sleep(time.Second)
	maps := mapBytes(t)
	rate, changed := change(), monotonic(t)
	started, startBytes := changed, arrivedBytes(t, there)
	before := received()
	var allowed float64
	for second := started; changed-started < *soakTime; {
		time.Sleep(soakInterval - (monotonic(t)-started)%soakInterval)
		next := change()
		now := monotonic(t)
		allowed += float64(rate) / 8 * (now - changed).Seconds()
		rate, changed = next, now
		if now-second < time.Second {
			continue
		}
		after := received()
		for flow := range after {
			if after[flow] == before[flow] {
				t.Errorf("flow %d: nothing arrived from %v to %v", flow, second-started, now-started)
			}
		}
		second, before = now, after
	}
	arrived := float64(arrivedBytes(t, there) - startBytes)
	t.Logf("%v: %.0f bytes arrived, %.5f of what the bandwidth allowed", changed-started, arrived, arrived/allowed)
	// Between changes the line is full to a tenth of a percent. What is booked before the bandwidth is
	// raised leaves as booked, so with ten changes a second about 1.1 % of it stays unused.
	if math.Abs(arrived-allowed) > allowed/50 {
		t.Errorf("%.0f bytes arrived, the bandwidth allowed %.0f", arrived, allowed)
	}
	if got := mapBytes(t); got != maps {
		t.Errorf("maps have %d bytes, had %d", got, maps)
	}

	for _, flows := range udp {
		result, err := flows.Stop(t.Context())
		if err != nil {
			t.Error(err)
		}
		if result.Reordered != 0 || result.Lost() != 0 {
			t.Errorf("UDP: %d packets reordered, %.4f lost", result.Reordered, result.Lost())
		}
	}
	for _, flows := range tcp {
		if err := flows.Stop(); err != nil {
			t.Error(err)
		}
	}
	drain(t, device)
	wantConsistentCounters(t, s, device)
	stop()
	if err := errors.Join(<-controller, s.Detach(t.Context()), s.Close()); err != nil {
		t.Error(err)
	}
}

const (
	dscpBulk  = 8  // CS1
	dscpVideo = 34 // AF41
	dscpVoice = 46 // EF
)

// farEnd gives the device's peer a namespace of its own, in which it answers. Super-packets are cut
// before they get there, so that it counts what is on the wire.
func farEnd(t *testing.T, device netlink.Link) testnet.Namespace {
	t.Helper()
	there, peer := testnet.New(t), testnet.Link(t, testnet.Peer)
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	testnet.Run(t, "ethtool -K "+testnet.Device+" tso off")
	must("move the peer", there.Take(peer))
	must("set the peer up", there.Do(func() error {
		return errors.Join(
			netlink.LinkSetUp(peer),
			netlink.AddrAdd(peer, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(testnet.PeerAddress), Mask: net.CIDRMask(24, 32)}}),
			netlink.NeighSet(&netlink.Neigh{
				LinkIndex: peer.Attrs().Index, State: unix.NUD_PERMANENT,
				IP: net.ParseIP(testnet.Address), HardwareAddr: device.Attrs().HardwareAddr,
			}),
		)
	}))
	return there
}

// arrivedBytes is what the peer counted.
func arrivedBytes(t *testing.T, there testnet.Namespace) (bytes uint64) {
	t.Helper()
	err := there.Do(func() error {
		peer, err := netlink.LinkByName(testnet.Peer)
		if err == nil {
			bytes = peer.Attrs().Statistics.RxBytes
		}
		return err
	})
	if err != nil {
		t.Fatalf("read the peer's counters: %v", err)
	}
	return bytes
}

func monotonic(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatalf("read the clock: %v", err)
	}
	return time.Duration(now.Nano())
}

// mapBytes is the memory of all BPF maps.
func mapBytes(t *testing.T) (bytes uint64) {
	t.Helper()
	for id, err := ebpf.MapGetNextID(0); err == nil; id, err = ebpf.MapGetNextID(id) {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatalf("open BPF map %d: %v", id, err)
		}
		info, err := m.Info()
		if err != nil {
			t.Fatalf("look at BPF map %d: %v", id, err)
		}
		locked, ok := info.Memlock()
		if !ok {
			t.Fatalf("this kernel does not tell the memory of BPF map %d", id)
		}
		bytes += locked
		m.Close()
	}
	return bytes
}

// drain waits until the fqs are empty.
func drain(t *testing.T, device netlink.Link) {
	t.Helper()
	for {
		stats, err := qdisc.LeafStats(device)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(stats, func(leaf qdisc.LeafStat) bool { return leaf.BacklogPackets > 0 }) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// wantConsistentCounters compares what the program counted by tin and by queue with each other, and
// with what the qdiscs sent. Nothing was dropped anywhere.
func wantConsistentCounters(t *testing.T, s *Shaper, device netlink.Link) {
	t.Helper()
	status, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	type count struct{ packets, bytes uint64 }
	var tins, queues, leaves count
	for _, tin := range status.Tins {
		tins.packets += tin.SentPackets
		tins.bytes += tin.SentBytes
		for reason, packets := range tin.DroppedPackets {
			if packets != 0 {
				t.Errorf("tin %s: %d packets dropped: %s", tin.Name, packets, reason)
			}
		}
	}
	for queue := range soakQueues {
		c, err := s.datapath.QueueCounters(queue)
		if err != nil {
			t.Fatal(err)
		}
		queues.packets += c.Packets
		queues.bytes += c.Bytes
	}
	stats, err := qdisc.LeafStats(device)
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range stats {
		leaves.packets += leaf.Packets
		leaves.bytes += leaf.Bytes
		if leaf.Drops != 0 {
			t.Errorf("the fq of queue %d dropped %d packets", leaf.Queue, leaf.Drops)
		}
	}
	if tins != queues || tins != leaves {
		t.Errorf("counted by tins %+v, by queues %+v, by fq %+v", tins, queues, leaves)
	}
}

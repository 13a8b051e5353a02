// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/rates"
)

// someFQ and otherFQ set every option.
var (
	someFQ = FQOptions{
		LimitPackets: 50_000, FlowLimitPackets: 3000, QuantumBytes: 3028, Buckets: 4096, OrphanMask: 65535,
		HorizonNs: 20_000_000_000, HorizonPolicy: HorizonCap, TimerSlackNs: 5000,
	}
	otherFQ = FQOptions{
		LimitPackets: 60_000, FlowLimitPackets: 4000, QuantumBytes: 6056, Buckets: 2048, OrphanMask: 4095,
		HorizonNs: 30_000_000_001, HorizonPolicy: HorizonDrop, TimerSlackNs: 6000,
	}
)

func TestVMInstallAndRestore(t *testing.T) {
	vmOnly(t)
	for _, queues := range []int{1, 4, 32} {
		for _, up := range []bool{true, false} {
			t.Run(fmt.Sprintf("queues=%d,up=%t", queues, up), func(t *testing.T) {
				inNetns(t)
				link := newVeth(t, queues, up)
				testInstallAndRestore(t, link, installer{leaf: fqLeaf{someFQ}}, installer{leaf: fqLeaf{otherFQ}})
			})
		}
	}
}

// TestVMTreeAsTCShowsIt compares with what tc says of the tree.
func TestVMTreeAsTCShowsIt(t *testing.T) {
	vmOnly(t)
	link := newVeth(t, 2, true)
	if _, err := Install(context.Background(), link, Options{FQ: someFQ}); err != nil {
		t.Fatal(err)
	}
	shown := tc(t, "qdisc show dev v0")
	for _, want := range []string{
		"qdisc mq ca4e: root",
		"qdisc fq ca4f: parent ca4e:1 limit 50000p flow_limit 3000p buckets 4096 orphan_mask 65535 quantum 3028b",
		"qdisc fq ca50: parent ca4e:2 limit 50000p flow_limit 3000p buckets 4096 orphan_mask 65535 quantum 3028b",
		"timer_slack 5us horizon 20s horizon_cap",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("tc doesn't show %q but\n%s", want, shown)
		}
	}
	if problems, err := Verify(link, Options{FQ: someFQ}); err != nil || len(problems) > 0 {
		t.Errorf("Verify: %q, %v", problems, err)
	}
	problems, err := Verify(link, Options{FQ: otherFQ})
	if err != nil {
		t.Fatal(err)
	}
	if want := "leaf of queue 1: fq ca50:, limit is 50000, want 60000"; !slices.Contains(problems, want) {
		t.Errorf("Verify doesn't say %q but %q", want, problems)
	}
}

// TestVMSizedOptions: the kernel takes what SizeFQ makes, at both ends.
func TestVMSizedOptions(t *testing.T) {
	vmOnly(t)
	link := newVeth(t, 2, true)
	for _, bandwidth := range []rates.Rate{rates.MinBandwidth, rates.MaxBandwidth, rates.Unlimited} {
		sizing, err := HostSizing()
		if err != nil {
			t.Fatal(err)
		}
		sizing.Bandwidth, sizing.LocalHorizonNs, sizing.ForwardHorizonNs = bandwidth, 2_000_000_000, 100_000_000
		if _, err := Install(context.Background(), link, Options{FQ: SizeFQ(sizing)}); err != nil {
			t.Errorf("%s: %v", bandwidth, err)
		}
	}
}

func TestVMInstallUndoesEachStep(t *testing.T) {
	vmOnly(t)
	for name, qdisc := range map[string]string{
		"default":          "",
		"foreign fq_codel": "fq_codel limit 1000 target 7ms interval 123ms",
		"foreign cake":     "cake bandwidth 20mbit diffserv3",
	} {
		t.Run(name, func(t *testing.T) {
			inNetns(t)
			link := newVeth(t, 4, true)
			if qdisc != "" {
				tc(t, "qdisc add dev v0 root handle 1: "+qdisc)
			}
			before := mustCapture(t, link)
			for k := range 5 {
				in := installer{leaf: fqLeaf{someFQ}, replace: true}
				n := 0
				in.before = func(string) error {
					if n++; n > k {
						return errInjected
					}
					return nil
				}
				if _, err := in.install(context.Background(), link); !errors.Is(err, errInjected) {
					t.Fatalf("step %d failed and install returned %v", k+1, err)
				}
				wantSame(t, fmt.Sprintf("after step %d failed", k+1), before, link)
			}
		})
	}
}

// TestVMKindsThatRoundTrip proves restorableKind for the kinds that only
// kernels with modules have.
func TestVMKindsThatRoundTrip(t *testing.T) {
	vmOnly(t)
	for _, c := range []string{
		"fq",
		"fq limit 999 flow_limit 33 buckets 64 orphan_mask 15 quantum 9000 initial_quantum 5000 maxrate 33mbit refill_delay 12ms low_rate_threshold 1mbit ce_threshold 3ms timer_slack 77us horizon 3s horizon_cap",
		"fq nopacing horizon_drop",
		"fq_codel",
		"fq_codel limit 333 flows 77 target 7ms interval 123ms quantum 555 memory_limit 3000000 ce_threshold 11ms noecn drop_batch 13",
		"fq_codel target 1us interval 999us ce_threshold 0us",
		"cake",
		"cake bandwidth 12345kbit diffserv8 nat wash dual-srchost ack-filter-aggressive ingress overhead -10 mpu 64 atm rtt 33ms memlimit 3000000 fwmark 0xff no-split-gso",
		"cake bandwidth 1gbit besteffort flowblind raw autorate-ingress",
		"cake bandwidth 1gbit diffserv3 triple-isolate noatm overhead 0",
	} {
		t.Run(c, func(t *testing.T) { testRoundTrip(t, c, installer{leaf: fqLeaf{someFQ}, replace: true}) })
	}
}

// TestVMCakeMQRoundTrips goes past tc, which may not know cake_mq yet.
func TestVMCakeMQRoundTrips(t *testing.T) {
	vmOnly(t)
	link := newVeth(t, 4, true)
	c, err := openRTNL()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	tc(t, "qdisc add dev v0 root handle 1: cake bandwidth 12345kbit diffserv8 nat wash dual-srchost overhead -10 mpu 64 atm rtt 33ms no-split-gso")
	cake, _ := mustCapture(t, link).root()
	tc(t, "qdisc del dev v0 root")
	err = c.newQdisc(link.Attrs().Index, Qdisc{Kind: "cake_mq", Handle: 0x1_0000, Parent: parentRoot, Options: cake.Options})
	if errors.Is(err, unix.ENOENT) {
		t.Logf("no cake_mq before Linux 7.0: %v", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	before := mustCapture(t, link)
	if lost := before.Unrestorable(); len(lost) > 0 || len(before.tree()) != 5 {
		t.Fatalf("found %v, not restorable: %q", before.tree(), lost)
	}
	if _, err := Install(context.Background(), link, Options{FQ: someFQ, Replace: true}); err != nil {
		t.Fatal(err)
	}
	if err := Restore(context.Background(), link, before); err != nil {
		t.Error(err)
	}
	wantSame(t, "after restore", before, link)
}

// TestVMDefaultTrees restores what the kernel makes by itself, for each kind
// that it may be told to make. That is for all network namespaces at once and
// only seen in the first, where the VM has nobody else.
func TestVMDefaultTrees(t *testing.T) {
	vmOnly(t)
	inFirstNetns(t)
	for _, kind := range []string{"pfifo_fast", "pfifo", "fq_codel", "fq", "cake"} {
		for _, queues := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s,queues=%d", kind, queues), func(t *testing.T) {
				setDefaultQdisc(t, kind)
				link := newIFB(t, queues)
				before := mustCapture(t, link)
				want := kind + " 0:@root"
				if queues == 4 {
					want = strings.ReplaceAll("K 0:@0:1, K 0:@0:2, K 0:@0:3, K 0:@0:4, mq 0:@root", "K", kind)
				}
				wantTree(t, link, want)
				if before.DefaultQdisc != kind || !before.Default() {
					t.Errorf("default qdisc %q, Default() %t", before.DefaultQdisc, before.Default())
				}
				testInstallAndRestore(t, link, installer{leaf: fqLeaf{someFQ}}, installer{leaf: fqLeaf{otherFQ}})
			})
		}
	}
}

func TestVMDefaultChangedSince(t *testing.T) {
	vmOnly(t)
	inFirstNetns(t)
	setDefaultQdisc(t, "pfifo_fast")
	link := newIFB(t, 1)
	before := mustCapture(t, link)
	if _, err := Install(context.Background(), link, Options{FQ: someFQ}); err != nil {
		t.Fatal(err)
	}
	setDefaultQdisc(t, "fq_codel")
	err := Restore(context.Background(), link, before)
	const want = "root: was pfifo_fast 0:, is fq_codel 0: (net.core.default_qdisc was pfifo_fast, is fq_codel)"
	if !errors.Is(err, ErrNotRestored) || !strings.Contains(err.Error(), want) {
		t.Errorf("Restore returned %v", err)
	}
}

// TestVMFiltersOnADefaultRoot: filters can hang on a qdisc that the kernel
// made, and would be lost with it.
func TestVMFiltersOnADefaultRoot(t *testing.T) {
	vmOnly(t)
	inFirstNetns(t)
	setDefaultQdisc(t, "fq_codel")
	link := newIFB(t, 1)
	tc(t, "filter add dev ifbtest protocol all prio 5 matchall action pass")
	before := mustCapture(t, link)
	_, err := Install(context.Background(), link, Options{FQ: someFQ})
	if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "1 filter of fq_codel 0:") {
		t.Errorf("Install returned %v", err)
	}
	wantSame(t, "after a refusal", before, link)
}

// inFirstNetns goes back to the network namespace of the VM's first process.
func inFirstNetns(t *testing.T) {
	t.Helper()
	if os.Getenv("CAKECTL_VM") == "" {
		t.Fatal("not in the VM: the first network namespace is not ours")
	}
	first, err := netns.GetFromPid(1)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if err := netns.Set(first); err != nil {
		t.Fatal(err)
	}
}

func setDefaultQdisc(t *testing.T, kind string) {
	t.Helper()
	const sysctl = "/proc/sys/net/core/default_qdisc"
	was, err := os.ReadFile(sysctl)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sysctl, []byte(kind), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(sysctl, was, 0); err != nil {
			t.Error(err)
		}
	})
}

// newIFB makes a device for which the kernel makes a queue by default, unlike
// for veth.
func newIFB(t *testing.T, queues int) netlink.Link {
	t.Helper()
	a := netlink.NewLinkAttrs()
	a.Name, a.NumTxQueues, a.NumRxQueues = "ifbtest", queues, queues
	if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: a}); err != nil {
		t.Fatalf("add an ifb device: %v", err)
	}
	link := linkByName(t, "ifbtest")
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Errorf("delete ifbtest: %v", err)
		}
	})
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	return link
}

// TestVMUnknownOptionsAreIgnored: an option that a kernel doesn't know does
// not make it refuse the rest.
func TestVMUnknownOptionsAreIgnored(t *testing.T) {
	vmOnly(t)
	link := newVeth(t, 1, true)
	c, err := openRTNL()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	const ofTheFuture = 60
	options := append(someFQ.encode(), nl.NewRtAttr(ofTheFuture, nl.Uint32Attr(1)).Serialize()...)
	if err := c.newQdisc(link.Attrs().Index, Qdisc{Kind: "fq", Handle: RootHandle, Parent: parentRoot, Options: options}); err != nil {
		t.Fatal(err)
	}
	root, _ := mustCapture(t, link).root()
	if diff, err := someFQ.diff(root.Options); err != nil || len(diff) > 0 {
		t.Errorf("%q, %v", diff, err)
	}
	diff, err := fqDiff([]fqAttr{{"of_the_future", ofTheFuture, 4, 1}}, root.Options)
	if want := []string{"of_the_future is unknown to this kernel, want 1"}; err != nil || !slices.Equal(diff, want) {
		t.Errorf("%q, %v, want %q", diff, err, want)
	}
}

// TestVMLeafStats makes fq do each thing that it counts.
func TestVMLeafStats(t *testing.T) {
	vmOnly(t)
	link := newVeth(t, 1, false)
	// Or the kernel sends packets of its own.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/v0/disable_ipv6", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"v0", "v1"} {
		if err := netlink.LinkSetUp(linkByName(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	options := FQOptions{LimitPackets: 1000, FlowLimitPackets: 5, HorizonNs: 10_000_000_000, HorizonPolicy: HorizonDrop}
	if _, err := Install(context.Background(), link, Options{FQ: options}); err != nil {
		t.Fatal(err)
	}
	s := newTimedSender(t)
	s.send(t, 100, 0)
	s.send(t, 100, 20*time.Second) // beyond the horizon
	for range 8 {
		s.send(t, 100, 5*time.Second) // 5 stay, 3 are dropped
	}
	stats, err := LeafStats(link)
	if err != nil {
		t.Fatal(err)
	}
	if len(stats) != 1 || stats[0].FQ == nil {
		t.Fatalf("%+v", stats)
	}
	got := stats[0]
	const frame = 14 + 20 + 8 + 100
	if got.Queue != 0 || got.Kind != "fq" || got.Packets != 1 || got.Bytes != frame ||
		got.Drops != 4 || got.BacklogPackets != 5 || got.BacklogBytes != 5*frame {
		t.Errorf("%+v", got)
	}
	if fq := got.FQ; fq.HorizonDrops != 1 || fq.HorizonCaps != 0 || fq.FlowLimitDrops != 3 || fq.Throttled != 1 ||
		fq.Flows != 1 || fq.ThrottledFlows != 1 {
		t.Errorf("%+v", *fq)
	}

	options.HorizonPolicy = HorizonCap
	if _, err := Install(context.Background(), link, Options{FQ: options}); err != nil {
		t.Fatal(err)
	}
	newTimedSender(t).send(t, 100, 20*time.Second)
	if stats, err = LeafStats(link); err != nil || len(stats) != 1 || stats[0].FQ.HorizonCaps != 1 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestVMChangeKeepsPackets: a change of options on a live device loses nothing
// of what waits.
func TestVMChangeKeepsPackets(t *testing.T) {
	vmOnly(t)
	link := newVeth(t, 4, true)
	if _, err := Install(context.Background(), link, Options{FQ: someFQ}); err != nil {
		t.Fatal(err)
	}
	const waiting = 50
	for range waiting {
		newTimedSender(t).send(t, 100, 15*time.Second)
	}
	if _, err := Install(context.Background(), link, Options{FQ: otherFQ}); err != nil {
		t.Fatal(err)
	}
	if problems, err := Verify(link, Options{FQ: otherFQ}); err != nil || len(problems) > 0 {
		t.Errorf("%q, %v", problems, err)
	}
	stats, err := LeafStats(link)
	if err != nil {
		t.Fatal(err)
	}
	var backlog, drops uint32
	for i, s := range stats {
		if s.Queue != i {
			t.Errorf("leaf %d is of queue %d", i, s.Queue)
		}
		backlog, drops = backlog+s.BacklogPackets, drops+s.Drops
	}
	if len(stats) != 4 || backlog != waiting || drops != 0 {
		t.Errorf("%d leaves, %d packets wait and %d were dropped, want 4, %d and 0", len(stats), backlog, drops, waiting)
	}
}

// TestVMSocketsBlockBeforeFQDrops fills a socket with packets that fq must
// hold, of each size and with each buffer, and wants the socket full first.
func TestVMSocketsBlockBeforeFQDrops(t *testing.T) {
	vmOnly(t)
	sizing, err := HostSizing()
	if err != nil {
		t.Fatal(err)
	}
	sizing.Bandwidth, sizing.LocalHorizonNs, sizing.ForwardHorizonNs = 10*rates.Mbit, 5_000_000_000, 100_000_000
	for _, bytes := range []int{1, 64, 200, 1400} {
		for _, largest := range []bool{false, true} {
			t.Run(fmt.Sprintf("bytes=%d,largest=%t", bytes, largest), func(t *testing.T) {
				inNetns(t)
				link := newVeth(t, 1, true)
				if _, err := Install(context.Background(), link, Options{FQ: SizeFQ(sizing)}); err != nil {
					t.Fatal(err)
				}
				s := newTimedSender(t)
				if largest {
					if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, int(sizing.SendBufferMaxBytes)); err != nil {
						t.Fatal(err)
					}
				}
				sent := uint32(0)
				for s.trySend(t, bytes, 8*time.Second) {
					sent++
				}
				stats, err := LeafStats(link)
				if err != nil {
					t.Fatal(err)
				}
				if got := stats[0]; got.Drops != 0 || got.BacklogPackets != sent || sent == 0 {
					t.Errorf("%d sent until the socket was full, %d wait, %d were dropped: %+v", sent, got.BacklogPackets, got.Drops, *got.FQ)
				}
				t.Logf("a socket holds %d packets of %d bytes", sent, bytes)
			})
		}
	}
}

// timedSender sends UDP datagrams over v0 that ask for a departure time, which
// is what the BPF program writes into packets.
type timedSender struct {
	fd int
	to unix.SockaddrInet4
}

func newTimedSender(t *testing.T) timedSender {
	t.Helper()
	link := linkByName(t, "v0")
	address, err := netlink.ParseAddr("10.9.0.1/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrReplace(link, address); err != nil {
		t.Fatal(err)
	}
	err = netlink.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: net.IPv4(10, 9, 0, 2), HardwareAddr: linkByName(t, "v1").Attrs().HardwareAddr,
	})
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	// struct sock_txtime: the clock and no flags.
	txtime := binary.NativeEndian.AppendUint32(nil, unix.CLOCK_MONOTONIC)
	txtime = binary.NativeEndian.AppendUint32(txtime, 0)
	if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_TXTIME, string(txtime)); err != nil {
		t.Fatal(err)
	}
	s := timedSender{fd, unix.SockaddrInet4{Port: 9, Addr: [4]byte{10, 9, 0, 2}}}
	// Flows of connected sockets are told apart by the socket.
	if err := unix.Connect(fd, &s.to); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s timedSender) send(t *testing.T, bytes int, delay time.Duration) {
	t.Helper()
	if !s.trySend(t, bytes, delay) {
		t.Fatal("the socket is full")
	}
}

// trySend returns false when the socket is full. What fq drops counts as sent.
func (s timedSender) trySend(t *testing.T, bytes int, delay time.Duration) bool {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	control := make([]byte, unix.CmsgSpace(8))
	header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	header.Level, header.Type = unix.SOL_SOCKET, unix.SCM_TXTIME
	header.SetLen(unix.CmsgLen(8))
	binary.NativeEndian.PutUint64(control[unix.CmsgLen(0):], uint64(now.Nano()+delay.Nanoseconds()))
	err := unix.Sendmsg(s.fd, make([]byte, bytes), control, nil, 0)
	if errors.Is(err, unix.EAGAIN) {
		return false
	}
	if err != nil && !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("send: %v", err)
	}
	return true
}

// virtioDevice finds a virtio-net device of the VM, which is in the first
// network namespace. Outside the VM such a device is the machine's own link to
// the world: never touch that.
func virtioDevice(t *testing.T) netlink.Link {
	t.Helper()
	if os.Getenv("CAKECTL_VM") == "" {
		t.Skip("not in the VM lane, and the devices of this machine are not ours")
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		driver, err := os.Readlink("/sys/class/net/" + l.Attrs().Name + "/device/driver")
		if err == nil && filepath.Base(driver) == "virtio_net" {
			return l
		}
	}
	t.Skip("no virtio-net device: this test runs in the VM lane with -virtio 4")
	return nil
}

// TestVirtioInstallAndRestore runs on a device with a real driver, whose
// default is mq with the kernel's leaves and whose queues have XPS maps.
func TestVirtioInstallAndRestore(t *testing.T) {
	link := virtioDevice(t)
	name := link.Attrs().Name
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkSetDown(link); err != nil {
			t.Error(err)
		}
	})
	before := mustCapture(t, link)
	kind := before.DefaultQdisc
	wantTree(t, link, strings.ReplaceAll("K 0:@0:1, K 0:@0:2, K 0:@0:3, K 0:@0:4, mq 0:@root", "K", kind))
	if !before.Default() || len(before.XPS) != 4 || before.NumTxQueues != 4 || before.RealTxQueues != 4 {
		t.Fatalf("%s: want the default and 4 queues with XPS: %+v", name, before)
	}
	t.Logf("%s: %d queues, mq 0: over %s 0:, XPS %v", name, before.RealTxQueues, kind, before.XPS)
	first := installer{leaf: fqLeaf{someFQ}}
	testInstallAndRestore(t, link, first, installer{leaf: fqLeaf{otherFQ}})

	t.Run("queues removed and added", func(t *testing.T) {
		if _, err := first.install(context.Background(), link); err != nil {
			t.Fatal(err)
		}
		for _, queues := range []uint32{2, 4, 1, 4} {
			setQueues(t, name, queues)
			if problems, err := Verify(link, Options{FQ: someFQ}); err != nil || len(problems) > 0 {
				t.Errorf("with %d queues: %q, %v", queues, problems, err)
			}
		}
		if err := Restore(context.Background(), link, before); err != nil {
			t.Error(err)
		}
		wantSame(t, "after restore", before, link)
	})
	t.Run("attached with fewer queues than the device has", func(t *testing.T) {
		setQueues(t, name, 2)
		fewer := mustCapture(t, link)
		if _, err := first.install(context.Background(), link); err != nil {
			t.Fatal(err)
		}
		setQueues(t, name, 4)
		if problems, err := Verify(link, Options{FQ: someFQ}); err != nil || len(problems) > 0 {
			t.Errorf("%q, %v", problems, err)
		}
		if err := Restore(context.Background(), link, fewer); err != nil {
			t.Error(err)
		}
		wantSame(t, "after restore with all queues", before, link)
	})
	t.Run("GSO", func(t *testing.T) {
		if err := ApplyGSOCap(link, before, 40*rates.Mbit); err != nil {
			t.Fatal(err)
		}
		if now := mustCapture(t, link); now.GSOMaxSizeBytes != 3384 || now.GSOMaxSegments != 2 {
			t.Errorf("limits are %d bytes and %d segments, want 3384 and 2", now.GSOMaxSizeBytes, now.GSOMaxSegments)
		}
		if err := RestoreGSO(link, before); err != nil {
			t.Fatal(err)
		}
		wantSame(t, "after restore", before, link)
	})
}

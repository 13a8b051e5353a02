// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/cakectl/cakectl/pkg/rates"
)

func TestGSOCap(t *testing.T) {
	const unlimited = 1<<32 - 1
	for _, c := range []struct {
		bandwidth      rates.Rate
		mtu            uint32
		size, segments uint32
	}{
		{64 * rates.Kbit, 1500, 1884, 1},
		{12 * rates.Mbit, 1500, 1884, 1},
		{12*rates.Mbit + 1, 1500, 3384, 2},
		{40 * rates.Mbit, 1500, 3384, 2},
		{200 * rates.Mbit, 1500, 6384, 4},
		{1 * rates.Gbit, 1500, 30384, 20},
		{1 * rates.Gbit, 9000, 27384, 3},
		{400 * rates.Gbit, 1500, 12499884, 8333},
		{10 * rates.Mbit, 65536, 65920, 1},
		{10 * rates.Mbit, 0, 696, 312},
		{rates.Unlimited, 1500, unlimited, unlimited},
	} {
		size, segments := GSOCap(c.bandwidth, c.mtu)
		if size != c.size || segments != c.segments {
			t.Errorf("%s, MTU %d: %d bytes, %d segments, want %d and %d", c.bandwidth, c.mtu, size, segments, c.size, c.segments)
		}
	}
}

func TestGSOCapProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rates.Rate(rapid.Uint64Range(uint64(rates.MinBandwidth), uint64(rates.MaxBandwidth)).Draw(t, "rate"))
		mtu := rapid.Uint32Range(68, 65536).Draw(t, "mtu")
		size, segments := GSOCap(rate, mtu)
		if uint64(size) < uint64(segments)*uint64(mtu)+gsoHeaderBytes {
			t.Errorf("%d bytes are too few for %d segments", size, segments)
		}
		if slow := uint64(mtu)*8*1000 >= uint64(rate); segments < 1 || segments < 2 && !slow {
			t.Errorf("%d segments, slow: %t", segments, slow)
		}
		if line := uint64(segments) * uint64(mtu) * 8 * 4000; segments > 2 && line > uint64(rate) {
			t.Errorf("%d segments take more than 0.25 ms", segments)
		}
		moreSize, moreSegments := GSOCap(rate+rates.Mbit, mtu)
		if moreSize < size || moreSegments < segments {
			t.Errorf("a higher rate lowers the cap")
		}
	})
}

func TestApplyGSOCap(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 4, true)
	found := mustCapture(t, link)
	check := func(what string, size, segments uint32) {
		t.Helper()
		now := mustCapture(t, link)
		ipv4 := size
		if found.GSOIPv4MaxSizeBytes == 0 {
			ipv4 = 0 // before Linux 6.3
		}
		if now.GSOMaxSizeBytes != size || now.GSOMaxSegments != segments || now.GSOIPv4MaxSizeBytes != ipv4 {
			t.Errorf("%s: %d, %d, %d, want %d, %d, %d", what, now.GSOMaxSizeBytes, now.GSOMaxSegments, now.GSOIPv4MaxSizeBytes, size, segments, ipv4)
		}
	}
	for _, c := range []struct {
		bandwidth      rates.Rate
		size, segments uint32
	}{
		{40 * rates.Mbit, 3384, 2},
		{200 * rates.Mbit, 6384, 4},
		{200 * rates.Mbit, 6384, 4},
		{64 * rates.Kbit, 1884, 1},
		{10 * rates.Gbit, found.GSOMaxSizeBytes, 208},
		{rates.Unlimited, found.GSOMaxSizeBytes, found.GSOMaxSegments},
		{40 * rates.Mbit, 3384, 2},
	} {
		if err := ApplyGSOCap(link, found, c.bandwidth); err != nil {
			t.Fatal(err)
		}
		check(c.bandwidth.String(), c.size, c.segments)
	}
	for range 2 {
		if err := RestoreGSO(link, found); err != nil {
			t.Fatal(err)
		}
		wantSame(t, "after restore", found, link)
	}

	// BIG TCP: the limits of the families differ and setting one sets both.
	if found.GSOIPv4MaxSizeBytes == 0 {
		return
	}
	if err := netlink.LinkSetGSOMaxSize(link, 50_000); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetGSOIPv4MaxSize(link, 40_000); err != nil {
		t.Fatal(err)
	}
	found = mustCapture(t, link)
	if err := ApplyGSOCap(link, found, 1400*rates.Mbit); err != nil {
		t.Fatal(err)
	}
	if now := mustCapture(t, link); now.GSOMaxSizeBytes != 43_884 || now.GSOIPv4MaxSizeBytes != 40_000 {
		t.Errorf("limits are %d and for IPv4 %d, want 43884 and 40000", now.GSOMaxSizeBytes, now.GSOIPv4MaxSizeBytes)
	}
	if err := RestoreGSO(link, found); err != nil {
		t.Fatal(err)
	}
	wantSame(t, "after restore", found, link)
}

// TestGSOCapAndConnections shows what the comment of ApplyGSOCap says about
// connections that are open when the limits change.
func TestGSOCapAndConnections(t *testing.T) {
	const addrGenModeNone = 1 // IN6_ADDR_GEN_MODE_NONE
	for _, family := range []struct{ network, ours, theirs, unrelated string }{
		{"tcp4", "10.9.0.1/24", "10.9.0.2", "192.0.2.1/32"},
		{"tcp6", "fd09::1/64", "fd09::2", "2001:db8::1/128"},
	} {
		t.Run(family.network, func(t *testing.T) {
			inNetns(t)
			link := newVeth(t, 1, false)
			// The kernel's own addresses would come when they like, and each
			// renews all cached routes.
			for _, name := range []string{"v0", "v1"} {
				if err := netlink.LinkSetIP6AddrGenMode(linkByName(t, name), addrGenModeNone); err != nil {
					t.Fatal(err)
				}
			}
			if err := netlink.LinkSetUp(link); err != nil {
				t.Fatal(err)
			}
			sink := startSink(t, family.network, family.ours, family.theirs)
			w := newWidest(t, link)
			found := mustCapture(t, link)
			const full = 60_000
			segments3 := uint32(3*1500 + 14)

			open := sink.dial(t)
			if n := w.largest(t, open); n < full {
				t.Errorf("before: largest packet is %d bytes, want over %d", n, full)
			}
			if err := ApplyGSOCap(link, found, 40*rates.Mbit); err != nil {
				t.Fatal(err)
			}
			// What was built before the first packet looks for its route is
			// large still, so send twice.
			w.largest(t, open)
			renewed := family.network == "tcp4"
			if n := w.largest(t, open); renewed != (n <= segments3) {
				t.Errorf("after the lower limit an open connection sends %d bytes at once; its route was renewed: %v", n, renewed)
			}
			capped := sink.dial(t)
			if n := w.largest(t, capped); n > segments3 {
				t.Errorf("a new connection sends %d bytes at once, want at most %d", n, segments3)
			}
			changeAddresses(t, link, family.unrelated)
			w.largest(t, open)
			w.largest(t, capped)
			if n := w.largest(t, open); n > segments3 {
				t.Errorf("with a new route an open connection sends %d bytes at once, want at most %d", n, segments3)
			}
			if err := ApplyGSOCap(link, found, 2*rates.Mbit); err != nil {
				t.Fatal(err)
			}
			if n := w.largest(t, sink.dial(t)); n > 1500+14 {
				t.Errorf("on a slow line a new connection sends %d bytes at once, want a segment", n)
			}
			if err := RestoreGSO(link, found); err != nil {
				t.Fatal(err)
			}
			w.largest(t, capped)
			if n := w.largest(t, capped); renewed != (n >= full) {
				t.Errorf("after restore an open connection sends %d bytes at once; its route was renewed: %v", n, renewed)
			}
			if n := w.largest(t, sink.dial(t)); n < full {
				t.Errorf("after restore a new connection sends %d bytes at once, want over %d", n, full)
			}
		})
	}
}

// changeAddresses adds and removes an address that nobody uses.
func changeAddresses(t *testing.T, link netlink.Link, prefix string) {
	t.Helper()
	address := addAddress(t, link, prefix)
	if err := netlink.AddrDel(link, address); err != nil {
		t.Fatal(err)
	}
}

func addAddress(t *testing.T, link netlink.Link, prefix string) *netlink.Addr {
	t.Helper()
	address, err := netlink.ParseAddr(prefix)
	if err != nil {
		t.Fatal(err)
	}
	address.Flags = unix.IFA_F_NODAD
	if err := netlink.AddrAdd(link, address); err != nil {
		t.Fatal(err)
	}
	return address
}

// sink takes TCP connections on v1, in a network namespace of its own.
type sink struct{ network, address string }

func startSink(t *testing.T, network, ours, theirs string) sink {
	t.Helper()
	_, mask, _ := strings.Cut(ours, "/")
	here, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	peer := linkByName(t, "v1")
	addAddress(t, linkByName(t, "v0"), ours)
	there, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	back := func() {
		t.Helper()
		if err := netns.Set(here); err != nil {
			t.Fatal(err)
		}
	}
	back()
	if err := netlink.LinkSetNsFd(peer, int(there)); err != nil {
		t.Fatal(err)
	}
	if err := netns.Set(there); err != nil {
		t.Fatal(err)
	}
	defer back()
	addAddress(t, linkByName(t, "v1"), theirs+"/"+mask)
	if err := netlink.LinkSetUp(peer); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen(network, ":0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				io.Copy(io.Discard, c)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		serving.Wait()
	})
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return sink{network, net.JoinHostPort(theirs, port)}
}

func (s sink) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial(s.network, s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// largest sends for a while and returns the largest packet that came to the
// device's egress hook, where the data path sees it.
func (w *widest) largest(t *testing.T, c net.Conn) uint32 {
	t.Helper()
	if err := w.seen.Put(uint32(0), uint32(0)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	c.SetWriteDeadline(time.Now().Add(10 * time.Second))
	for range 8 {
		if _, err := c.Write(buf); err != nil {
			t.Fatal(err)
		}
	}
	drain(t, c)
	var n uint32
	if err := w.seen.Lookup(uint32(0), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// widest is a program at a device's egress hook that remembers the length of
// the largest packet.
type widest struct{ seen *ebpf.Map }

func newWidest(t *testing.T, link netlink.Link) *widest {
	t.Helper()
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { seen.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:    ebpf.SchedCLS,
		License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, 0, asm.Word), // __sk_buff.len
			asm.LoadMapPtr(asm.R1, seen.FD()),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
			asm.JGE.Reg(asm.R1, asm.R6, "out"),
			asm.StoreMem(asm.R0, 0, asm.R6, asm.Word),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TC_ACT_UNSPEC
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	index := link.Attrs().Index
	clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(clsact); err != nil {
		t.Fatal(err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs:  netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd:           prog.FD(),
		DirectAction: true,
	}
	if err := netlink.FilterAdd(filter); err != nil {
		t.Fatal(err)
	}
	return &widest{seen}
}

// drain waits until everything written to a connection is acknowledged.
func drain(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		var left int
		if ctlErr := raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); ctlErr != nil || err != nil {
			t.Fatal(ctlErr, err)
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes still not acknowledged", left)
		}
	}
}

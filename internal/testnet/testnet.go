// SPDX-License-Identifier: BSD-2-Clause

// Package testnet gives tests a network namespace of their own, with a device in it.
package testnet

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace that other goroutines can work in.
type Namespace struct{ handle netns.NsHandle }

// Here is the namespace of the test.
func Here(t testing.TB) Namespace {
	t.Helper()
	handle, err := netns.Get()
	if err != nil {
		t.Fatalf("get the network namespace: %v", err)
	}
	t.Cleanup(func() { handle.Close() })
	return Namespace{handle}
}

// New makes a network namespace that ends with the test.
func New(t testing.TB) Namespace {
	t.Helper()
	var own netns.NsHandle
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		var err error
		own, err = netns.New()
		made <- err
	}()
	must(t, "make a network namespace", <-made)
	t.Cleanup(func() { own.Close() })
	namespace := Namespace{own}
	must(t, "keep the namespace quiet", namespace.Do(func() error { quiet(t); return nil }))
	return namespace
}

// Take moves a device into the namespace, where it is down.
func (n Namespace) Take(link netlink.Link) error { return netlink.LinkSetNsFd(link, int(n.handle)) }

// Do calls f in the namespace, on a thread that is used for nothing else.
func (n Namespace) Do(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		if err := netns.Set(n.handle); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// quiet keeps new devices from sending by themselves: router solicitations and the like would be
// counted as packets of the test's.
func quiet(t testing.TB) {
	t.Helper()
	err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("switch IPv6 off in the test's network namespace: %v", err)
	}
}

// Names and addresses of the pair that [Veth] makes. The peer's address is known to be at the peer,
// which takes packets and answers none.
const (
	Device      = "v0"
	Peer        = "v1"
	Address     = "10.0.0.1"
	PeerAddress = "10.0.0.2"
)

// Enter runs the rest of the test in a network namespace of its own, which ends with the test.
func Enter(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatalf("get the network namespace: %v", err)
	}
	own, err := netns.New()
	if err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() {
		own.Close()
		if err := netns.Set(before); err != nil {
			// The thread is of no use to anybody; leaving it locked ends it.
			t.Errorf("go back to the network namespace: %v", err)
			return
		}
		before.Close()
		runtime.UnlockOSThread()
	})
	quiet(t)
}

// Veth makes a pair of devices with so many queues, up and with addresses, in the namespace of the
// test, and returns the first.
func Veth(t testing.TB, queues int) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = Device, queues, queues
	must(t, "add a veth pair", netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: Peer, PeerNumTxQueues: uint32(queues), PeerNumRxQueues: uint32(queues),
	}))
	device, peer := Link(t, Device), Link(t, Peer)
	must(t, "set the device up", netlink.LinkSetUp(device))
	must(t, "set the peer up", netlink.LinkSetUp(peer))
	must(t, "give the device an address", netlink.AddrAdd(device, &netlink.Addr{
		IPNet: &net.IPNet{IP: net.ParseIP(Address), Mask: net.CIDRMask(24, 32)},
	}))
	must(t, "say where the peer is", netlink.NeighSet(&netlink.Neigh{
		LinkIndex: device.Attrs().Index, State: unix.NUD_PERMANENT,
		IP: net.ParseIP(PeerAddress), HardwareAddr: peer.Attrs().HardwareAddr,
	}))
	return Link(t, Device)
}

// Link finds a device.
func Link(t testing.TB, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatalf("find %s: %v", name, err)
	}
	return link
}

// Run runs a command in the namespace of the test and returns what it printed.
func Run(t testing.TB, command string) string {
	t.Helper()
	words := strings.Fields(command)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

// Sysfs mounts the namespace's own /sys/class/net somewhere and returns the path: the one in /sys
// shows the namespace it was mounted in.
func Sysfs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, "mount sysfs", unix.Mount("sysfs", dir, "sysfs", 0, ""))
	t.Cleanup(func() { must(t, "unmount sysfs", unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir + "/class/net"
}

// BPFFS mounts a BPF file system of the test's own and returns its path.
func BPFFS(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, "mount a BPF file system", unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { must(t, "unmount the BPF file system", unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// NeedFQ is for tests that need a kernel with sch_fq: elsewhere they are skipped, except in the VM
// lane, where its absence is a failure.
func NeedFQ(t testing.TB) {
	t.Helper()
	Enter(t)
	device := Veth(t, 1)
	defer func() { must(t, "delete the veth pair", netlink.LinkDel(device)) }()
	err := netlink.QdiscAdd(netlink.NewFq(netlink.QdiscAttrs{
		LinkIndex: device.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0),
	}))
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist) && os.Getenv("CAKECTL_VM") == "":
		t.Skip("no sch_fq in this kernel: this test runs in the VM lane")
	default:
		t.Fatalf("put an fq on a veth: %v", err)
	}
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

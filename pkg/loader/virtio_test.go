// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/pkg/qdisc"
	"github.com/cakectl/cakectl/pkg/rates"
)

// TestVirtioQueuesAreForeseen checks foresight on a driver with queues, XPS and interrupts of its own,
// with packets from every CPU.
func TestVirtioQueuesAreForeseen(t *testing.T) {
	const (
		name             = "eth0"
		queues           = 4
		sockets, packets = 50, 5
	)
	if os.Getenv("CAKECTL_VM") == "" {
		t.Skip("not in the VM lane, and the devices of this machine are not ours")
	}
	driver, err := os.Readlink("/sys/class/net/" + name + "/device/driver")
	if err != nil || filepath.Base(driver) != "virtio_net" {
		t.Skip("no virtio-net device: this test runs in the VM lane with -virtio 4")
	}
	device := testnet.Link(t, name)
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(testnet.Address), Mask: net.CIDRMask(24, 32)}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netlink.LinkSetUp(device))
	must(netlink.AddrAdd(device, address))
	t.Cleanup(func() { must(netlink.AddrDel(device, address)); must(netlink.LinkSetDown(device)) })
	must(netlink.NeighSet(&netlink.Neigh{
		LinkIndex: device.Attrs().Index, State: unix.NUD_PERMANENT,
		IP: net.ParseIP(testnet.PeerAddress), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
	}))
	found, err := qdisc.Capture(device)
	must(err)
	xps, err := qdisc.XPSQueues(found.XPS)
	must(err)
	d := load(t, queues)
	must(d.SetXPS(xps))
	a, err := d.Attach(device, "")
	must(err)
	defer d.Detach(device, a, filepath.Join(testnet.BPFFS(t), name))
	check, err := d.CheckQueues()
	must(err)
	defer check.Close()
	must(d.CheckQueuesFor(time.Hour))
	must(d.Configure(testSettingsFor(rates.Unlimited, queues)))
	for cpu := range runtime.NumCPU() {
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
			var only unix.CPUSet
			only.Set(cpu)
			if err := unix.SchedSetaffinity(0, &only); err != nil {
				t.Error(err)
				return
			}
			sendUDP(t, sockets, packets)
		}()
		<-sent
	}
	got, err := d.Foresight()
	must(err)
	var matched, mismatched uint64
	for by := range got.Matched {
		matched += got.Matched[by]
		mismatched += got.Mismatched[by]
	}
	if want := uint64(runtime.NumCPU() * sockets * packets); matched < want || mismatched > 0 {
		t.Errorf("counted %+v, want %d packets, all foreseen", got, want)
	}
	for queue := range queues {
		counters, err := d.QueueCounters(queue)
		must(err)
		if counters.Packets == 0 {
			t.Errorf("queue %d was not used", queue)
		}
	}
	t.Logf("%s, XPS %v: %+v", filepath.Base(driver), xps, got)
}

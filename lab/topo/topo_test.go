// SPDX-License-Identifier: BSD-2-Clause

package topo_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/lab/topo"
)

func TestVMSink(t *testing.T) {
	if os.Getenv("CAKECTL_VM") == "" {
		t.Skip("for the VM lane: not every machine has dummy devices")
	}
	sink, err := topo.NewSink("topo-test", 8)
	if err != nil {
		t.Fatal(err)
	}
	err = sink.Sender.Do(func() error {
		link, err := netlink.LinkByName(topo.SenderDevice)
		if err == nil && link.Attrs().NumTxQueues != sink.Up.Queues {
			t.Errorf("%d transmit queues, want %d", link.Attrs().NumTxQueues, sink.Up.Queues)
		}
		return err
	})
	if err := errors.Join(err, sink.Close()); err != nil {
		t.Error(err)
	}
}

func TestPair(t *testing.T) {
	const queues = 32
	pair, err := topo.NewPair("topo-test", queues)
	if err != nil {
		t.Fatal(err)
	}
	for device, namespace := range map[string]*topo.Namespace{topo.SenderDevice: pair.Sender, topo.ReceiverDevice: pair.Receiver} {
		err := namespace.Do(func() error {
			link, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			if a := link.Attrs(); a.NumTxQueues != queues || a.NumRxQueues != queues {
				t.Errorf("%s has %d transmit and %d receive queues, want %d", device, a.NumTxQueues, a.NumRxQueues, queues)
			}
			neighbours, err := netlink.NeighList(link.Attrs().Index, unix.AF_INET)
			if err != nil {
				return err
			}
			want := 1
			if device == topo.SenderDevice {
				want = len(pair.ReceiverAddresses)
			}
			permanent := 0
			for _, n := range neighbours {
				if n.State == netlink.NUD_PERMANENT {
					permanent++
				}
			}
			if permanent != want {
				t.Errorf("%s has %d permanent neighbours, want %d", device, permanent, want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if err := pair.Close(); err != nil {
		t.Error(err)
	}
	for _, namespace := range []*topo.Namespace{pair.Sender, pair.Receiver} {
		if _, err := os.Stat(filepath.Join("/run/netns", namespace.Name)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", namespace.Name, err)
		}
	}
}

// The NICs of the VM are lent, and come back as they were.
func TestVirtio(t *testing.T) {
	const queues = 3
	before, err := netlink.LinkByName("eth1")
	if err != nil {
		t.Skip("for the VM lane with NICs: ", err)
	}
	pair, err := topo.NewVirtio("topo-test", queues)
	if err != nil {
		t.Fatal(err)
	}
	limits, err := pair.Up.ByteQueueLimits()
	if err != nil || len(limits) < queues {
		t.Errorf("byte-queue limits %v (%v), want one for each of %d queues", limits, err, queues)
	}
	if err := pair.Close(); err != nil {
		t.Fatal(err)
	}
	after, err := netlink.LinkByName("eth1")
	if err != nil || after.Attrs().HardwareAddr.String() != before.Attrs().HardwareAddr.String() {
		t.Errorf("after it eth1 is %+v (%v)", after, err)
	}
}

// A second pair of the same name fails and takes nothing of the first one with it.
func TestPairTwice(t *testing.T) {
	pair, err := topo.NewPair("topo-test", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topo.NewPair("topo-test", 1); err == nil {
		t.Error("a second pair of the same name was made")
	}
	err = pair.Sender.Do(func() error {
		_, err := netlink.LinkByName(topo.SenderDevice)
		return err
	})
	if err != nil {
		t.Errorf("the first pair after that: %v", err)
	}
	if err := pair.Close(); err != nil {
		t.Error(err)
	}
}

// Do leaves no thread of the program in the namespace.
func TestDoGoesBack(t *testing.T) {
	namespace, err := topo.NewNamespace("topo-test-ns")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := namespace.Close(); err != nil {
			t.Error(err)
		}
	}()
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var inside string
	err = namespace.Do(func() (err error) {
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if inside == home {
		t.Errorf("Do ran in the namespace %s of the program", home)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if _, err := strconv.Atoi(thread.Name()); err != nil {
			t.Fatal(err)
		}
		at, err := os.Readlink(filepath.Join("/proc/self/task", thread.Name(), "ns/net"))
		if err == nil && at != home {
			t.Errorf("thread %s is in %s", thread.Name(), at)
		}
	}
}

// What the sender sends passes the router, in packets that fit the wire.
func TestRouted(t *testing.T) {
	pair, err := topo.NewRouted("topo-test", 3, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pair.Close(); err != nil {
			t.Error(err)
		}
	}()
	var listener net.Listener
	err = pair.Receiver.Do(func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(pair.ReceiverAddresses[1], 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const bytes = 1 << 20
	sent := make(chan error, 1)
	go func() {
		sent <- pair.Sender.Do(func() error {
			conn, err := net.Dial("tcp4", listener.Addr().String())
			if err != nil {
				return err
			}
			_, err = conn.Write(make([]byte, bytes))
			return errors.Join(err, conn.Close())
		})
	}()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, conn); n != bytes || err != nil {
		t.Errorf("%d bytes arrived (%v), want %d", n, err, bytes)
	}
	if err := errors.Join(conn.Close(), <-sent); err != nil {
		t.Error(err)
	}
	err = pair.Up.Namespace.Do(func() error {
		link, err := netlink.LinkByName(pair.Up.Device)
		if err != nil {
			return err
		}
		if s := link.Attrs().Statistics; s.TxPackets < bytes/1448 {
			t.Errorf("the router sent %d bytes in %d packets", s.TxBytes, s.TxPackets)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

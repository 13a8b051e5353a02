// SPDX-License-Identifier: BSD-2-Clause

package meter_test

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/lab/meter"
	"github.com/cakectl/cakectl/lab/topo"
)

// Lengths of headers.
const (
	ethernet  = 14
	ipv4      = 20
	udp       = 8
	tcpStamps = 20 + 12
	// SYNs have 8 bytes of options more than later segments: MSS, SACK permitted and window scale beside
	// the timestamps make 40 bytes, not 32.
	synExtra = 8
)

func newPair(t *testing.T) *topo.Pair {
	t.Helper()
	pair, err := topo.NewPair("meter-test", 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Close(); err != nil {
			t.Error(err)
		}
	})
	return pair
}

func attach(t *testing.T, pair *topo.Pair, classes meter.Classifier) *meter.Meter {
	t.Helper()
	var m *meter.Meter
	err := pair.Receiver.Do(func() error {
		device, err := netlink.LinkByName(topo.ReceiverDevice)
		if err != nil {
			return err
		}
		m, err = meter.Attach(device, classes)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Receiver.Do(m.Close); err != nil {
			t.Error(err)
		}
	})
	return m
}

// read returns what was counted until now, the millisecond under way included.
func read(t *testing.T, m *meter.Meter) (*meter.Series, time.Duration) {
	t.Helper()
	time.Sleep(2 * time.Millisecond)
	s, err := m.Read()
	if err != nil {
		t.Fatal(err)
	}
	return s, meter.Now()
}

func TestUDPByClass(t *testing.T) {
	pair := newPair(t)
	var classes meter.Classifier
	classes[46], classes[8] = 2, 7
	m := attach(t, pair, classes)
	// Somebody to receive it: a refusal would make a send fail.
	var receiver net.PacketConn
	err := pair.Receiver.Do(func() (err error) {
		receiver, err = net.ListenPacket("udp4", netip.AddrPortFrom(pair.ReceiverAddresses[1], 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	before := meter.Now()
	const payload = 100
	packets := map[int]int{46: 5, 8: 3, 10: 2} // DSCP 10 has the class of all others, 0
	for dscp, n := range packets {
		err := pair.Sender.Do(func() error {
			dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, dscp<<2) })
			}}
			conn, err := dialer.Dial("udp4", receiver.LocalAddr().String())
			if err != nil {
				return err
			}
			defer conn.Close()
			for range n {
				if _, err := conn.Write(make([]byte, payload)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	s, now := read(t, m)
	for class, want := range map[int]uint64{2: 5, 7: 3, 0: 2, 1: 0} {
		if got := s.Bytes(before, now, class); got != want*(ethernet+ipv4+udp+payload) {
			t.Errorf("class %d: %d bytes, want %d frames of %d", class, got, want, ethernet+ipv4+udp+payload)
		}
	}
}

// A super-packet counts the headers of each of its segments, as a wire would carry them.
// A shaper at the other end may have programs at the device's clsact qdisc: they stay.
func TestBesideClsact(t *testing.T) {
	pair := newPair(t)
	err := pair.Receiver.Do(func() error {
		device, err := netlink.LinkByName(topo.ReceiverDevice)
		if err != nil {
			return err
		}
		err = netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: device.Attrs().Index,
			Handle:    netlink.MakeHandle(0xffff, 0),
			Parent:    netlink.HANDLE_CLSACT,
		}})
		if err != nil {
			return err
		}
		m, err := meter.Attach(device, meter.Classifier{})
		if err != nil {
			return err
		}
		if filters, err := netlink.FilterList(device, netlink.HANDLE_MIN_INGRESS); err != nil || len(filters) != 1 {
			t.Errorf("%d filters (%v) beside a meter, want its own", len(filters), err)
		}
		if err := m.Close(); err != nil {
			return err
		}
		filters, err := netlink.FilterList(device, netlink.HANDLE_MIN_INGRESS)
		if err != nil || len(filters) != 0 {
			t.Errorf("%d filters (%v) after a meter, want the clsact qdisc without any", len(filters), err)
		}
		qdiscs, err := netlink.QdiscList(device)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }) {
			t.Error("the clsact qdisc of another is gone")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTCPSegments(t *testing.T) {
	pair := newPair(t)
	var listener net.Listener
	err := pair.Receiver.Do(func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(pair.ReceiverAddresses[0], 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	m := attach(t, pair, meter.Classifier{})
	before := meter.Now()
	var conn net.Conn
	err = pair.Sender.Do(func() (err error) {
		conn, err = net.Dial("tcp4", listener.Addr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	const payload = 1 << 20
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(make([]byte, payload))
		sent <- err
	}()
	if _, err := io.ReadFull(peer, make([]byte, payload)); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	s, now := read(t, m)
	info := tcpInfo(t, conn)
	want := uint64(info.Segs_out)*(ethernet+ipv4+tcpStamps) + synExtra + info.Bytes_sent
	if got := s.Bytes(before, now); got != want {
		t.Errorf("%d bytes for %d segments with %d bytes of payload, want %d", got, info.Segs_out, info.Bytes_sent, want)
	}
	if uint64(info.Segs_out) < payload/1448 {
		t.Fatalf("only %d segments: the test shows nothing", info.Segs_out)
	}
}

func tcpInfo(t *testing.T, conn net.Conn) *unix.TCPInfo {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	var failed error
	err = raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return info
}

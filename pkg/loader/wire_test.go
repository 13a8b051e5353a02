// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
)

// TestFramedAsOnTheWire sends super-packets of all kinds through the attached program, lets the
// kernel cut them behind it, and compares what was counted with the frames that arrive.
func TestFramedAsOnTheWire(t *testing.T) {
	for _, keyword := range []string{"pppoe-ptm", "conservative"} {
		t.Run(keyword, func(t *testing.T) {
			line, err := framing.Parse([]string{keyword})
			if err != nil {
				t.Fatal(err)
			}
			w := newWire(t, line)
			w.compare("TCP over IPv4", func() error { return w.sendTCP("10.0.0.2") })
			w.compare("TCP over IPv6", func() error { return w.sendTCP("fd00::2") })
			w.compare("UDP", func() error { return w.sendUDP("10.0.0.2") })
			for kind := range w.tunnels {
				w.compare("TCP over IPv4 in "+kind, func() error { return w.sendTCP(tunnelAddress4(kind, 2)) })
				w.compare("TCP over IPv6 in "+kind, func() error { return w.sendTCP(tunnelAddress6(kind, 2)) })
			}
			// Last, as kernels before 7.0 do not say how many segments it has.
			w.compareBytes("TCP of a guest", w.sendAsGuest)
		})
	}
}

// wire is a device with the program, and what is at its other end.
type wire struct {
	t       *testing.T
	d       *DataPath
	line    framing.Framing
	peer    testnet.Namespace
	capture int             // a packet socket at the peer
	tunnels map[string]bool // that this kernel has
	// peerAddress is the hardware's.
	peerAddress net.HardwareAddr
	// What has arrived, counted as it takes the line.
	frames, bytes uint64
}

// Ends of the wire and of the tunnels in it: the device's is 1, the peer's 2.
func wireAddress6(end int) string { return fmt.Sprintf("fd00::%d", end) }

func tunnelAddress4(kind string, end int) string { return fmt.Sprintf("10.0.%d.%d", len(kind), end) }

func tunnelAddress6(kind string, end int) string { return fmt.Sprintf("fd00:%d::%d", len(kind), end) }

func newWire(t *testing.T, line framing.Framing) *wire {
	t.Helper()
	testnet.Enter(t)
	device := testnet.Veth(t, 1)
	w := &wire{t: t, line: line, peer: testnet.New(t), tunnels: map[string]bool{}}
	// What leaves the egress hook whole leaves the device in segments.
	testnet.Run(t, "ethtool -K v0 tso off tx-udp-segmentation off tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off")
	w.peerAddress = testnet.Link(t, testnet.Peer).Attrs().HardwareAddr
	w.must(w.peer.Take(testnet.Link(t, testnet.Peer)))
	w.must(w.peer.Do(func() (err error) {
		peer := testnet.Link(t, testnet.Peer)
		if err := netlink.LinkSetUp(peer); err != nil {
			return err
		}
		w.capture, err = captureOn(peer)
		return err
	}))
	t.Cleanup(func() { unix.Close(w.capture) })

	w.d = load(t, 1)
	settings := testSettingsFor(rates.Unlimited, 1)
	settings.Framing = line
	w.must(w.d.Configure(settings))
	_, err := w.d.Attach(device, "")
	w.must(err)

	// From here on, packets are counted at both ends.
	w.must(w.makeEnd(device, 1))
	w.must(w.peer.Do(func() error { return w.makeEnd(testnet.Link(t, testnet.Peer), 2) }))
	return w
}

func (w *wire) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// makeEnd gives a device its addresses, and tunnels to the other end.
func (w *wire) makeEnd(device netlink.Link, end int) error {
	if end == 2 { // the device has it
		if err := addAddress(device, testnet.PeerAddress+"/24"); err != nil {
			return err
		}
	}
	if err := addAddress(device, wireAddress6(end)+"/64"); err != nil {
		return err
	}
	other := net.ParseIP([]string{testnet.PeerAddress, testnet.Address}[end-1])
	for _, tunnel := range []netlink.Link{
		&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vxlan"}, VxlanId: 1, Port: 4789, Group: other, VtepDevIndex: device.Attrs().Index},
		&netlink.Geneve{LinkAttrs: netlink.LinkAttrs{Name: "geneve"}, ID: 1, Remote: other, Dport: 6081},
	} {
		kind := tunnel.Type()
		err := netlink.LinkAdd(tunnel)
		if errors.Is(err, unix.EOPNOTSUPP) && os.Getenv("CAKECTL_VM") == "" {
			w.t.Logf("this kernel has no %s; those of the VM lanes do", kind)
			continue
		}
		if err != nil {
			return fmt.Errorf("add a tunnel by %s: %w", kind, err)
		}
		if err := netlink.LinkSetUp(tunnel); err != nil {
			return fmt.Errorf("set %s up: %w", kind, err)
		}
		w.tunnels[kind] = true
		if err := errors.Join(addAddress(tunnel, tunnelAddress4(kind, end)+"/24"), addAddress(tunnel, tunnelAddress6(kind, end)+"/64")); err != nil {
			return err
		}
	}
	return nil
}

// addAddress gives a device an address that can be used at once.
func addAddress(device netlink.Link, text string) error {
	address, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	if address.IP.To4() == nil {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+device.Attrs().Name+"/disable_ipv6", []byte("0"), 0); err != nil {
			return err
		}
		address.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(device, address); err != nil {
		return fmt.Errorf("give %s the address %s: %w", device.Attrs().Name, text, err)
	}
	return nil
}

// captureOn opens a packet socket that holds all that a test sends.
func captureOn(device netlink.Link) (int, error) {
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device.Attrs().Index}),
	)
	if err != nil {
		return -1, errors.Join(fmt.Errorf("capture on %s: %w", device.Attrs().Name, err), unix.Close(fd))
	}
	return fd, nil
}

// drain counts the IP packets that have arrived.
func (w *wire) drain() {
	w.t.Helper()
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(w.capture, buffer, 0)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		w.must(err)
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if protocol := binary.BigEndian.Uint16(buffer[12:]); protocol == unix.ETH_P_IP || protocol == unix.ETH_P_IPV6 {
			w.frames++
			w.bytes += uint64(w.line.Bytes(n, 14))
		}
	}
}

// compare sends, waits until what was counted has arrived, and fails if the two differ.
func (w *wire) compare(what string, send func() error) {
	w.t.Helper()
	w.arrives(what, send, func(counted TinCounters) bool { return counted.Bytes == w.bytes && counted.Packets == w.frames })
}

// compareBytes is compare without the number of packets.
func (w *wire) compareBytes(what string, send func() error) {
	w.t.Helper()
	w.arrives(what, send, func(counted TinCounters) bool { return counted.Bytes == w.bytes })
}

func (w *wire) arrives(what string, send func() error, whole func(TinCounters) bool) {
	w.t.Helper()
	if err := send(); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	var counted TinCounters
	for try := 0; try < 1000; try++ {
		w.drain()
		var err error
		counted, err = w.d.TinCounters(0)
		w.must(err)
		if whole(counted) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Errorf("%s: so far %d bytes counted in %d packets, %d have arrived in %d", what, counted.Bytes, counted.Packets, w.bytes, w.frames)
}

// sendTCP sends as much as makes super-packets of all sizes.
func (w *wire) sendTCP(to string) error {
	const bytes = 150_000
	var listener net.Listener
	if err := w.peer.Do(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(to, "5001"))
		return err
	}); err != nil {
		return err
	}
	defer listener.Close()
	received := make(chan error)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, err = io.CopyN(io.Discard, conn, bytes)
			err = errors.Join(err, conn.Close())
		}
		received <- err
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	_, err = conn.Write(make([]byte, bytes))
	return errors.Join(err, <-received, conn.Close())
}

// sendUDP sends datagrams that the kernel is to cut, the last of each shorter.
func (w *wire) sendUDP(to string) error {
	var sink net.PacketConn
	if err := w.peer.Do(func() (err error) {
		sink, err = net.ListenPacket("udp", net.JoinHostPort(to, "5001"))
		return err
	}); err != nil {
		return err
	}
	defer sink.Close()
	conn, err := net.Dial("udp", sink.LocalAddr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, 1000) }); err != nil || set != nil {
		return errors.Join(err, set)
	}
	for _, bytes := range []int{1, 1000, 1001, 8500, 40_000} {
		if _, err := conn.Write(make([]byte, bytes)); err != nil {
			return err
		}
	}
	return nil
}

// sendAsGuest sends a super-packet as a hypervisor does for a guest: the kernel is told the size of its
// segments, and not how many they are.
func (w *wire) sendAsGuest() error {
	const (
		packetVnetHeader = 15 // PACKET_VNET_HDR
		needsChecksum    = 1  // VIRTIO_NET_HDR_F_NEEDS_CSUM
		gsoTCP4          = 1  // VIRTIO_NET_HDR_GSO_TCPV4
		ip, tcp, payload = 14, 34, 54
		segmentBytes     = 1000
		// A number of segments that a guess from the whole length would get wrong.
		payloadBytes = 7*segmentBytes - 20
	)
	device := testnet.Link(w.t, testnet.Device)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, packetVnetHeader, 1); err != nil {
		return fmt.Errorf("ask for headers as guests give them: %w", err)
	}

	header := []byte{needsChecksum, gsoTCP4}
	for _, field := range []uint16{payload, segmentBytes, tcp, 16} {
		header = binary.NativeEndian.AppendUint16(header, field)
	}
	frame := ipv4Frame(0, 5001, payload+payloadBytes)
	copy(frame, w.peerAddress)
	copy(frame[6:], device.Attrs().HardwareAddr)
	frame[ip+9] = unix.IPPROTO_TCP
	clear(frame[tcp:payload])
	frame[tcp+12] = 5 << 4 // words of header
	to := unix.SockaddrLinklayer{Ifindex: device.Attrs().Index, Protocol: binary.NativeEndian.Uint16([]byte{8, 0}), Halen: 6}
	copy(to.Addr[:], w.peerAddress)
	return unix.Sendto(fd, append(header, frame...), 0, &to)
}

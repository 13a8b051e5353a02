// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"encoding/binary"
	"errors"
	"math"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/pkg/framing"
)

// TestFramedRate measures at the receiver what slow lines are sent, counted as they carry it: it is
// the bandwidth within 1 %. That needs a clock that no busy host disturbs: the VM's that counts
// instructions.
func TestFramedRate(t *testing.T) {
	if os.Getenv("CAKECTL_VM") == "" {
		t.Skip("make test-icount runs this in the VM")
	}
	const (
		bitsPerSecond = 2_000_000
		flows         = 8
		warmUp        = time.Second
		measured      = 3 * time.Second
	)
	for _, line := range []string{"pppoe-ptm", "pppoe-llcsnap", "docsis"} {
		t.Run(line, func(t *testing.T) {
			env, _ := newEnv(t, 4)
			arrived := capture(t, testnet.Link(t, testnet.Peer))
			spec := spec("2mbit")
			var err error
			if spec.Framing, err = framing.Parse([]string{line}); err != nil {
				t.Fatal(err)
			}
			s, err := Attach(t.Context(), env, spec)
			if err != nil {
				t.Fatal(err)
			}
			for flow := range flows {
				defer flood(t, 6000+flow)()
			}

			var start, last time.Duration
			var bytes int
			for last-start < measured {
				at, size := arrived()
				switch {
				case start == 0:
					start = at + warmUp
					last = start
				case at <= start:
				default:
					bytes += spec.Framing.Bytes(size, 14)
					last = at
				}
			}
			rate := float64(8*bytes) / (last - start).Seconds()
			t.Logf("%.0f bit/s on the line", rate)
			if math.Abs(rate-bitsPerSecond) > bitsPerSecond/100 {
				t.Errorf("%.0f bit/s on the line, want %d", rate, bitsPerSecond)
			}
			if err := errors.Join(s.Detach(t.Context()), s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// flood sends packets of all sizes, so that what cells and blocks round shows, as fast as the socket
// takes them.
func flood(t *testing.T, port int) (stop func()) {
	t.Helper()
	conn, err := net.Dial("udp", net.JoinHostPort(testnet.PeerAddress, strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for bytes := 1; ; bytes = 1 + (bytes+36)%1400 {
			if _, err := conn.Write(make([]byte, bytes)); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	return func() {
		conn.Close()
		<-done
	}
}

// capture makes a function that waits for the next IPv4 frame and tells when it came, and its size.
func capture(t *testing.T, device netlink.Link) func() (at time.Duration, bytes int) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("capture on %s: %v", device.Attrs().Name, err)
		}
	}
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
	must(err)
	t.Cleanup(func() { unix.Close(fd) })
	must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1))
	must(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: device.Attrs().Index}))
	buffer, control := make([]byte, 2048), make([]byte, 256)
	return func() (time.Duration, int) {
		n, controlBytes, _, _, err := unix.Recvmsg(fd, buffer, control, 0)
		must(err)
		messages, err := unix.ParseSocketControlMessage(control[:controlBytes])
		must(err)
		if len(messages) != 1 {
			t.Fatalf("%d control messages with a frame, want its time alone", len(messages))
		}
		var at unix.Timespec
		_, err = binary.Decode(messages[0].Data, binary.NativeEndian, &at)
		must(err)
		return time.Duration(at.Nano()), n
	}
}

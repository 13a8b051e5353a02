// SPDX-License-Identifier: BSD-2-Clause

package traffic_test

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/lab/meter"
	"github.com/cakectl/cakectl/lab/topo"
	"github.com/cakectl/cakectl/lab/traffic"
)

func newPair(t *testing.T) *topo.Pair {
	t.Helper()
	pair, err := topo.NewPair("traffic-test", 4)
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

// eventually waits for something to become true, as long as the test may run.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		if err := t.Context().Err(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestTCP(t *testing.T) {
	pair := newPair(t)
	const flows = 3
	tcp, err := traffic.StartTCP(t.Context(), pair.Sender, pair.Receiver, pair.ReceiverAddresses[0], traffic.TCPConfig{Flows: flows, Congestion: "reno"})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "each flow delivers a megabyte", func() bool {
		received, err := tcp.Received()
		if err != nil {
			t.Fatal(err)
		}
		if len(received) != flows {
			t.Fatalf("%d flows, want %d", len(received), flows)
		}
		for _, n := range received {
			if n < 1<<20 {
				return false
			}
		}
		return true
	})
	if err := tcp.Stop(); err != nil {
		t.Error(err)
	}
}

func TestShort(t *testing.T) {
	pair := newPair(t)
	short, err := traffic.StartShort(t.Context(), pair.Sender, pair.Receiver, pair.ReceiverAddresses[0], traffic.ShortConfig{PerSecond: 200, Bytes: 5000})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "50 connections have come and gone", func() bool { return short.Done() >= 50 })
	if err := short.Stop(); err != nil {
		t.Error(err)
	}
}

func TestTCPUnknownCongestionControl(t *testing.T) {
	pair := newPair(t)
	_, err := traffic.StartTCP(t.Context(), pair.Sender, pair.Receiver, pair.ReceiverAddresses[0], traffic.TCPConfig{Flows: 1, Congestion: "nonsense"})
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("StartTCP = %v, want an error that names the congestion control", err)
	}
}

// A flow whose path is cut is not a slow flow.
func TestTCPReportsFailure(t *testing.T) {
	pair := newPair(t)
	tcp, err := traffic.StartTCP(t.Context(), pair.Sender, pair.Receiver, pair.ReceiverAddresses[0], traffic.TCPConfig{Flows: 2})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "ip", "netns", "exec", pair.Receiver.Name, "ss", "-K", "state", "established").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eventually(t, "an error of the sockets", func() bool {
		_, err := tcp.Received()
		return err != nil || tcp.Failed()
	})
	if err := tcp.Stop(); err == nil {
		t.Error("Stop after the connections were killed returned no error")
	}
}

func TestUDPDelivers(t *testing.T) {
	pair := newPair(t)
	const flows = 4
	udp, err := traffic.StartUDP(t.Context(), pair.Sender, pair.Receiver, pair.ReceiverAddresses[0], traffic.UDPConfig{
		Flows: flows, DSCP: 46, FrameBytes: 200, RateBitsPerSecond: 1e6, Delays: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "each flow delivers 20 packets", func() bool {
		for _, n := range udp.Received() {
			if n < 20 {
				return false
			}
		}
		return true
	})
	result, err := udp.Stop(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if result.Lost() != 0 || result.Reordered != 0 {
		t.Errorf("lost %v, reordered %d on an idle link, want none", result.Lost(), result.Reordered)
	}
	delivered := uint64(0)
	for _, n := range result.Received {
		delivered += n
	}
	if len(result.Delays) != int(delivered) {
		t.Errorf("%d delays of %d packets", len(result.Delays), delivered)
	}
	for _, d := range result.Delays {
		if d <= 0 || d > time.Minute {
			t.Fatalf("a delay of %v", d)
		}
	}
}

// Loss is exactly what the kernel says that it dropped.
func TestUDPLoss(t *testing.T) {
	pair := newPair(t)
	err := pair.Sender.Do(func() error {
		device, err := netlink.LinkByName(topo.SenderDevice)
		if err != nil {
			return err
		}
		// 10 Mbit/s, and room for two packets: less than the sockets' buffers, so that packets are lost.
		return netlink.QdiscAdd(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: device.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       10e6 / 8,
			Limit:      3 * 1514,
			Buffer:     100000,
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	udp, err := traffic.StartUDP(t.Context(), pair.Sender, pair.Receiver, pair.ReceiverAddresses[0], traffic.UDPConfig{
		Flows: 2, FrameBytes: 1514, RateBitsPerSecond: 20e6,
	})
	if err != nil {
		t.Fatal(err)
	}
	dropped := func() uint64 {
		var n uint64
		err := pair.Sender.Do(func() error {
			device, err := netlink.LinkByName(topo.SenderDevice)
			if err != nil {
				return err
			}
			qdiscs, err := netlink.QdiscList(device)
			if err != nil {
				return err
			}
			for _, q := range qdiscs {
				n += uint64(q.Attrs().Statistics.Queue.Drops)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, "packets are dropped", func() bool { return dropped() > 50 })
	result, err := udp.Stop(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var sent, received uint64
	for i := range result.Sent {
		sent += result.Sent[i]
		received += result.Received[i]
	}
	if want := dropped(); sent-received != want {
		t.Errorf("%d sent, %d received: %d lost, want the %d that the kernel dropped", sent, received, sent-received, want)
	}
	if got, want := result.Lost(), float64(sent-received)/float64(sent); got != want {
		t.Errorf("Lost = %v, want %v", got, want)
	}
}

func TestUDPRefusesTinyFrames(t *testing.T) {
	_, err := traffic.StartUDP(t.Context(), nil, nil, topo.SenderAddress, traffic.UDPConfig{Flows: 1, FrameBytes: 50, RateBitsPerSecond: 1})
	if err == nil {
		t.Error("frames without room for their number were accepted")
	}
}

// The DSCP of every kind of traffic is on the wire.
func TestDSCP(t *testing.T) {
	pair := newPair(t)
	const udpDSCP, tcpDSCP, pingDSCP = 46, 8, 34
	var classes meter.Classifier
	classes[udpDSCP], classes[tcpDSCP], classes[pingDSCP] = 1, 2, 3
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
	defer func() {
		if err := pair.Receiver.Do(m.Close); err != nil {
			t.Error(err)
		}
	}()
	before := meter.Now()
	udp, err := traffic.StartUDP(t.Context(), pair.Sender, pair.Receiver, pair.ReceiverAddresses[0], traffic.UDPConfig{Flows: 1, DSCP: udpDSCP, FrameBytes: 100, RateBitsPerSecond: 1e5})
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := traffic.StartTCP(t.Context(), pair.Sender, pair.Receiver, pair.ReceiverAddresses[0], traffic.TCPConfig{Flows: 1, DSCP: tcpDSCP})
	if err != nil {
		t.Fatal(err)
	}
	ping, err := traffic.StartPing(t.Context(), pair.Sender, topo.SenderAddress, pair.ReceiverAddresses, traffic.PingConfig{Interval: 5 * time.Millisecond, DSCP: pingDSCP})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "each class arrives", func() bool {
		s, err := m.Read()
		if err != nil {
			t.Fatal(err)
		}
		now := meter.Now()
		return s.Bytes(before, now, 1) > 0 && s.Bytes(before, now, 2) > 0 && s.Bytes(before, now, 3) > 0
	})
	s, err := m.Read()
	if err != nil {
		t.Fatal(err)
	}
	if n := s.Bytes(before, meter.Now(), 0); n != 0 {
		t.Errorf("%d bytes without a DSCP", n)
	}
	if err := tcp.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := udp.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := ping.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestPing(t *testing.T) {
	pair := newPair(t)
	ping, err := traffic.StartPing(t.Context(), pair.Sender, topo.SenderAddress, pair.ReceiverAddresses, traffic.PingConfig{Interval: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	result, err := ping.Stop(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if result.Sent == 0 || len(result.RTTs) != result.Sent {
		t.Errorf("%d sent, %d answered on an idle link", result.Sent, len(result.RTTs))
	}
	for _, rtt := range result.RTTs {
		if rtt <= 0 || rtt > time.Minute {
			t.Fatalf("a round trip of %v", rtt)
		}
	}
}

func TestIperf(t *testing.T) {
	pair := newPair(t)
	if _, err := traffic.StartIperf(t.Context(), pair.Sender.Name, pair.Receiver.Name, pair.ReceiverAddresses[0], traffic.IperfConfig{Flows: 1, Duration: 1500 * time.Millisecond}); err == nil {
		t.Error("a fraction of a second was accepted")
	}
	iperf, err := traffic.StartIperf(t.Context(), pair.Sender.Name, pair.Receiver.Name, pair.ReceiverAddresses[0], traffic.IperfConfig{Flows: 2, Duration: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	result, err := iperf.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Received) != 2 || result.Received[0] == 0 || result.Received[1] == 0 {
		t.Errorf("received %v, want bytes of two flows", result.Received)
	}
	out, err := exec.CommandContext(t.Context(), "ip", "netns", "exec", pair.Receiver.Name, "ss", "-Hltn").CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("listeners after the end: %s (%v)", out, err)
	}
}

// An iperf3 that dies is an error, not a result of zero.
func TestIperfFails(t *testing.T) {
	pair := newPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	iperf, err := traffic.StartIperf(ctx, pair.Sender.Name, pair.Receiver.Name, pair.ReceiverAddresses[0], traffic.IperfConfig{Flows: 1, Duration: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if result, err := iperf.Wait(); err == nil {
		t.Errorf("Wait = %+v without an error", result)
	}
}

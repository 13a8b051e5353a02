// SPDX-License-Identifier: BSD-2-Clause

package pktgen

import (
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/lab/topo"
)

func TestParse(t *testing.T) {
	const text = `Params: count 20000  min_pkt_size: 1400  max_pkt_size: 1400
Current:
     pkts-sofar: 20000  errors: 17
     started: 6130us  stopped: 71130us idle: 1us
Result: OK: 65000(c64999+d1) usec, 20000 (1400byte,0frags)
  307692pps 3446Mb/sec (3446150400bps) errors: 17
`
	got, err := parse(text)
	if want := (report{sent: 20000, refused: 17, started: 6130 * time.Microsecond, stopped: 71130 * time.Microsecond}); err != nil || got != want {
		t.Errorf("parse = %+v, %v, want %+v", got, err, want)
	}
	if _, err := parse("Current:\n     pkts-sofar: 0  errors: 0\nResult: Starting"); err == nil {
		t.Error("a stream that has not ended has a result")
	}
}

func TestRunRefuses(t *testing.T) {
	for _, c := range []Config{
		{Threads: 0, DSCPs: []uint8{0}, Flows: 1},
		{Threads: 1, DSCPs: []uint8{0}, Flows: 0},
		{Threads: 1, DSCPs: []uint8{0}, Flows: streamPorts + 1},
		{Threads: 1, Flows: 1},
	} {
		if _, err := Run(t.Context(), c); err == nil {
			t.Errorf("Run takes %+v", c)
		}
	}
}

// The device counts what the generator says it sent.
func TestVMRun(t *testing.T) {
	if os.Getenv("CAKECTL_VM") == "" {
		t.Skip("for the VM lane: not every machine has pktgen")
	}
	sink, err := topo.NewSink("pktgen-test", 4)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = sink.Sender.Do(func() error {
		result, err := Run(t.Context(), Config{Device: topo.SenderDevice, Threads: 1, DSCPs: []uint8{0, 46}, Flows: 4, Packets: 100, FrameBytes: 1400})
		if err != nil {
			return err
		}
		if result.Sent != 200 || result.Refused != 0 || result.Elapsed == 0 {
			t.Errorf("sent %+v, want 200 packets", result)
		}
		link, err := netlink.LinkByName(topo.SenderDevice)
		if err != nil {
			return err
		}
		if s := link.Attrs().Statistics; s.TxPackets != 200 || s.TxBytes != 200*1400 {
			t.Errorf("the device sent %d packets with %d bytes", s.TxPackets, s.TxBytes)
		}
		before := link.Attrs().Statistics.TxPackets
		const span = 50 * time.Millisecond
		result, err = Run(t.Context(), Config{Device: topo.SenderDevice, Threads: 1, DSCPs: []uint8{0}, Flows: 4, Span: span, FrameBytes: 1400})
		if err != nil {
			return err
		}
		if link, err = netlink.LinkByName(topo.SenderDevice); err != nil {
			return err
		}
		if sent := link.Attrs().Statistics.TxPackets - before; result.Sent == 0 || result.Sent > sent || result.Elapsed != span {
			t.Errorf("counted %+v, and the device sent %d packets", result, sent)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

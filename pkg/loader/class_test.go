// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

// presetSettings are those of a preset, with all a tin's rate may be.
func presetSettings(t *testing.T, preset tins.Preset) (tins.Def, Settings) {
	t.Helper()
	def, err := tins.Lookup(string(preset))
	if err != nil {
		t.Fatal(err)
	}
	settings := testSettings(rates.Gbit)
	settings.Classes.DSCPToTin = def.DSCPToTin
	settings.FwmarkTins = def.DisplayOrder
	settings.Queues = 1
	settings.Tins = nil
	for range def.Tins {
		settings.Tins = append(settings.Tins, TinSettings{Rate: rates.Gbit, Ceil: rates.Unlimited})
	}
	return def, settings
}

// newClassified is a data path with a preset, and settings of a test's own if change is not nil.
func newClassified(t *testing.T, preset tins.Preset, change func(*Settings)) *injected {
	t.Helper()
	def, settings := presetSettings(t, preset)
	if change != nil {
		change(&settings)
	}
	return newInjected(t, Options{Queues: 1, Tins: len(def.Tins), LinkHeaderBytes: 14}, settings)
}

// tinOf sends a packet and returns the tin that counted it.
func (in *injected) tinOf(p packet) int {
	in.t.Helper()
	counted := func() (packets [MaxTins]uint64) {
		for tin := range packets {
			counters, err := in.TinCounters(tin)
			if err != nil {
				in.t.Fatal(err)
			}
			packets[tin] = counters.Packets
		}
		return packets
	}
	before := counted()
	in.send(p)
	after := counted()
	for tin := range after {
		if after[tin] != before[tin] {
			return tin
		}
	}
	in.t.Fatal("no tin counted the packet")
	return -1
}

func TestEveryDSCP(t *testing.T) {
	for _, preset := range tins.Presets() {
		def, _ := presetSettings(t, preset)
		in := newClassified(t, preset, nil)
		for dscp := range uint8(64) {
			for name, frame := range map[string][]byte{
				"IPv4":               ipv4Frame(dscp, 1, 64),
				"IPv6":               ipv6Frame(dscp),
				"IPv4, tagged":       tagged(ipv4Frame(dscp, 1, 64), 0x8100),
				"IPv6, tagged twice": tagged(tagged(ipv6Frame(dscp), 0x8100), 0x88a8),
				"IPv4, with ECN":     ipv4Frame(dscp, 1, 64, 3),
			} {
				if got, want := in.tinOf(packet{at: injectedEpoch, frame: frame}), int(def.DSCPToTin[dscp]); got != want {
					t.Errorf("%s: DSCP %d (%s) goes to tin %d, want %d", preset, dscp, name, got, want)
				}
			}
		}
	}
}

// TestPriorityIsNoTin: skb->priority, which the kernel derives from the TOS, moves nothing.
func TestPriorityIsNoTin(t *testing.T) {
	in := newClassified(t, tins.Diffserv8, nil)
	for priority := range uint32(16) {
		if tin := in.tinOf(packet{at: injectedEpoch, dscp: 46, priority: priority}); tin != 6 {
			t.Errorf("priority %d: EF goes to tin %d, want 6", priority, tin)
		}
	}
}

func TestMarks(t *testing.T) {
	const bestEffort, bulk, video, voice = 0, 1, 2, 3
	in := newClassified(t, tins.Diffserv4, func(s *Settings) {
		s.FwmarkMask = 0x0f00
		s.Classes.MarkToTin = map[uint32]uint8{0x200: voice, 0xffffffff: bulk}
	})
	for _, c := range []struct {
		mark uint32
		dscp uint8
		want int
	}{
		// As CAKE counts: in the order that its statistics have, from 1.
		{0x100, 0, bulk}, {0x300, 0, video}, {0x400, 0, voice},
		{0xf0ff | 0x100, 46, bulk},
		// No tin: 0, and beyond the last.
		{0, 46, voice}, {0xf0ff, 46, voice}, {0x500, 46, voice}, {0xf00, 0, bestEffort},
		// A rule comes first.
		{0x200, 0, voice}, {0x201, 0, bestEffort}, {0xffffffff, 0, bulk},
	} {
		if got := in.tinOf(packet{at: injectedEpoch, mark: c.mark, dscp: c.dscp}); got != c.want {
			t.Errorf("mark %#x with DSCP %d goes to tin %d, want %d", c.mark, c.dscp, got, c.want)
		}
	}

	// The same live: what is not among the new rules is forgotten.
	_, settings := presetSettings(t, tins.Diffserv4)
	settings.Classes.MarkToTin = map[uint32]uint8{0x300: bulk}
	if err := in.Configure(settings); err != nil {
		t.Fatal(err)
	}
	for mark, want := range map[uint32]int{0x300: bulk, 0x200: bestEffort, 0xffffffff: bestEffort, 0x100: bestEffort} {
		if got := in.tinOf(packet{at: injectedEpoch, mark: mark}); got != want {
			t.Errorf("after a change, mark %#x goes to tin %d, want %d", mark, got, want)
		}
	}
}

// TestAllMarks has as many marks as there is room for, and all of them replaced.
func TestAllMarks(t *testing.T) {
	in := newClassified(t, tins.Diffserv4, nil)
	_, settings := presetSettings(t, tins.Diffserv4)
	for round := range uint32(3) {
		settings.Classes.MarkToTin = map[uint32]uint8{}
		for i := range uint32(tins.MaxMarks) {
			settings.Classes.MarkToTin[1+i+round*200] = 3
		}
		if err := in.Configure(settings); err != nil {
			t.Fatal(err)
		}
	}
	for mark, want := range map[uint32]int{400: 0, 401: 3, 656: 3, 657: 0} {
		if got := in.tinOf(packet{at: injectedEpoch, mark: mark}); got != want {
			t.Errorf("mark %d goes to tin %d, want %d", mark, got, want)
		}
	}
}

func TestWash(t *testing.T) {
	in := newClassified(t, tins.Diffserv4, func(s *Settings) { s.Wash = true })
	for dscp := range uint8(64) {
		for ecn := range uint8(4) {
			for name, frames := range map[string][2][]byte{
				"IPv4":         {ipv4Frame(dscp, 1, 64, ecn), ipv4Frame(0, 1, 64, ecn)},
				"IPv6":         {ipv6Frame(dscp, ecn), ipv6Frame(0, ecn)},
				"IPv4, tagged": {tagged(ipv4Frame(dscp, 1, 64, ecn), 0x8100), tagged(ipv4Frame(0, 1, 64, ecn), 0x8100)},
				"IPv6, tagged": {tagged(ipv6Frame(dscp, ecn), 0x8100), tagged(ipv6Frame(0, ecn), 0x8100)},
			} {
				// With its checksum right, the washed frame is that of DSCP 0, byte by byte.
				in.send(packet{at: injectedEpoch, frame: frames[0]})
				if !bytes.Equal(in.frame, frames[1]) {
					t.Fatalf("%s of DSCP %d, ECN %d leaves as\n% x, want\n% x", name, dscp, ecn, in.frame, frames[1])
				}
			}
		}
	}
	if tin := in.tinOf(packet{at: injectedEpoch, dscp: 46}); tin != 3 {
		t.Errorf("a packet that is washed goes to tin %d, want that of its DSCP, 3", tin)
	}
}

func TestInnerDSCP(t *testing.T) {
	const outer, inner, outerTin, innerTin = 8, 46, 1, 3 // CS1 is Bulk, EF Voice
	ip4, ip6 := ipv4Frame(inner, 1, 64)[14:], ipv6Frame(inner)[14:]
	ethernet4, ethernet6 := ipv4Frame(inner, 1, 64), tagged(ipv6Frame(inner), 0x8100)
	gre := func(flags, protocol uint16, options int) []byte {
		header := binary.BigEndian.AppendUint16(nil, flags)
		return append(binary.BigEndian.AppendUint16(header, protocol), make([]byte, options)...)
	}
	udp := func(port uint16, rest ...byte) []byte {
		header := make([]byte, 8, 8+len(rest))
		binary.BigEndian.PutUint16(header, 12345)
		binary.BigEndian.PutUint16(header[2:], port)
		return append(header, rest...)
	}
	vxlan := make([]byte, 8)
	geneve := func(options byte, protocol uint16) []byte {
		header := binary.BigEndian.AppendUint16([]byte{options, 0}, protocol)
		return append(header, make([]byte, 4+4*int(options))...)
	}
	limit := []byte{41, 0, 4, 1, 4, 1, 0, 0} // destination options of ip6_tunnel

	type tunnel struct {
		name     string
		protocol byte
		headers  []byte
		carries  []byte
		want     int
	}
	tunnels := []tunnel{
		{"IPIP", 4, nil, ip4, innerTin},
		{"6in4", 41, nil, ip6, innerTin},
		{"IPv6 behind an encapsulation limit", 60, limit, ip6, innerTin},
		{"GRE, IPv4", 47, gre(0, 0x0800, 0), ip4, innerTin},
		{"GRE, IPv6 with a key", 47, gre(0x2000, 0x86dd, 4), ip6, innerTin},
		{"GRE with all options, Ethernet", 47, gre(0xb000, 0x6558, 12), ethernet6, innerTin},
		{"VXLAN, IPv4", 17, udp(4789, vxlan...), ethernet4, innerTin},
		{"VXLAN, tagged IPv6, Linux's port", 17, udp(8472, vxlan...), ethernet6, innerTin},
		{"GENEVE, Ethernet", 17, udp(6081, geneve(0, 0x6558)...), ethernet4, innerTin},
		{"GENEVE, options and IPv6", 17, udp(6081, geneve(3, 0x86dd)...), ip6, innerTin},

		// What is no tunnel, or not to be read, has the DSCP of its own header.
		{"UDP", 17, udp(4790, vxlan...), ethernet4, outerTin},
		{"TCP", 6, make([]byte, 20), ip4, outerTin},
		{"ESP", 50, make([]byte, 8), ip4, outerTin},
		{"GRE, version 1", 47, gre(1, 0x880b, 4), ip4, outerTin},
		{"GRE, MPLS", 47, gre(0, 0x8847, 0), ip4, outerTin},
		{"IPIP that lies", 4, nil, ip6, outerTin},
		{"6in4 without an end", 41, nil, ip6[:1], outerTin},
		{"VXLAN without an end", 17, udp(4789, vxlan[:4]...), nil, outerTin},
		{"VXLAN, ARP", 17, udp(4789, vxlan...), append(make([]byte, 12), 8, 6, 0, 1), outerTin},
	}
	on := newClassified(t, tins.Diffserv4, func(s *Settings) { s.InnerDSCP = true })
	off := newClassified(t, tins.Diffserv4, nil)
	for _, c := range tunnels {
		over4 := withPayload(ipv4Frame(outer, 1, 34), c.protocol, c.headers, c.carries)
		over6 := withPayload(ipv6Frame(outer)[:54], c.protocol, c.headers, c.carries)
		frames := [][]byte{over6, tagged(over6, 0x8100)}
		if c.protocol != 60 { // IPv4 has no such headers
			frames = append(frames, over4, tagged(over4, 0x8100))
		}
		for _, frame := range frames {
			if got := on.tinOf(packet{at: injectedEpoch, frame: frame}); got != c.want {
				t.Errorf("%s goes to tin %d, want %d\n% x", c.name, got, c.want, frame)
			}
			if got := off.tinOf(packet{at: injectedEpoch, frame: frame}); got != outerTin {
				t.Errorf("%s goes to tin %d though nobody asked, want %d", c.name, got, outerTin)
			}
		}
	}

	// A fragment but the first carries no header.
	fragment := withPayload(ipv4Frame(outer, 1, 34), 4, nil, ip4)
	fragment[14+7] = 1
	if got := on.tinOf(packet{at: injectedEpoch, frame: fragment}); got != outerTin {
		t.Errorf("a later fragment goes to tin %d, want %d", got, outerTin)
	}
}

// withPayload puts something behind an IP header.
func withPayload(frame []byte, protocol byte, parts ...[]byte) []byte {
	frame = append([]byte{}, frame...)
	if frame[12] == 0x08 {
		frame[14+9] = protocol
	} else {
		frame[14+6] = protocol
	}
	return append(frame, bytes.Join(parts, nil)...)
}

// TestFramedBytesAreShaped: what the line adds counts for the rate and is counted as sent.
func TestFramedBytesAreShaped(t *testing.T) {
	for _, words := range [][]string{{"raw"}, {"pppoe-ptm"}, {"conservative"}, {"ethernet"}} {
		t.Run(fmt.Sprint(words), func(t *testing.T) {
			line, err := framing.Parse(words)
			if err != nil {
				t.Fatal(err)
			}
			settings := testSettings(8 * rates.Mbit) // a byte is a microsecond
			settings.Framing = line
			settings.FullPacketBytes = line.Bytes(1514, 14)
			in := newInjected(t, Options{Queues: 1, Tins: 1, LinkHeaderBytes: 14}, settings)
			var want, last int
			for i := range 400 {
				size := 60 + i%1000
				frame := ipv4Frame(0, 1, size)
				link := 14
				if i%2 == 1 {
					// A tag in the data is of the link's header.
					frame, link, size = tagged(frame, 0x8100), 18, size+4
				}
				last = int((in.send(packet{at: injectedEpoch, frame: frame, bytes: size}) - injectedEpoch).Microseconds())
				want += line.Bytes(size, link)
			}
			counters, err := in.TinCounters(0)
			if err != nil {
				t.Fatal(err)
			}
			if int(counters.Bytes) != want {
				t.Errorf("counted %d bytes, want %d", counters.Bytes, want)
			}
			// The last one leaves after all before it, but for what a tick rounds.
			if last < want-4*settings.FullPacketBytes || last > want+settings.FullPacketBytes {
				t.Errorf("%d bytes at 8 Mbit/s leave within %d us", want, last)
			}
		})
	}
}

// ipv6Frame is an Ethernet frame with IPv6 and UDP, and an ECN field if one is given.
func ipv6Frame(dscp uint8, ecn ...uint8) []byte {
	frame := make([]byte, 14+40+8)
	binary.BigEndian.PutUint16(frame[12:], 0x86dd)
	binary.BigEndian.PutUint32(frame[14:], 6<<28|uint32(dscp)<<22|uint32(first(ecn))<<20)
	binary.BigEndian.PutUint16(frame[18:], 8)
	frame[20], frame[21] = 17, 64
	frame[14+23], frame[14+39] = 1, 2
	return frame
}

// tagged puts a VLAN tag behind the addresses.
func tagged(frame []byte, protocol uint16) []byte {
	tag := binary.BigEndian.AppendUint16(nil, protocol)
	tag = append(tag, 0, 10)
	return append(append(append([]byte{}, frame[:12]...), tag...), frame[12:]...)
}

// first is the first of optional values, or 0.
func first(values []uint8) uint8 {
	if len(values) == 0 {
		return 0
	}
	return values[0]
}

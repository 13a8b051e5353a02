// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"encoding/binary"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// injected is a data path whose clock the test sets, run by BPF_PROG_TEST_RUN: no device, no qdisc,
// but the kernel's own BPF machine.
type injected struct {
	*DataPath
	t       testing.TB
	program *ebpf.Program
	// sweep finds what went idle, as the timer does.
	sweep *ebpf.Program
	now   *ebpf.Variable
	// forwarded makes the packets to come forwarded ones; else they are of a local socket.
	forwarded *ebpf.Variable
	// hash is that of the packets to come; 0 leaves it to the kernel.
	hash *ebpf.Variable
	// What the last run came to: its verdict and the frame as it left.
	verdict int32
	frame   []byte
}

// epoch is where injected time starts: later than the machine's clock, so that the sweep, which
// goes by the real clock, finds nothing idle.
const injectedEpoch = 30 * 24 * time.Hour

func newInjected(t testing.TB, options Options, settings Settings) *injected {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec("testdata/inject_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	if options.Flows == 0 {
		options.Flows = DefaultFlows
	}
	if err := size(spec, options); err != nil {
		t.Fatal(err)
	}
	in := &injected{DataPath: &DataPath{queues: options.Queues}, t: t}
	// The released program is in the object too, under its own name.
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(collection.Close)
	for _, maps := range []any{&in.objects.dataPathMaps, &in.objects.variables} {
		if err := collection.Assign(maps); err != nil {
			t.Fatal(err)
		}
	}
	in.program = collection.Programs["inject_egress"]
	in.sweep = collection.Programs["inject_sweep"]
	in.now = collection.Variables["inject_now_ns"]
	in.forwarded = collection.Variables["inject_forwarded"]
	in.hash = collection.Variables["inject_hash"]
	if settings.Queues == 0 {
		settings.Queues = options.Queues
	}
	if err := in.Configure(settings); err != nil {
		t.Fatal(err)
	}
	return in
}

// skbContext is struct __sk_buff as BPF_PROG_TEST_RUN takes and returns it.
type skbContext struct {
	Len, PktType, Mark, QueueMapping, Protocol, VlanPresent, VlanTCI, VlanProto, Priority uint32
	IngressIfindex, Ifindex, TCIndex                                                      uint32
	CB                                                                                    [5]uint32
	Hash, TCClassID, Data, DataEnd, NapiID, Family, RemoteIP4, LocalIP4                   uint32
	RemoteIP6, LocalIP6                                                                   [4]uint32
	RemotePort, LocalPort, DataMeta                                                       uint32
	FlowKeys, Tstamp                                                                      uint64
	WireLen, GSOSegs                                                                      uint32
	Sk                                                                                    uint64
	GSOSize                                                                               uint32
	TstampType                                                                            uint8
	_                                                                                     [3]byte
	HWTstamp                                                                              uint64
}

// packet is one packet to send.
type packet struct {
	at   time.Duration
	flow uint16 // its UDP source port
	dscp uint8
	mark uint32
	// What the kernel made of the TOS.
	priority uint32
	bytes    int // on the wire; 0 is 1514
	segs     int
	tstamp   time.Duration // its own pacing
	frame    []byte        // instead of an IPv4 frame of flow and dscp
	verdict  int32         // expected; see anyVerdict
}

const (
	actUnspec = -1
	actShot   = 2
	// anyVerdict leaves the verdict to the caller, who finds it in injected.verdict.
	anyVerdict = math.MinInt32
)

// send runs the program and returns when the packet may leave; 0 stands for no departure time, which
// is at once.
func (in *injected) send(p packet) time.Duration {
	in.t.Helper()
	if p.bytes == 0 {
		p.bytes = 1514
	}
	frame := p.frame
	if frame == nil {
		frame = ipv4Frame(p.dscp, p.flow, 64)
	}
	if err := in.now.Set(uint64(p.at)); err != nil {
		in.t.Fatal(err)
	}
	context := skbContext{WireLen: uint32(max(p.bytes, len(frame))), GSOSegs: uint32(p.segs), Tstamp: uint64(p.tstamp), Mark: p.mark, Priority: p.priority}
	out := skbContext{}
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: context, ContextOut: &out}
	verdict, err := in.program.Run(options)
	if err != nil {
		in.t.Fatalf("run the program: %v", err)
	}
	in.verdict, in.frame = int32(verdict), options.DataOut
	if p.verdict != anyVerdict && int32(verdict) != orPass(p.verdict) {
		in.t.Fatalf("packet at %v of flow %d: verdict %d, want %d", p.at, p.flow, int32(verdict), orPass(p.verdict))
	}
	return time.Duration(out.Tstamp)
}

func orPass(verdict int32) int32 {
	if verdict == 0 {
		return actUnspec
	}
	return verdict
}

// ipv4Frame is an Ethernet frame of so many bytes with IPv4 and UDP, and an ECN field if one is given.
func ipv4Frame(dscp uint8, port uint16, bytes int, ecn ...uint8) []byte {
	frame := make([]byte, bytes)
	binary.BigEndian.PutUint16(frame[12:], 0x0800)
	ip := frame[14:]
	ip[0], ip[1] = 0x45, dscp<<2|first(ecn)
	binary.BigEndian.PutUint16(ip[2:], uint16(bytes-14))
	ip[8], ip[9] = 64, 17
	copy(ip[12:], netip.MustParseAddr("10.0.0.1").AsSlice())
	copy(ip[16:], netip.MustParseAddr("10.0.0.2").AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^onesSum(ip[:20]))
	udp := ip[20:]
	if len(udp) < 8 {
		return frame // of the IP header alone
	}
	binary.BigEndian.PutUint16(udp, port)
	binary.BigEndian.PutUint16(udp[2:], 5001)
	binary.BigEndian.PutUint16(udp[4:], uint16(bytes-34))
	return frame
}

// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/pkg/rates"
)

// load makes a data path without a rate, so that packets only have to be counted.
func load(t *testing.T, queues int) *DataPath {
	t.Helper()
	d, err := Load(Options{Queues: queues, Tins: 1, LinkHeaderBytes: 14})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	if err := d.Configure(testSettingsFor(rates.Unlimited, queues)); err != nil {
		t.Fatal(err)
	}
	return d
}

func testSettingsFor(bandwidth rates.Rate, queues int) Settings {
	s := testSettings(bandwidth)
	s.Queues = queues
	return s
}

// sendUDP sends n packets from each of so many connected sockets.
func sendUDP(t *testing.T, sockets, n int) {
	t.Helper()
	for i := range sockets {
		conn, err := net.Dial("udp", net.JoinHostPort(testnet.PeerAddress, strconv.Itoa(1000+i)))
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			if _, err := conn.Write([]byte("packet")); err != nil {
				t.Fatal(err)
			}
		}
		conn.Close()
	}
}

// passing is a foreign program that lets everything pass.
func passing(t *testing.T) *ebpf.Program {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program
}

func TestAttachAndDetach(t *testing.T) {
	for _, hook := range []Hook{TCX, Clsact} {
		t.Run(string(hook), func(t *testing.T) {
			testnet.Enter(t)
			device := testnet.Veth(t, 4)
			pins := filepath.Join(testnet.BPFFS(t), "v0")
			d := load(t, 4)

			a, err := d.Attach(device, hook)
			if hook == TCX && errors.Is(err, link.ErrNotSupported) {
				requireOldKernel(t, "6.6", err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if a.Hook != hook {
				t.Errorf("attached by %s", a.Hook)
			}
			sendUDP(t, 8, 10)
			if got := packetsOf(t, d); got != 80 {
				t.Errorf("counted %d packets, sent 80", got)
			}
			if err := d.Detach(device, a, pins); err != nil {
				t.Fatal(err)
			}
			if attached, err := d.Attached(device, a); attached || err != nil {
				t.Errorf("after detaching: attached %v, %v", attached, err)
			}
			sendUDP(t, 1, 10)
			if got := packetsOf(t, d); got != 80 {
				t.Errorf("counted %d packets although detached", got-80)
			}
			if qdiscs := testnet.Run(t, "tc qdisc show dev v0"); strings.Contains(qdiscs, "clsact") {
				t.Errorf("the clsact qdisc is left: %s", qdiscs)
			}
			if err := d.Detach(device, a, pins); err != nil {
				t.Errorf("detaching twice: %v", err)
			}
		})
	}
}

// requireOldKernel fails unless this kernel is older than the one that brought a feature.
func requireOldKernel(t *testing.T, since string, err error) {
	t.Helper()
	release, readErr := os.ReadFile("/proc/sys/kernel/osrelease")
	if readErr != nil {
		t.Fatal(readErr)
	}
	var major, minor, sinceMajor, sinceMinor int
	fmt.Sscanf(string(release), "%d.%d", &major, &minor)
	fmt.Sscanf(since, "%d.%d", &sinceMajor, &sinceMinor)
	if major > sinceMajor || major == sinceMajor && minor >= sinceMinor {
		t.Fatalf("kernel %s refuses what %s brought: %v", release, since, err)
	}
}

func packetsOf(t *testing.T, d *DataPath) uint64 {
	t.Helper()
	counters, err := d.TinCounters(0)
	if err != nil {
		t.Fatal(err)
	}
	return counters.Packets
}

func TestDetachLeavesOthersAlone(t *testing.T) {
	for _, hook := range []Hook{TCX, Clsact} {
		t.Run(string(hook), func(t *testing.T) {
			testnet.Enter(t)
			device := testnet.Veth(t, 4)
			foreign := passing(t)
			testnet.Run(t, "tc qdisc add dev v0 clsact")
			err := netlink.FilterAdd(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{
					LinkIndex: device.Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Protocol: 3, Priority: 1,
				},
				Fd: foreign.FD(), Name: "foreign", DirectAction: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			tcx, err := link.AttachTCX(link.TCXOptions{Interface: device.Attrs().Index, Program: foreign, Attach: ebpf.AttachTCXEgress})
			if err != nil {
				requireOldKernel(t, "6.6", err)
			} else {
				defer tcx.Close()
			}
			filters := testnet.Run(t, "tc filter show dev v0 egress")

			d := load(t, 4)
			a, err := d.Attach(device, hook)
			if hook == TCX && errors.Is(err, link.ErrNotSupported) {
				requireOldKernel(t, "6.6", err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			sendUDP(t, 1, 10)
			if got := packetsOf(t, d); got != 10 {
				t.Errorf("counted %d packets, sent 10", got)
			}
			if err := d.Detach(device, a, filepath.Join(testnet.BPFFS(t), "v0")); err != nil {
				t.Fatal(err)
			}
			if after := testnet.Run(t, "tc filter show dev v0 egress"); after != filters {
				t.Errorf("the foreign filter is not as it was:\n%s\nnow\n%s", filters, after)
			}
			if qdiscs := testnet.Run(t, "tc qdisc show dev v0"); !strings.Contains(qdiscs, "clsact") {
				t.Error("the foreign clsact qdisc is gone")
			}
			if tcx == nil {
				return
			}
			programs, err := link.QueryPrograms(link.QueryOptions{Target: device.Attrs().Index, Attach: ebpf.AttachTCXEgress})
			if err != nil {
				t.Fatal(err)
			}
			if len(programs.Programs) != 1 {
				t.Errorf("%d tcx programs are left, the foreign one should be", len(programs.Programs))
			}
		})
	}
}

// TestAdopt is a controller's death: what is pinned goes on, and another process takes it over.
func TestAdopt(t *testing.T) {
	for _, hook := range []Hook{TCX, Clsact} {
		t.Run(string(hook), func(t *testing.T) {
			testnet.Enter(t)
			device := testnet.Veth(t, 4)
			pins := filepath.Join(testnet.BPFFS(t), "v0")
			d := load(t, 4)
			if err := d.Pin(pins); err != nil {
				t.Fatal(err)
			}
			a, err := d.Attach(device, hook)
			if hook == TCX && errors.Is(err, link.ErrNotSupported) {
				requireOldKernel(t, "6.6", err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := d.PinLink(pins); err != nil {
				t.Fatal(err)
			}
			sendUDP(t, 1, 10)
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			sendUDP(t, 1, 10)
			d, err = Open(pins)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if attached, err := d.Attached(device, a); !attached || err != nil {
				t.Errorf("adopted: attached %v, %v", attached, err)
			}
			sendUDP(t, 1, 10)
			if got := packetsOf(t, d); got != 30 {
				t.Errorf("counted %d packets, sent 30", got)
			}
			if err := errors.Join(d.Detach(device, a, pins), Unpin(pins)); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(pins); !errors.Is(err, ErrNotPinned) {
				t.Errorf("open after unpinning: %v", err)
			}
		})
	}
}

// TestOpenRefusesAnotherLayout stands for an upgrade that changed the maps.
func TestOpenRefusesAnotherLayout(t *testing.T) {
	testnet.Enter(t)
	pins := filepath.Join(testnet.BPFFS(t), "v0")
	d := load(t, 1)
	otherLayout(t, d)
	if err := d.Pin(pins); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(pins); !errors.Is(err, ErrLayout) {
		t.Errorf("open: %v, want %v", err, ErrLayout)
	}
}

// upgraded is a data path that is attached and pinned, as another process left it; 10 packets have
// been counted.
func upgraded(t *testing.T, hook Hook) (device netlink.Link, a Attachment, pins string) {
	t.Helper()
	testnet.Enter(t)
	device = testnet.Veth(t, 4)
	pins = filepath.Join(testnet.BPFFS(t), "v0")
	d := load(t, 4)
	if err := d.Pin(pins); err != nil {
		t.Fatal(err)
	}
	a, err := d.Attach(device, hook)
	if hook == TCX && errors.Is(err, link.ErrNotSupported) {
		requireOldKernel(t, "6.6", err)
		t.Skip("no tcx in this kernel")
	}
	if err := errors.Join(err, d.PinLink(pins)); err != nil {
		t.Fatal(err)
	}
	sendUDP(t, 1, 10)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return device, a, pins
}

// flood sends until it is stopped, and then tells how many packets.
func flood(t *testing.T) (stop func() uint64) {
	t.Helper()
	conn, err := net.Dial("udp", net.JoinHostPort(testnet.PeerAddress, "999"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan uint64)
	go func() {
		var n uint64
		for ctx.Err() == nil {
			if _, err := conn.Write([]byte("packet")); err == nil {
				n++
			}
		}
		sent <- n
	}()
	return func() uint64 {
		cancel()
		conn.Close()
		return <-sent
	}
}

// TestRenew: a program of the same layout takes the place of another under traffic. No packet passes
// in between, and the counters go on.
func TestRenew(t *testing.T) {
	for _, hook := range []Hook{TCX, Clsact} {
		t.Run(string(hook), func(t *testing.T) {
			device, a, pins := upgraded(t, hook)
			d, err := Open(pins)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			stop := flood(t)
			for range 3 {
				if err := d.Renew(device, Options{Tins: 1, LinkHeaderBytes: 14}, pins); err != nil {
					t.Fatal(err)
				}
			}
			sent := 10 + stop()
			if got := packetsOf(t, d); got != sent {
				t.Errorf("counted %d packets, sent %d", got, sent)
			}
			detachByPins(t, device, a, pins)
		})
	}
}

// detachByPins detaches what is pinned, which has to be what is attached.
func detachByPins(t *testing.T, device netlink.Link, a Attachment, pins string) {
	t.Helper()
	d, err := Open(pins)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if attached, err := d.Attached(device, a); !attached || err != nil {
		t.Errorf("the pins: attached %v, %v", attached, err)
	}
	if err := errors.Join(d.Detach(device, a, pins), Unpin(pins)); err != nil {
		t.Fatal(err)
	}
}

// TestTakeOver: a data path of another layout is replaced under traffic. Each packet is counted by
// the one or the other.
func TestTakeOver(t *testing.T) {
	for _, hook := range []Hook{TCX, Clsact} {
		t.Run(string(hook), func(t *testing.T) {
			device, a, pins := upgraded(t, hook)
			watch, err := Open(pins) // the old maps, from before they are of another layout
			if err != nil {
				t.Fatal(err)
			}
			defer watch.Close()
			otherLayout(t, watch)
			if _, err := Open(pins); !errors.Is(err, ErrLayout) {
				t.Fatalf("open: %v, want %v", err, ErrLayout)
			}
			old, err := OpenProgram(pins)
			if err != nil {
				t.Fatal(err)
			}
			defer old.Close()
			counters := ControllerCounters{Events: 5, RateWrites: 7, UnchangedRecomputes: 1}
			counters.Recomputes[TriggerIdle] = 4
			if err := watch.PutControllerCounters(counters); err != nil {
				t.Fatal(err)
			}
			d := load(t, 4)
			stop := flood(t)
			if err := d.TakeOver(old, device, pins); err != nil {
				t.Fatal(err)
			}
			sendUDP(t, 1, 10)
			sent := 20 + stop()
			if before, after := packetsOf(t, watch), packetsOf(t, d); before+after != sent || after == 0 {
				t.Errorf("counted %d packets before and %d after, sent %d", before, after, sent)
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if d, err = Open(pins); err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if attached, err := d.Attached(device, a); !attached || err != nil {
				t.Errorf("the pins: attached %v, %v", attached, err)
			}
			if got, err := d.ControllerCounters(); got != counters || err != nil {
				t.Errorf("the controller's counters are %+v, want %+v; %v", got, counters, err)
			}
			if err := errors.Join(d.Detach(device, a, pins), Unpin(pins)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestPinnedAgain: what is missing of the pins is noticed, and can be put back any number of times.
func TestPinnedAgain(t *testing.T) {
	for _, hook := range []Hook{TCX, Clsact} {
		t.Run(string(hook), func(t *testing.T) {
			device, a, pins := upgraded(t, hook)
			d, err := Open(pins)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			remove := []string{filepath.Join(pins, programPin), filepath.Join(pins, dataPathMapShards), pins, pins}
			if hook == TCX {
				remove = append(remove, filepath.Join(pins, LinkPin))
			}
			for _, path := range remove {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				if pinned, err := d.Pinned(pins); pinned || err != nil {
					t.Errorf("without %s: pinned %v, %v", path, pinned, err)
				}
				if err := errors.Join(d.Pin(pins), d.PinLink(pins)); err != nil {
					t.Fatalf("pin again without %s: %v", path, err)
				}
				if pinned, err := d.Pinned(pins); !pinned || err != nil {
					t.Errorf("pinned again without %s: pinned %v, %v", path, pinned, err)
				}
			}
			detachByPins(t, device, a, pins)
		})
	}
}

// TestOtherCountersAreNotInherited: of a map that looks like another one nothing is taken.
func TestOtherCountersAreNotInherited(t *testing.T) {
	pins := filepath.Join(testnet.BPFFS(t), "pins")
	if err := os.Mkdir(pins, 0o700); err != nil {
		t.Fatal(err)
	}
	d := load(t, 1)
	// Of the same size, but it does not tell what is in it.
	other, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: d.objects.Controller.ValueSize(), MaxEntries: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	value := make([]byte, other.ValueSize())
	value[0] = 1
	if err := errors.Join(other.Put(uint32(0), value), other.Pin(filepath.Join(pins, dataPathMapController)), d.inheritCounters(pins)); err != nil {
		t.Fatal(err)
	}
	if got, err := d.ControllerCounters(); got != (ControllerCounters{}) || err != nil {
		t.Errorf("took %+v, %v", got, err)
	}
}

// otherLayout makes the maps of a data path look as if another version had made them.
func otherLayout(t *testing.T, d *DataPath) {
	t.Helper()
	var config dataPathDeviceConfig
	if err := d.objects.Config.Lookup(uint32(0), &config); err != nil {
		t.Fatal(err)
	}
	config.LayoutVersion++
	if err := d.objects.Config.Put(uint32(0), config); err != nil {
		t.Fatal(err)
	}
}

// TestAttachAgain: somebody takes the program off the device, and it is attached once more.
func TestAttachAgain(t *testing.T) {
	for _, hook := range []Hook{TCX, Clsact} {
		t.Run(string(hook), func(t *testing.T) {
			device, a, pins := upgraded(t, hook)
			d, err := Open(pins)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if hook == TCX {
				err = d.tcx.Detach()
			} else {
				testnet.Run(t, "tc qdisc del dev v0 clsact")
			}
			if err != nil {
				t.Fatal(err)
			}
			if attached, err := d.Attached(device, a); attached || err != nil {
				t.Fatalf("attached %v, %v although it was taken off", attached, err)
			}
			if a, err = d.Attach(device, hook); err != nil {
				t.Fatal(err)
			}
			if err := d.PinLink(pins); err != nil {
				t.Fatal(err)
			}
			sendUDP(t, 1, 10)
			if got := packetsOf(t, d); got != 20 {
				t.Errorf("counted %d packets, sent 20", got)
			}
			if err := errors.Join(d.Detach(device, a, pins), Unpin(pins)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestQueueIsForeseen compares with what the leaves under mq counted.
func TestQueueIsForeseen(t *testing.T) {
	const queues = 32
	for _, xps := range []bool{false, true} {
		t.Run(fmt.Sprintf("xps=%v", xps), func(t *testing.T) {
			testnet.Enter(t)
			device := testnet.Veth(t, queues)
			d := load(t, queues)
			if xps {
				allowed := map[int][]int{}
				sysfs := testnet.Sysfs(t)
				for cpu := range min(2, runtime.NumCPU()) {
					for _, queue := range []int{cpu, cpu + 8, cpu + 16} {
						allowed[cpu] = append(allowed[cpu], queue)
						path := filepath.Join(sysfs, "v0/queues", fmt.Sprintf("tx-%d/xps_cpus", queue))
						if err := os.WriteFile(path, fmt.Appendf(nil, "%x", 1<<cpu), 0); err != nil {
							t.Fatal(err)
						}
					}
				}
				if err := d.SetXPS(allowed); err != nil {
					t.Fatal(err)
				}
			}
			testnet.Run(t, "tc qdisc add dev v0 root handle 1: mq")
			a, err := d.Attach(device, "")
			if err != nil {
				t.Fatal(err)
			}
			defer d.Detach(device, a, filepath.Join(testnet.BPFFS(t), "v0"))
			sendUDP(t, 200, 5)

			classes := testnet.Run(t, "tc -s class show dev v0")
			used := 0
			for queue := range queues {
				foreseen, err := d.QueueCounters(queue)
				if err != nil {
					t.Fatal(err)
				}
				real := leafPackets(t, classes, queue)
				if foreseen.Packets != real {
					t.Errorf("queue %d: foresaw %d packets, it got %d", queue, foreseen.Packets, real)
				}
				if real > 0 {
					used++
				}
			}
			if want := 3; used < want {
				t.Errorf("%d queues used: too few to tell anything", used)
			}
		})
	}
}

// leafPackets is what the class of a queue under the mq with handle 1: counted, of what tc shows.
func leafPackets(t *testing.T, classes string, queue int) uint64 {
	t.Helper()
	_, rest, ok := strings.Cut(classes, fmt.Sprintf("class mq 1:%x root", queue+1))
	if !ok {
		t.Fatalf("no class of queue %d in %s", queue, classes)
	}
	var bytes, packets uint64
	if _, err := fmt.Sscanf(strings.TrimSpace(rest[strings.Index(rest, "Sent"):]), "Sent %d bytes %d pkt", &bytes, &packets); err != nil {
		t.Fatalf("read the class of queue %d: %v in %s", queue, err, classes)
	}
	return packets
}

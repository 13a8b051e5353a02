// SPDX-License-Identifier: BSD-2-Clause

package notify

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/testnet"
)

// patience is how long a test waits for a notification that must come: the kernel sends them before
// the command that causes them returns.
const patience = 10 * time.Second

func subscribe(t *testing.T) *Subscription {
	t.Helper()
	testnet.Enter(t)
	device := testnet.Veth(t, 4)
	s, err := Subscribe(device.Attrs().Index, testnet.Device)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *Subscription) want(t *testing.T, after string) {
	t.Helper()
	select {
	case <-s.C:
	case <-time.After(patience):
		t.Errorf("no notification after %s", after)
	}
}

// settle reads notifications until none has come for a while: one command can cause several.
func (s *Subscription) settle() (n int) {
	for {
		select {
		case <-s.C:
			n++
		case <-time.After(50 * time.Millisecond):
			return n
		}
	}
}

// TestRemovedPinsAreTold: of a BPF file system too.
func TestRemovedPinsAreTold(t *testing.T) {
	s := subscribe(t)
	dir := filepath.Join(testnet.BPFFS(t), "pins")
	program := filepath.Join(dir, "program")
	if err := s.Watch(dir); err != nil {
		t.Fatalf("watch a directory that is not there: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Watch(dir); err != nil {
			t.Fatal(err)
		}
	}
	pinProgram(t, program)
	if n := s.settle(); n != 0 {
		t.Errorf("%d notifications of a new pin", n)
	}
	for _, path := range []string{program, dir} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		s.want(t, "the removal of "+path)
		s.settle()
	}
}

func TestEveryChangeIsTold(t *testing.T) {
	s := subscribe(t)
	program := filepath.Join(testnet.BPFFS(t), "program")
	pinProgram(t, program)
	s.settle()
	for _, command := range []string{
		"tc qdisc replace dev v0 root handle 1: pfifo limit 10",
		"tc qdisc change dev v0 root handle 1: pfifo limit 20",
		"tc qdisc del dev v0 root",
		"tc qdisc add dev v0 clsact",
		"tc filter add dev v0 egress protocol all prio 1 bpf object-pinned " + program,
		"tc filter del dev v0 egress protocol all prio 1 bpf",
		"ip link set dev v0 mtu 1400",
		"ethtool -L v0 tx 2",
		"ip link set dev v0 down",
		"ip link set dev v0 up",
		"ip link set dev v0 name v9",
		"ip link set dev v9 name v0",
		"ip link del v0",
	} {
		testnet.Run(t, command)
		s.want(t, command)
		s.settle()
	}
	// One of the same name.
	device := testnet.Veth(t, 4)
	s.want(t, "the device is made again")
	s.Follow(device.Attrs().Index)
	s.settle()
	testnet.Run(t, "tc qdisc replace dev v0 root handle 1: pfifo")
	s.want(t, "a change of the device that was made again")
}

// pinProgram pins a filter that lets everything pass.
func pinProgram(t *testing.T, path string) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	if err := program.Pin(path); err != nil {
		t.Fatal(err)
	}
}

func TestOthersAreNotTold(t *testing.T) {
	s := subscribe(t)
	s.settle()
	testnet.Run(t, "tc qdisc replace dev v1 root handle 1: pfifo")
	testnet.Run(t, "ip link add v2 type veth peer name v3")
	if n := s.settle(); n != 0 {
		t.Errorf("%d notifications after changes of other devices", n)
	}
}

func TestOverrunIsToldAndCounted(t *testing.T) {
	s := subscribe(t)
	reading, read := make(chan struct{}, 1), make(chan struct{})
	socket, err := listen(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
	}); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.read(socket, func(syscall.NetlinkMessage) bool {
		select {
		case reading <- struct{}{}:
		default:
		}
		<-read
		return false
	})
	testnet.Run(t, "ip link set dev v1 mtu 1400")
	<-reading
	for mtu := range 10 {
		testnet.Run(t, fmt.Sprintf("ip link set dev v1 mtu %d", 1300+mtu))
	}
	s.settle()
	close(read)
	s.want(t, "an overrun")
	if s.Overruns() == 0 {
		t.Error("the overrun is not counted")
	}
}

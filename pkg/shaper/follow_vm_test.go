// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/rates"
)

// followed is an attached device whose follower runs.
type followed struct {
	*Shaper
	t *testing.T
}

func follow(t *testing.T, env Env, spec config.Spec) followed {
	t.Helper()
	s, err := Attach(t.Context(), env, spec)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	here := testnet.Here(t)
	go func() { ran <- here.Do(func() error { return s.Run(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ran, s.Detach(context.WithoutCancel(ctx)), s.Close()); err != nil {
			t.Error(err)
		}
	})
	f := followed{s, t}
	f.until("the follower runs", func() bool { return s.drift.following })
	return f
}

// until waits for what the follower is to do by itself: it looks only at what this process knows, not
// at the device, so that it does not wake the follower.
func (f followed) until(what string, done func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		f.mu.Lock()
		ok := done()
		f.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("it never comes about that %s; drift: %+v", what, f.drift)
		}
	}
}

// enforcing checks the status, and returns it.
func (f followed) enforcing(when string) api.Status {
	f.t.Helper()
	status, err := f.Status(f.t.Context())
	if err != nil {
		f.t.Fatalf("%s: %v", when, err)
	}
	if !status.Enforcing {
		f.t.Errorf("%s: not enforcing: %s", when, status.Reason)
	}
	return status
}

func (f followed) set(onDrift config.OnDrift) {
	f.t.Helper()
	if _, err := f.Set(f.t.Context(), config.Change{OnDrift: &onDrift}); err != nil {
		f.t.Fatal(err)
	}
}

// TestVMDrift: what others change on the device is found, told, and put back or left as asked.
func TestVMDrift(t *testing.T) {
	for _, hook := range hooks() {
		env, _ := newEnv(t, 4)
		env.Hook = hook
		f := follow(t, env, spec("100mbit"))
		f.set(config.DriftReport)

		testnet.Run(t, "tc qdisc replace dev v0 root handle 1: pfifo")
		f.until("the other qdisc is found", func() bool { return f.drift.detected == 1 })
		status, err := f.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if status.Enforcing || !strings.Contains(status.Reason, "pfifo") || status.Drift.Repaired != 0 {
			t.Errorf("reported only: enforcing %v (%s), %+v", status.Enforcing, status.Reason, status.Drift)
		}

		f.set(config.DriftRepair)
		f.until("the qdisc is ours again", func() bool { return f.drift.repaired == 1 })
		f.enforcing("after the qdisc was replaced")

		// The limits and the tcx link, which the kernel does not tell of, and then an option.
		f.set(config.DriftReport)
		testnet.Run(t, "ip link set dev v0 gso_max_size 65536")
		if f.record.Attachment.Hook == loader.Clsact {
			testnet.Run(t, "tc filter del dev v0 egress")
		} else {
			detachLink(t, env)
		}
		testnet.Run(t, "tc qdisc change dev v0 parent ca4e:2 handle ca50: fq limit 50")
		f.until("all of it is found", func() bool {
			return strings.Contains(f.drift.present, "limit is 50") && strings.Contains(f.drift.present, "gso_max_size is 65536") && strings.Contains(f.drift.present, "hook")
		})
		f.set(config.DriftRepair)
		f.until("all is ours again", func() bool { return f.drift.repaired == 2 })
		f.enforcing("after much was changed")

		pins := env.pins(testnet.Device)
		f.set(config.DriftReport)
		if err := os.RemoveAll(pins); err != nil {
			t.Fatal(err)
		}
		f.until("the missing pins are found", func() bool { return strings.Contains(f.drift.present, "pins are missing") })
		f.enforcing("without pins")
		f.set(config.DriftRepair)
		f.until("the pins are back", func() bool { return f.drift.repaired == 3 })
		if again, err := Open(env, testnet.Device); err != nil {
			t.Errorf("open by the pins: %v", err)
		} else if err := again.Close(); err != nil {
			t.Error(err)
		}
		if hook == "" && f.record.Attachment.Hook == loader.Clsact {
			break // this kernel has nothing else
		}
	}
}

// TestDetachIsNoticed: when another program takes ours off the hook while traffic flows, which the kernel
// tells nobody of, that is noticed within a second. Measured by a clock that no busy host disturbs.
func TestDetachIsNoticed(t *testing.T) {
	if os.Getenv("CAKECTL_VM") == "" {
		t.Skip("make test-icount runs this in the VM")
	}
	env, _ := newEnv(t, 4)
	f := follow(t, env, spec("100mbit"))
	f.set(config.DriftReport)
	conn, err := net.Dial("udp", net.JoinHostPort(testnet.PeerAddress, "9"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		// In bursts that are long enough for the flow to count: a tenth of the bandwidth.
		for ctx.Err() == nil {
			for range 8 {
				_, _ = conn.Write(make([]byte, 1400))
			}
			time.Sleep(8 * time.Millisecond)
		}
	})
	defer sending.Wait()
	defer cancel()
	for range 3 {
		f.until("traffic is noticed", func() bool { return f.controller.Counters().RateWrites > 0 && f.drift.present == "" })
		time.Sleep(300 * time.Millisecond) // sooner after the look than another may follow
		found := f.drift.detected + 1
		detachLink(t, env)
		began := time.Now()
		f.until("the missing program is found", func() bool { return f.drift.detected == found })
		took := time.Since(began)
		t.Logf("noticed after %v", took)
		if took > time.Second {
			t.Errorf("noticed after %v, want a second at most", took)
		}
		f.set(config.DriftRepair)
		f.until("the program is back", func() bool { return f.drift.present == "" && f.drift.repaired > 0 })
		f.set(config.DriftReport)
	}
}

// detachLink does what `bpftool link detach` does to the tcx link.
func detachLink(t *testing.T, env Env) {
	t.Helper()
	tcx, err := link.LoadPinnedLink(filepath.Join(env.pins(testnet.Device), loader.LinkPin), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tcx.Close()
	if err := tcx.Detach(); err != nil {
		t.Fatal(err)
	}
}

// TestVMFollowsTheDevice: queues, MTU, XPS, up and down, another name, and gone and back.
func TestVMFollowsTheDevice(t *testing.T) {
	env, device := newEnv(t, 4)
	f := follow(t, env, spec("100mbit"))

	testnet.Run(t, "ethtool -L v0 tx 2")
	f.until("two queues are in use", func() bool { return f.applied.queues == 2 })
	testnet.Run(t, "ethtool -L v0 tx 4")
	f.until("four queues are in use", func() bool { return f.applied.queues == 4 })
	testnet.Run(t, "ip link set dev v0 mtu 1400")
	f.until("the MTU is 1400", func() bool { return f.applied.mtu == 1400 })

	// The kernel tells nobody of XPS; whoever asks for the status makes the follower look.
	without := f.applied.xps
	xps := filepath.Join(testnet.Sysfs(t), "v0/queues/tx-1/xps_cpus")
	if err := os.WriteFile(xps, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	f.enforcing("with XPS")
	f.until("XPS is followed", func() bool { return f.applied.xps != without })

	testnet.Run(t, "ip link set dev v0 down")
	testnet.Run(t, "ip link set dev v0 up")
	f.enforcing("down and up")
	rename := func(from, to string) {
		testnet.Run(t, "ip link set dev "+from+" down") // older kernels rename no device that is up
		testnet.Run(t, "ip link set dev "+from+" name "+to)
		testnet.Run(t, "ip link set dev "+to+" up")
	}
	if f.drift.detected != 0 {
		t.Errorf("drift where there was none: %+v", f.drift)
	}

	rename("v0", "v9")
	if status := f.enforcing("renamed"); status.Device != "v9" {
		t.Errorf("its name is %s in the status", status.Device)
	}
	other, err := Open(env, "v9")
	if err != nil {
		t.Fatal(err)
	}
	if status, err := other.Status(t.Context()); err != nil || !status.Enforcing || status.Device != "v9" {
		t.Errorf("opened by its new name: %s enforcing %v (%s), %v", status.Device, status.Enforcing, status.Reason, err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	testnet.Run(t, "ip link add v0 type veth peer name v2")
	if _, err := Attach(t.Context(), env, spec("10mbit")); !errors.Is(err, ErrNotAttached) || !strings.Contains(err.Error(), "detach v9") {
		t.Errorf("attach another device of the old name: %v", err)
	}
	testnet.Run(t, "ip link del v0")
	rename("v9", "v0")

	if err := netlink.LinkDel(testnet.Link(t, testnet.Device)); err != nil {
		t.Fatal(err)
	}
	f.until("the device is gone", func() bool { return f.drift.gone })
	again := testnet.Veth(t, 8)
	if again.Attrs().Index == device.Attrs().Index {
		t.Fatal("the index is the same again")
	}
	f.until("it is attached anew", func() bool { return !f.drift.gone && f.controller != nil })
	if status := f.enforcing("back"); status.Queues.Total != 8 {
		t.Errorf("back with %d queues, 8 are there", status.Queues.Total)
	}
}

// TestVMChangedWhileGone: what is set while a device is gone, or cannot be attached anew, holds when it
// is back.
func TestVMChangedWhileGone(t *testing.T) {
	env, device := newEnv(t, 2)
	f := follow(t, env, spec("10mbit"))
	set := func(text string, replace bool) {
		t.Helper()
		bandwidth, err := rates.ParseValue(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Set(t.Context(), config.Change{Bandwidth: &bandwidth, Replace: replace}); err != nil {
			t.Errorf("set %s: %v", text, err)
		}
	}
	back := func(bandwidth rates.Rate) {
		t.Helper()
		f.until("it is attached anew", func() bool { return !f.drift.gone && f.controller != nil })
		if status := f.enforcing("back"); rates.Rate(status.Bandwidth) != bandwidth {
			t.Errorf("back with %s, want %s", rates.Rate(status.Bandwidth), bandwidth)
		}
	}
	if err := netlink.LinkDel(device); err != nil {
		t.Fatal(err)
	}
	f.until("the device is gone", func() bool { return f.drift.gone })
	set("20mbit", false)
	device = testnet.Veth(t, 2)
	back(20 * rates.Mbit)

	if err := netlink.LinkDel(device); err != nil {
		t.Fatal(err)
	}
	f.until("the device is gone", func() bool { return f.drift.gone })
	testnet.Run(t, "ip link add v9 numtxqueues 2 type veth peer name v8")
	testnet.Run(t, "tc qdisc add dev v9 root handle 77: pfifo limit 7")
	testnet.Run(t, "ip link set dev v9 name v0")
	f.until("it cannot be attached", func() bool { return f.drift.returned != nil })
	status, err := f.Status(t.Context())
	if err != nil || status.Enforcing || !strings.Contains(status.Reason, "came back, and is not attached") || !strings.Contains(status.Reason, "pfifo") {
		t.Errorf("enforcing %v (%s), %v", status.Enforcing, status.Reason, err)
	}
	set("30mbit", false)
	set("40mbit", true)
	back(40 * rates.Mbit)
}

// TestVMAdoptsByItsOldName: a device that was renamed while no process followed it.
func TestVMAdoptsByItsOldName(t *testing.T) {
	env, _ := newEnv(t, 2)
	s, err := Attach(t.Context(), env, spec("10mbit"))
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	testnet.Run(t, "ip link set dev v0 down")
	testnet.Run(t, "ip link set dev v0 name v9")
	s, err = Attach(t.Context(), env, spec("20mbit"))
	if err != nil {
		t.Fatal(err)
	}
	if status, err := s.Status(t.Context()); err != nil || !s.Adopted() || status.Device != "v9" || rates.Rate(status.Bandwidth) != 20*rates.Mbit {
		t.Errorf("adopted %v as %s with %s, %v", s.Adopted(), status.Device, rates.Rate(status.Bandwidth), err)
	}
	if err := errors.Join(s.Detach(t.Context()), s.Close()); err != nil {
		t.Error(err)
	}
}

// TestVMFollowsTheLinkSpeed: a bandwidth in percent is of what the link has now, and of what it had
// while it is down.
func TestVMFollowsTheLinkSpeed(t *testing.T) {
	env, _ := newEnv(t, 1)
	testnet.Run(t, "ip tuntap add tap0 mode tap")
	testnet.Run(t, "ip link set dev tap0 up")
	speed := func(megabits string) { testnet.Run(t, "ethtool -s tap0 speed "+megabits+" duplex full autoneg off") }
	speed("1000")
	tap := spec("50%")
	tap.Device = "tap0"
	f := follow(t, env, tap)
	if got := f.rates.Bandwidth; got != 500*rates.Mbit {
		t.Errorf("half of 1000 Mbit/s is %s", got)
	}
	speed("100")
	f.until("the rate is half of 100 Mbit/s", func() bool { return f.rates.Bandwidth == 50*rates.Mbit })
	testnet.Run(t, "ip link set dev tap0 down")
	if status := f.enforcing("down"); rates.Rate(status.Bandwidth) != 50*rates.Mbit {
		t.Errorf("down: %s", rates.Rate(status.Bandwidth))
	}
}

// TestVMOtherVersions: the program of another version of the same layout is replaced with the maps
// kept; one with maps of another layout is taken over, and its device can be detached.
func TestVMOtherVersions(t *testing.T) {
	for _, hook := range hooks() {
		env, device := newEnv(t, 4)
		env.Hook = hook
		before := take(t, env, device)
		leave := func() {
			t.Helper()
			s, err := Attach(t.Context(), env, spec("100mbit"))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		adopt := func() *Shaper {
			t.Helper()
			s, err := Attach(t.Context(), env, spec("100mbit"))
			if err != nil {
				t.Fatal(err)
			}
			if status, err := s.Status(t.Context()); err != nil || !status.Enforcing || !s.Adopted() {
				t.Errorf("enforcing %v (%s), adopted %v, %v", status.Enforcing, status.Reason, s.Adopted(), err)
			}
			return s
		}
		leave()
		r, err := env.readRecord(testnet.Device)
		if err != nil {
			t.Fatal(err)
		}
		r.Build = "another"
		if err := env.writeRecord(r); err != nil {
			t.Fatal(err)
		}
		program, maps := pinnedID(t, env, "program"), pinnedID(t, env, "shards")
		if err := adopt().Close(); err != nil {
			t.Fatal(err)
		}
		if pinnedID(t, env, "program") == program || pinnedID(t, env, "shards") != maps {
			t.Error("another build of the same layout: want the maps kept and the program replaced")
		}

		otherLayout(t, env)
		s, err := Open(env, testnet.Device)
		if err != nil {
			t.Fatal(err)
		}
		if status, err := s.Status(t.Context()); err != nil || !status.Enforcing || !strings.Contains(status.Reason, "another version") {
			t.Errorf("of another layout: enforcing %v (%s), %v", status.Enforcing, status.Reason, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := adopt().Close(); err != nil {
			t.Fatal(err)
		}
		if pinnedID(t, env, "shards") == maps {
			t.Error("the maps of another layout are kept")
		}

		otherLayout(t, env)
		if s, err = Open(env, testnet.Device); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Detach(t.Context()), s.Close()); err != nil {
			t.Fatal(err)
		}
		wantAsBefore(t, env, device, before)
		if hook == "" && r.Attachment.Hook == loader.Clsact {
			break // this kernel has nothing else
		}
	}
}

// pinnedID is the kernel's number of a pinned program or map.
func pinnedID(t *testing.T, env Env, name string) uint32 {
	t.Helper()
	path := filepath.Join(env.pins(testnet.Device), name)
	if name == "program" {
		program, err := ebpf.LoadPinnedProgram(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		info, err := program.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		return uint32(id)
	}
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return uint32(id)
}

// otherLayout makes the pins look as if they were of another version: a map that this one has is not
// there.
func otherLayout(t *testing.T, env Env) {
	t.Helper()
	if err := os.Remove(filepath.Join(env.pins(testnet.Device), "scratch")); err != nil {
		t.Fatal(err)
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/qdisc"
	"github.com/cakectl/cakectl/pkg/rates"
)

// newEnv is a host of the test's own, with a device of so many queues.
func newEnv(t *testing.T, queues int) (Env, netlink.Link) {
	t.Helper()
	testnet.NeedFQ(t)
	device := testnet.Veth(t, queues)
	return Env{
		BPFFS:  filepath.Join(testnet.BPFFS(t), "cakectl"),
		RunDir: t.TempDir(),
		Log:    slog.New(slog.NewTextHandler(t.Output(), nil)),
	}, device
}

func spec(bandwidth string) config.Spec {
	value, err := rates.ParseValue(bandwidth)
	if err != nil {
		panic(err)
	}
	return config.New(testnet.Device, value)
}

// snapshot is all of a device that an attach may change, and all that it may leave behind.
type snapshot struct {
	journal qdisc.Journal
	tcx     int
	filters string
	objects int // BPF programs and maps in the kernel
	fds     int
	pins    []string
	records []string
}

func take(t *testing.T, env Env, device netlink.Link) snapshot {
	t.Helper()
	journal, err := qdisc.Capture(device)
	if err != nil {
		t.Fatal(err)
	}
	s := snapshot{journal: journal}
	programs, err := link.QueryPrograms(link.QueryOptions{Target: device.Attrs().Index, Attach: ebpf.AttachTCXEgress})
	switch {
	case err == nil:
		s.tcx = len(programs.Programs)
	case !errors.Is(err, link.ErrNotSupported) && !errors.Is(err, ebpf.ErrNotSupported):
		t.Logf("query tcx: %v", err)
	}
	if strings.Contains(testnet.Run(t, "tc qdisc show dev v0"), "clsact") {
		s.filters = testnet.Run(t, "tc filter show dev v0 egress")
	}
	// What a garbage collection closes was leaked all the same, but is no leak of the kernel's.
	runtime.GC()
	for id, err := ebpf.ProgramID(0), error(nil); err == nil; {
		if id, err = ebpf.ProgramGetNextID(id); err == nil {
			s.objects++
		}
	}
	for id, err := ebpf.MapID(0), error(nil); err == nil; {
		if id, err = ebpf.MapGetNextID(id); err == nil {
			s.objects++
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	s.fds = len(fds)
	s.pins = names(t, env.BPFFS)
	for _, name := range names(t, env.RunDir) {
		if strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".new") {
			s.records = append(s.records, name)
		}
	}
	return s
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// wantAsBefore fails for everything that is not as it was. The kernel frees BPF objects a moment
// after their last user is gone, so their number is given some tries.
func wantAsBefore(t *testing.T, env Env, device netlink.Link, before snapshot) {
	t.Helper()
	after := take(t, env, device)
	for try := 0; after.objects > before.objects && try < 100; try++ {
		runtime.Gosched()
		testnet.Run(t, "sleep 0.05")
		after = take(t, env, device)
	}
	for _, difference := range qdisc.Diff(before.journal, after.journal) {
		t.Errorf("left behind: %s", difference)
	}
	if after.tcx != before.tcx || after.filters != before.filters {
		t.Errorf("left behind: %d tcx programs, were %d; filters %q, were %q", after.tcx, before.tcx, after.filters, before.filters)
	}
	// Fewer is no leak: what an earlier test let go of may be freed only now.
	if after.objects > before.objects {
		t.Errorf("left behind: %d BPF programs and maps, were %d", after.objects, before.objects)
	}
	if after.fds != before.fds {
		t.Errorf("left behind: %d file descriptors, were %d", after.fds, before.fds)
	}
	if len(after.pins) != len(before.pins) || len(after.records) != len(before.records) {
		t.Errorf("left behind: pins %v, records %v", after.pins, after.records)
	}
}

func hooks() []loader.Hook { return []loader.Hook{"", loader.Clsact} }

// TestVMFailedAttachLeavesNoTrace makes an attach fail before each of its steps, and after the last.
func TestVMFailedAttachLeavesNoTrace(t *testing.T) {
	for _, hook := range hooks() {
		env, device := newEnv(t, 4)
		env.Hook = hook
		fault := errors.New("injected")
		steps := []string{"after the last"}
		for _, step := range (&Shaper{}).steps() {
			steps = append(steps, step.name)
		}
		before := take(t, env, device)
		for _, failing := range steps {
			env.fault = func(step string) error {
				if step == failing {
					return fault
				}
				return nil
			}
			s, err := Attach(t.Context(), env, spec("100mbit"))
			if failing == "after the last" {
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(s.Detach(t.Context()), s.Close()); err != nil {
					t.Fatal(err)
				}
			} else if !errors.Is(err, fault) {
				t.Fatalf("fault before %q: %v", failing, err)
			}
			t.Logf("fault: %s", failing)
			wantAsBefore(t, env, device, before)
		}
	}
}

// TestVMCancelledAttachLeavesNoTrace is Ctrl-C at any moment: the context ends before each step.
func TestVMCancelledAttachLeavesNoTrace(t *testing.T) {
	env, device := newEnv(t, 4)
	before := take(t, env, device)
	for _, last := range (&Shaper{}).steps() {
		ctx, cancel := context.WithCancel(t.Context())
		env.fault = func(step string) error {
			if step == last.name {
				cancel()
			}
			return nil
		}
		s, err := Attach(ctx, env, spec("100mbit"))
		cancel()
		if err == nil {
			// The last step does not look at its context.
			err = errors.Join(s.Detach(t.Context()), s.Close())
			if err != nil {
				t.Fatal(err)
			}
		} else if !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled before %q: %v", last.name, err)
		}
		wantAsBefore(t, env, device, before)
	}
}

func TestVMTwentyTimes(t *testing.T) {
	for _, hook := range hooks() {
		env, device := newEnv(t, 8)
		env.Hook = hook
		before := take(t, env, device)
		for range 20 {
			s, err := Attach(t.Context(), env, spec("100mbit"))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Detach(t.Context()), s.Close()); err != nil {
				t.Fatal(err)
			}
		}
		wantAsBefore(t, env, device, before)
	}
}

// TestVMTwoAtOnce: both succeed, the later one by adopting, and one detach undoes it all.
func TestVMTwoAtOnce(t *testing.T) {
	env, device := newEnv(t, 4)
	here := testnet.Here(t)
	before := take(t, env, device)
	shapers := make([]*Shaper, 2)
	errs := make([]error, 2)
	var attaches sync.WaitGroup
	for i := range shapers {
		attaches.Go(func() {
			errs[i] = here.Do(func() (err error) {
				shapers[i], err = Attach(t.Context(), env, spec("100mbit"))
				return err
			})
		})
	}
	attaches.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	status, err := shapers[0].Status(t.Context())
	if err != nil || !status.Enforcing {
		t.Errorf("after two attaches: enforcing %v (%s), %v", status.Enforcing, status.Reason, err)
	}
	if err := errors.Join(shapers[0].Detach(t.Context()), shapers[0].Close(), shapers[1].Close()); err != nil {
		t.Fatal(err)
	}
	wantAsBefore(t, env, device, before)
}

// TestVMCutShort is a process that dies between any two steps: no undo runs. The next attach
// succeeds all the same, and its detach restores what was there before the first.
func TestVMCutShort(t *testing.T) {
	for _, hook := range hooks() {
		env, device := newEnv(t, 4)
		env.Hook = hook
		before := take(t, env, device)
		for died := range (&Shaper{}).steps() {
			cutShort(t, env, device, died)
			s, err := Attach(t.Context(), env, spec("50mbit"))
			if err != nil {
				t.Fatalf("attach after one that died after step %d: %v", died, err)
			}
			status, err := s.Status(t.Context())
			if err != nil || !status.Enforcing {
				t.Errorf("attach after one that died after step %d: enforcing %v (%s), %v", died, status.Enforcing, status.Reason, err)
			}
			if err := errors.Join(s.Detach(t.Context()), s.Close()); err != nil {
				t.Fatal(err)
			}
			wantAsBefore(t, env, device, before)
		}
	}
}

// TestVMNotNoted is a process that dies when the program is at its hook and the record does not say so yet:
// the status tells what is, and the next attach, or detach, undoes it.
func TestVMNotNoted(t *testing.T) {
	for _, hook := range hooks() {
		env, device := newEnv(t, 2)
		env.Hook = hook
		before := take(t, env, device)
		for _, again := range []bool{false, true} {
			s, err := Attach(t.Context(), env, spec("100mbit"))
			if err != nil {
				t.Fatal(err)
			}
			was := s.record.Attachment
			s.record.Attachment = loader.Attachment{}
			if err := errors.Join(env.writeRecord(s.record), s.Close()); err != nil {
				t.Fatal(err)
			}
			if again {
				s, err = Attach(t.Context(), env, spec("100mbit"))
			} else {
				s, err = Open(env, testnet.Device)
			}
			if err != nil {
				t.Fatal(err)
			}
			status, err := s.Status(t.Context())
			if err != nil || !status.Enforcing || status.Attach != string(was.Hook) {
				t.Errorf("enforcing %v (%s) by %q, want by %q; %v", status.Enforcing, status.Reason, status.Attach, was.Hook, err)
			}
			if err := errors.Join(s.Detach(t.Context()), s.Close()); err != nil {
				t.Fatal(err)
			}
			wantAsBefore(t, env, device, before)
		}
	}
}

// cutShort attaches up to and with a step, and then lets go of everything as a dying process does.
func cutShort(t *testing.T, env Env, device netlink.Link, last int) {
	t.Helper()
	if err := env.prepare(); err != nil {
		t.Fatal(err)
	}
	s, err := newShaper(env, device, spec("100mbit"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.run(t.Context(), s.steps()[:last+1]); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestVMSetWritesWhatChanged: a change of the rate writes each active cell once, and one that
// changes nothing writes nothing.
func TestVMSetWritesWhatChanged(t *testing.T) {
	env, _ := newEnv(t, 4)
	s, err := Attach(t.Context(), env, spec("4mbit"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer s.Detach(context.WithoutCancel(t.Context()))
	active, stop := backlog(t, s)
	defer stop()
	change := func(bandwidth string) int {
		value, err := rates.ParseValue(bandwidth)
		if err != nil {
			t.Fatal(err)
		}
		changed, err := s.Set(t.Context(), config.Change{Bandwidth: &value})
		if err != nil {
			t.Fatal(err)
		}
		return changed.RateWrites
	}
	change("4mbit")
	for _, bandwidth := range []string{"2mbit", "4mbit"} {
		if got := change(bandwidth); got != active {
			t.Errorf("set to %s: %d writes, %d cells are active", bandwidth, got, active)
		}
	}
	if got := change("4mbit"); got != 0 {
		t.Errorf("set to what is set already: %d writes", got)
	}
}

// backlog keeps some sockets full until stop, and tells on how many queues they are active.
func backlog(t *testing.T, s *Shaper) (active int, stop func()) {
	t.Helper()
	var conns []net.Conn
	for port := range 8 {
		conn, err := net.Dial("udp", net.JoinHostPort(testnet.PeerAddress, strconv.Itoa(2000+port)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conns = append(conns, conn)
		for range 80 {
			if _, err := conn.Write(make([]byte, 1400)); err != nil {
				t.Fatal(err)
			}
		}
	}
	cells, err := s.datapath.Active(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(cells) < 2 {
		t.Fatalf("active: %+v: too few to tell anything", cells)
	}
	var sending sync.WaitGroup
	for _, conn := range conns {
		sending.Go(func() {
			for err := error(nil); err == nil; {
				_, err = conn.Write(make([]byte, 1400))
			}
		})
	}
	return len(cells), func() {
		for _, conn := range conns {
			conn.Close()
		}
		sending.Wait()
	}
}

// TestVMSetAfterDetach is a set that loses the race against a detach: it touches nothing.
func TestVMSetAfterDetach(t *testing.T) {
	env, device := newEnv(t, 4)
	before := take(t, env, device)
	s, err := Attach(t.Context(), env, spec("100mbit"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := Open(env, testnet.Device)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Detach(t.Context()), s.Close()); err != nil {
		t.Fatal(err)
	}
	value, err := rates.ParseValue("50mbit")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Set(t.Context(), config.Change{Bandwidth: &value}); !errors.Is(err, ErrNotAttached) {
		t.Errorf("set after another's detach: %v, want %v", err, ErrNotAttached)
	}
	if err := errors.Join(other.Detach(t.Context()), other.Close()); err != nil {
		t.Errorf("detach after another's detach: %v", err)
	}
	wantAsBefore(t, env, device, before)
}

// TestVMLostRecord clears the run directory under a shaped device: detach and attach both find their
// way back to what the kernel makes by default.
func TestVMLostRecord(t *testing.T) {
	for _, hook := range hooks() {
		env, device := newEnv(t, 4)
		env.Hook = hook
		before := take(t, env, device)
		for _, again := range []bool{false, true} {
			s, err := Attach(t.Context(), env, spec("100mbit"))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Close(), os.Remove(env.record(testnet.Device))); err != nil {
				t.Fatal(err)
			}
			if again {
				s, err = Attach(t.Context(), env, spec("50mbit"))
			} else {
				s, err = Open(env, testnet.Device)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Detach(t.Context()), s.Close()); err != nil {
				t.Fatal(err)
			}
			after := take(t, env, device)
			for _, difference := range qdisc.Diff(before.journal, after.journal) {
				t.Errorf("attached again: %v: left behind: %s", again, difference)
			}
			if len(after.pins) != len(before.pins) || after.tcx != before.tcx {
				t.Errorf("attached again: %v: left behind: pins %v, %d tcx programs", again, after.pins, after.tcx)
			}
		}
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

func TestHandleText(t *testing.T) {
	for _, c := range []struct {
		h    Handle
		text string
	}{
		{parentRoot, "root"},
		{0, "0:"},
		{RootHandle, "ca4e:"},
		{classOf(RootHandle, 31), "ca4e:20"},
		{leafHandle(0), "ca4f:"},
		{0x0001_0000, "1:"},
		{3, "0:3"},
		{parentIngress, "ffff:fff1"},
	} {
		if got := c.h.String(); got != c.text {
			t.Errorf("%#x is %q, want %q", uint32(c.h), got, c.text)
		}
		var back Handle
		if err := back.UnmarshalText([]byte(c.text)); err != nil || back != c.h {
			t.Errorf("%q reads as %#x, %v", c.text, uint32(back), err)
		}
	}
	for _, bad := range []string{"", "1", "x:", "1:x", "12345:", ":"} {
		if err := new(Handle).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q was read without an error", bad)
		}
	}
}

func TestCaptureKernelDefaults(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 4, false)
	j := mustCapture(t, link)
	if len(j.Qdiscs) != 0 || !j.Default() || j.Ours() || j.Up {
		t.Errorf("a device that was never up: %+v", j)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	j = mustCapture(t, link)
	wantTree(t, link, "noqueue 0:@root")
	if !j.Default() || !j.Up {
		t.Errorf("a device that is up: %+v", j)
	}
	if j.NumTxQueues != 4 || j.RealTxQueues != 4 {
		t.Errorf("queues: %d of %d, want 4 of 4", j.RealTxQueues, j.NumTxQueues)
	}
	if j.GSOMaxSizeBytes == 0 || j.GSOMaxSegments == 0 || j.TxQueueLen == 0 {
		t.Errorf("limits are missing: %+v", j)
	}
	if len(j.XPS) != 4 || j.XPS[3].Queue != 3 || strings.Trim(j.XPS[0].CPUs, "0,") != "" {
		t.Errorf("XPS maps: %+v", j.XPS)
	}
}

func TestJournalSurvivesJSON(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 4, true)
	tc(t, "qdisc add dev v0 root handle 1: mq")
	tc(t, "qdisc replace dev v0 parent 1:2 handle 20: pfifo limit 77")
	tc(t, "qdisc add dev v0 clsact")
	j := mustCapture(t, link)
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	var back Journal
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(j, back); d != "" {
		t.Error(d)
	}
	if !strings.Contains(string(text), `"handle":"20:","parent":"1:2"`) {
		t.Errorf("handles are not as tc writes them: %s", text)
	}
}

func TestDiffIsReadable(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 4, true)
	before := mustCapture(t, link)
	tc(t, "qdisc add dev v0 root handle 1: pfifo limit 7")
	tc(t, "qdisc add dev v0 clsact")
	if err := netlink.LinkSetTxQLen(link, 5); err != nil {
		t.Fatal(err)
	}
	after := mustCapture(t, link)
	want := []string{
		"root: was noqueue 0:, is pfifo 1:",
		"parent ffff:fff1: was nothing, is clsact ffff:",
		fmt.Sprintf("txqueuelen: was %d, is 5", before.TxQueueLen),
	}
	if d := cmp.Diff(want, Diff(before, after)); d != "" {
		t.Error(d)
	}
	tc(t, "qdisc change dev v0 root handle 1: pfifo limit 8")
	want = []string{"root: pfifo 1: options were 07000000, are 08000000"}
	if d := cmp.Diff(want, Diff(after, mustCapture(t, link))); d != "" {
		t.Error(d)
	}
}

// TestInstallAndRestore goes through the mechanics of the tree with a leaf
// that each kernel has; the VM tests do the same with fq.
func TestInstallAndRestore(t *testing.T) {
	for _, queues := range []int{1, 4, 32} {
		for _, up := range []bool{true, false} {
			t.Run(fmt.Sprintf("queues=%d,up=%t", queues, up), func(t *testing.T) {
				inNetns(t)
				link := newVeth(t, queues, up)
				testInstallAndRestore(t, link, installer{leaf: pfifoLeaf{100}}, installer{leaf: pfifoLeaf{200}})
			})
		}
	}
}

// testInstallAndRestore installs, installs again, changes options, restores,
// and compares at each step.
func testInstallAndRestore(t *testing.T, link netlink.Link, first, second installer) {
	t.Helper()
	ctx := context.Background()
	before := mustCapture(t, link)
	if _, err := first.install(ctx, link); err != nil {
		t.Fatalf("install: %v", err)
	}
	installed := mustCapture(t, link)
	if problems, err := first.problems(installed); err != nil || len(problems) > 0 {
		t.Fatalf("after install: %q, %v", problems, err)
	}
	if !first.owns(installed) {
		t.Errorf("the tree is not recognised as ours: %+v", installed.Qdiscs)
	}

	refuse := first
	refuse.before = func(name string) error { return fmt.Errorf("step %q where none is needed", name) }
	if _, err := refuse.install(ctx, link); err != nil {
		t.Errorf("install again: %v", err)
	}

	var names []string
	second.before = func(name string) error { names = append(names, name); return nil }
	undo, err := second.install(ctx, link)
	if err != nil {
		t.Fatalf("install with other options: %v", err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "change ") {
			t.Errorf("other options led to the step %q", name)
		}
	}
	if want := max(before.NumTxQueues, 1); len(names) != want {
		t.Errorf("other options took %d steps, want %d", len(names), want)
	}
	if err := undo(); err != nil {
		t.Errorf("undo of the other options: %v", err)
	}
	wantSame(t, "after undo of the other options", installed, link)

	for range 2 {
		if err := Restore(ctx, link, before); err != nil {
			t.Fatalf("Restore: %v", err)
		}
		wantSame(t, "after restore", before, link)
	}
}

func TestInstallCoversQueuesNotInUse(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 4, true)
	in := installer{leaf: pfifoLeaf{100}}
	setQueues(t, "v0", 2)
	before := mustCapture(t, link)
	if before.RealTxQueues != 2 || before.NumTxQueues != 4 {
		t.Fatalf("queues: %d of %d, want 2 of 4", before.RealTxQueues, before.NumTxQueues)
	}
	if _, err := in.install(context.Background(), link); err != nil {
		t.Fatal(err)
	}
	const ours = "pfifo ca4f:@ca4e:1, pfifo ca50:@ca4e:2, pfifo ca51:@ca4e:3, pfifo ca52:@ca4e:4, mq ca4e:@root"
	wantTree(t, link, ours)
	setQueues(t, "v0", 4)
	wantTree(t, link, ours)
	setQueues(t, "v0", 1)
	wantTree(t, link, ours)
	if err := Restore(context.Background(), link, before); err != nil {
		t.Error(err)
	}
	if d := Diff(before, mustCapture(t, link)); len(d) != 1 || d[0] != "transmit queues in use: was 2, is 1" {
		t.Errorf("after restore with fewer queues: %q", d)
	}
}

var errInjected = errors.New("injected")

// TestInstallUndoesEachStep makes each step fail, on each kind of device that
// Install may find, and wants it back exactly as it was.
func TestInstallUndoesEachStep(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, netlink.Link){
		"default": func(*testing.T, netlink.Link) {},
		"foreign pfifo": func(t *testing.T, _ netlink.Link) {
			tc(t, "qdisc add dev v0 root handle 7: pfifo limit 123")
		},
		"foreign mq": func(t *testing.T, _ netlink.Link) {
			tc(t, "qdisc add dev v0 root handle 1: mq")
			tc(t, "qdisc replace dev v0 parent 1:3 handle 30: bfifo limit 4567")
			tc(t, "qdisc add dev v0 clsact")
		},
		"foreign tbf with a child": func(t *testing.T, _ netlink.Link) {
			tc(t, "qdisc add dev v0 root handle 1: tbf rate 10mbit burst 5k latency 50ms")
			tc(t, "qdisc add dev v0 parent 1:1 handle 2: pfifo limit 9")
		},
		"ours with other options": func(t *testing.T, link netlink.Link) {
			if _, err := (installer{leaf: pfifoLeaf{7}}).install(context.Background(), link); err != nil {
				t.Fatal(err)
			}
		},
		"ours half built": func(t *testing.T, _ netlink.Link) {
			tc(t, "qdisc add dev v0 root handle ca4e: mq")
			tc(t, "qdisc replace dev v0 parent ca4e:2 handle ca50: pfifo limit 100")
		},
		"ours half built, queues not in use": func(t *testing.T, _ netlink.Link) {
			setQueues(t, "v0", 2)
			tc(t, "qdisc add dev v0 root handle ca4e: mq")
		},
		"ours with a foreign and a missing leaf": func(t *testing.T, link netlink.Link) {
			if _, err := (installer{leaf: pfifoLeaf{100}}).install(context.Background(), link); err != nil {
				t.Fatal(err)
			}
			tc(t, "qdisc replace dev v0 parent ca4e:2 handle 9: bfifo limit 4567")
			tc(t, "qdisc del dev v0 parent ca4e:4")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inNetns(t)
			link := newVeth(t, 4, true)
			prepare(t, link)
			before := mustCapture(t, link)
			steps := 0
			in := installer{leaf: pfifoLeaf{100}, replace: true}
			in.before = func(string) error { steps++; return nil }
			undo, err := in.install(context.Background(), link)
			if err != nil {
				t.Fatal(err)
			}
			if steps == 0 {
				t.Fatal("there was nothing to do")
			}
			if err := undo(); err != nil {
				t.Fatalf("undo: %v", err)
			}
			wantSame(t, "after undo", before, link)
			for k := range steps {
				n := 0
				in.before = func(string) error {
					if n++; n > k {
						return errInjected
					}
					return nil
				}
				_, err := in.install(context.Background(), link)
				if !errors.Is(err, errInjected) {
					t.Fatalf("step %d of %d failed and install returned %v", k+1, steps, err)
				}
				if errors.Is(err, ErrNotRestored) {
					t.Errorf("step %d: %v", k+1, err)
				}
				wantSame(t, fmt.Sprintf("after step %d failed", k+1), before, link)
			}
		})
	}
}

func TestInstallStopsWithItsContext(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 4, true)
	before := mustCapture(t, link)
	ctx, cancel := context.WithCancel(context.Background())
	in := installer{leaf: pfifoLeaf{100}}
	n := 0
	in.before = func(string) error {
		if n++; n == 3 {
			cancel()
		}
		return nil
	}
	if _, err := in.install(ctx, link); !errors.Is(err, context.Canceled) {
		t.Errorf("install returned %v", err)
	}
	wantSame(t, "after cancelling", before, link)
}

// TestForeignRootIsRefused also checks the words: they are what a user sees.
func TestForeignRootIsRefused(t *testing.T) {
	ctx := context.Background()
	t.Run("restorable", func(t *testing.T) {
		inNetns(t)
		link := newVeth(t, 4, true)
		tc(t, "qdisc add dev v0 root handle 8001: pfifo limit 9")
		before := mustCapture(t, link)
		_, err := Install(ctx, link, Options{})
		var foreign *ForeignError
		if !errors.As(err, &foreign) || !errors.Is(err, ErrForeign) || foreign.Kind != "pfifo" || foreign.Handle != 0x8001_0000 {
			t.Fatalf("Install returned %v", err)
		}
		const want = "v0: root qdisc pfifo 8001: is in use: it is not as the kernel makes it by default; use --replace to take its place until detach restores it"
		if err.Error() != want {
			t.Errorf("%q\nwant %q", err, want)
		}
		wantSame(t, "after a refusal", before, link)
	})
	t.Run("classes and filters", func(t *testing.T) {
		inNetns(t)
		link := newVeth(t, 4, true)
		tc(t, "qdisc add dev v0 root handle 1: htb default 10")
		tc(t, "class add dev v0 parent 1: classid 1:1 htb rate 10mbit")
		tc(t, "class add dev v0 parent 1:1 classid 1:10 htb rate 1mbit")
		before := mustCapture(t, link)
		_, err := Install(ctx, link, Options{})
		const want = "v0: root qdisc htb 1: is in use: it is not as the kernel makes it by default, and detach could not restore it after --replace (htb 1: with 2 classes)"
		if !errors.Is(err, ErrForeign) || err.Error() != want {
			t.Errorf("%q\nwant %q", err, want)
		}
		_, err = Install(ctx, link, Options{Replace: true})
		if !errors.Is(err, ErrUnrestorable) || !strings.Contains(err.Error(), "htb 1: with 2 classes; save what you need") {
			t.Errorf("with Replace: %v", err)
		}
		wantSame(t, "after refusals", before, link)

		in := installer{leaf: pfifoLeaf{100}, replace: true, force: true}
		if _, err := in.install(ctx, link); err != nil {
			t.Fatalf("with Force: %v", err)
		}
		err = Restore(ctx, link, before)
		var not *RestoreError
		if !errors.As(err, &not) || !strings.Contains(err.Error(), "root: was htb 1:, is noqueue 0:") {
			t.Errorf("Restore returned %v", err)
		}
		wantTree(t, link, "noqueue 0:@root")
	})
	t.Run("our handle", func(t *testing.T) {
		inNetns(t)
		link := newVeth(t, 4, true)
		tc(t, "qdisc add dev v0 root handle ca4e: tbf rate 10mbit burst 5k latency 50ms")
		before := mustCapture(t, link)
		if _, err := Install(ctx, link, Options{}); !errors.Is(err, ErrForeign) {
			t.Errorf("Install returned %v", err)
		}
		in := installer{leaf: pfifoLeaf{100}, replace: true}
		undo, err := in.install(ctx, link)
		if err != nil {
			t.Fatal(err)
		}
		if err := undo(); err != nil {
			t.Fatal(err)
		}
		wantSame(t, "after undo", before, link)
	})
}

func TestFiltersAreCounted(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 4, true)
	tc(t, "qdisc add dev v0 root handle 1: htb")
	addFilter(t, "parent", "1:")
	tc(t, "qdisc add dev v0 clsact")
	addFilter(t, "egress")
	j := mustCapture(t, link)
	if root, _ := j.root(); root.Filters != 1 {
		t.Errorf("%d filters at the root, want 1", root.Filters)
	}
	if d := cmp.Diff([]string{"1 filter of htb 1:"}, j.Unrestorable()); d != "" {
		t.Error(d)
	}
}

// TestKindsThatRoundTrip proves restorableKind for the kinds of every kernel.
func TestKindsThatRoundTrip(t *testing.T) {
	for _, c := range []string{
		"pfifo limit 33",
		"bfifo limit 44444",
		"pfifo_head_drop limit 5",
		"pfifo_fast",
		"noqueue",
		"mq",
		"tbf rate 12345kbit burst 5k latency 50ms",
		"tbf rate 10gbit burst 500k limit 3000000 peakrate 20gbit mtu 9000",
	} {
		t.Run(c, func(t *testing.T) { testRoundTrip(t, c, installer{leaf: pfifoLeaf{100}, replace: true}) })
	}
}

// testRoundTrip replaces a qdisc that tc made, at the root and, where it can
// be one, as a leaf of mq, and wants it back to the byte.
func testRoundTrip(t *testing.T, qdisc string, in installer) {
	t.Helper()
	kind := strings.Fields(qdisc)[0]
	if !restorableKind(kind) {
		t.Fatalf("%s is not among the restorable kinds", kind)
	}
	places := [][]string{{"qdisc add dev v0 root handle 1: " + qdisc}}
	if kind != "mq" && kind != "noqueue" && kind != "cake_mq" {
		places = append(places, []string{
			"qdisc add dev v0 root handle 1: mq",
			"qdisc replace dev v0 parent 1:2 handle 20: " + qdisc,
		})
	}
	for _, place := range places {
		inNetns(t)
		link := newVeth(t, 4, true)
		for _, args := range place {
			tc(t, args)
		}
		before := mustCapture(t, link)
		if before.Default() || len(before.Unrestorable()) > 0 {
			t.Fatalf("found %v, not restorable: %q", before.Qdiscs, before.Unrestorable())
		}
		if _, err := in.install(context.Background(), link); err != nil {
			t.Fatal(err)
		}
		if err := Restore(context.Background(), link, before); err != nil {
			t.Error(err)
		}
		wantSame(t, place[len(place)-1], before, link)
		if err := netlink.LinkDel(link); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRestoreLeavesAlone(t *testing.T) {
	ctx := context.Background()
	in := installer{leaf: pfifoLeaf{100}}
	t.Run("clsact and its filters", func(t *testing.T) {
		inNetns(t)
		link := newVeth(t, 4, true)
		before := mustCapture(t, link)
		if _, err := in.install(ctx, link); err != nil {
			t.Fatal(err)
		}
		tc(t, "qdisc add dev v0 clsact")
		addFilter(t, "egress")
		filters := tc(t, "filter show dev v0 egress")
		if err := Restore(ctx, link, before); err != nil {
			t.Error(err)
		}
		wantTree(t, link, "noqueue 0:@root")
		if got := tc(t, "filter show dev v0 egress"); got != filters || got == "" {
			t.Errorf("filters were %q, are %q", filters, got)
		}
	})
	t.Run("a root put in place of ours", func(t *testing.T) {
		inNetns(t)
		link := newVeth(t, 4, true)
		before := mustCapture(t, link)
		if _, err := in.install(ctx, link); err != nil {
			t.Fatal(err)
		}
		tc(t, "qdisc replace dev v0 root handle 5: tbf rate 10mbit burst 5k latency 50ms")
		err := Restore(ctx, link, before)
		if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "tbf 5: took the place of ours") {
			t.Errorf("Restore returned %v", err)
		}
		wantTree(t, link, "bfifo 0:@5:1, tbf 5:@root")
	})
}

func TestRestoreWithoutAJournalOfBefore(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 4, true)
	before := mustCapture(t, link)
	in := installer{leaf: pfifoLeaf{100}}
	if _, err := in.install(context.Background(), link); err != nil {
		t.Fatal(err)
	}
	if err := Restore(context.Background(), link, mustCapture(t, link)); err != nil {
		t.Fatal(err)
	}
	wantSame(t, "after restore", before, link)
}

func TestProblemsAreNamed(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 4, true)
	in := installer{leaf: pfifoLeaf{100}}
	check := func(want ...string) {
		t.Helper()
		got, err := in.problems(mustCapture(t, link))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	check("root: is noqueue 0:, want mq ca4e:")
	if _, err := in.install(context.Background(), link); err != nil {
		t.Fatal(err)
	}
	check()
	tc(t, "qdisc change dev v0 parent ca4e:1 handle ca4f: pfifo limit 7")
	tc(t, "qdisc replace dev v0 parent ca4e:2 handle 9: bfifo")
	tc(t, "qdisc del dev v0 parent ca4e:4")
	check(
		"leaf of queue 0: pfifo ca4f:, limit is 7, want 100",
		"leaf of queue 1: is bfifo 9:, want pfifo ca50:",
		"leaf of queue 3: nothing there, so the kernel drops its packets, want pfifo ca52:",
	)
}

// noLeaf is of a kind that no kernel has.
type noLeaf struct{ pfifoLeaf }

func (noLeaf) kind() string                   { return "cakectl_none" }
func (noLeaf) probe(c *rtnl, index int) error { return probe(c, index, "cakectl_none") }

func TestKernelWithoutFQ(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 4, true)
	before := mustCapture(t, link)
	in := installer{leaf: noLeaf{}}
	in.before = func(name string) error { return fmt.Errorf("the device was touched: %s", name) }
	_, err := in.install(context.Background(), link)
	if !errors.Is(err, ErrNoFQ) || !strings.Contains(err.Error(), "v0: this kernel has no sch_fq: load it (modprobe sch_fq)") {
		t.Errorf("install returned %v", err)
	}
	wantSame(t, "after a refusal", before, link)
}

func TestPlan(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 2, true)
	before := mustCapture(t, link)
	got, err := Plan(link, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"create mq ca4e:", "create fq ca4f:", "create fq ca50:"}, got); d != "" {
		t.Error(d)
	}
	wantSame(t, "after planning", before, link)
	tc(t, "qdisc add dev v0 root handle 1: pfifo")
	if _, err := Plan(link, Options{}); !errors.Is(err, ErrForeign) {
		t.Errorf("Plan returned %v over a foreign qdisc", err)
	}
}

// TestUndoLeavesNoQueueWithoutQdisc: a leaf that is deleted leaves noop, which
// drops packets and which dumps don't show for queues not in use.
func TestUndoLeavesNoQueueWithoutQdisc(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 4, true)
	setQueues(t, "v0", 2)
	tc(t, "qdisc add dev v0 root handle ca4e: mq")
	in := installer{leaf: pfifoLeaf{100}}
	undo, err := in.install(context.Background(), link)
	if err != nil {
		t.Fatal(err)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	setQueues(t, "v0", 4)
	// The kinds differ: for queues not in use the kernel takes pfifo_fast,
	// whatever net.core.default_qdisc says.
	now := mustCapture(t, link)
	for i := range 4 {
		if q, ok := now.at(classOf(RootHandle, i)); !ok || q.Handle != 0 {
			t.Errorf("queue %d: %v, want what the kernel makes by itself", i, q)
		}
	}
}

func TestJournalsOfOtherVersionsAreRefused(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 1, true)
	before := mustCapture(t, link)
	for _, bad := range []Journal{{}, {Version: JournalVersion + 1}} {
		for _, err := range []error{
			Restore(context.Background(), link, bad),
			ApplyGSOCap(link, bad, 40_000_000),
			RestoreGSO(link, bad),
		} {
			if err == nil || !strings.Contains(err.Error(), "this program reads version 1") {
				t.Errorf("version %d: %v", bad.Version, err)
			}
		}
	}
	wantSame(t, "after refusals", before, link)
}

func TestNoSuchDevice(t *testing.T) {
	inNetns(t)
	link := newVeth(t, 1, true)
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	if _, err := Capture(link); err == nil || !strings.HasPrefix(err.Error(), "v0: read the device: ") {
		t.Errorf("Capture returned %v", err)
	}
	if _, err := Install(context.Background(), link, Options{}); err == nil {
		t.Error("Install returned no error")
	}
}

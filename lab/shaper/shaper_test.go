// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/lab/topo"
	"github.com/cakectl/cakectl/pkg/rates"
)

func newTarget(t *testing.T, rate rates.Rate) Target {
	t.Helper()
	pair, err := topo.NewPair("shaper-test", 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Close(); err != nil {
			t.Error(err)
		}
	})
	return Target{Port: pair.Up, Rate: rate, Diffserv: "diffserv4", StateDir: t.TempDir()}
}

func TestHTB(t *testing.T) {
	target := newTarget(t, 40e6)
	peer, err := Lookup("htb")
	if err != nil {
		t.Fatal(err)
	}
	shaped, err := peer.Attach(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	if got := htbRate(t, target); got != 40e6 {
		t.Errorf("rate %v, want 40mbit", got)
	}
	if err := shaped.SetRate(t.Context(), 20e6); err != nil {
		t.Fatal(err)
	}
	if got := htbRate(t, target); got != 20e6 {
		t.Errorf("after the change: rate %v, want 20mbit", got)
	}
	details, err := shaped.Details(t.Context())
	if err != nil || !strings.Contains(details, "qdisc htb 1: root") {
		t.Errorf("Details = %q, %v", details, err)
	}
	if err := errors.Join(shaped.Kill(), shaped.Close()); err != nil {
		t.Error(err)
	}
}

// htbRate is what the kernel's only htb class is set to.
func htbRate(t *testing.T, target Target) rates.Rate {
	t.Helper()
	var rate rates.Rate
	err := target.Namespace.Do(func() error {
		device, err := netlink.LinkByName(target.Device)
		if err != nil {
			return err
		}
		classes, err := netlink.ClassList(device, 0)
		if err != nil {
			return err
		}
		for _, class := range classes {
			if htb, ok := class.(*netlink.HtbClass); ok {
				rate = rates.Rate(htb.Rate * 8)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rate
}

// Commands for each queue name it the way tc reads it, in hexadecimal.
func TestQueuesInHexadecimal(t *testing.T) {
	target := newTarget(t, 0)
	peer := Peer{Name: "test", Commands: []string{"qdisc add dev $DEV root handle 1: mq", "qdisc add dev $DEV parent 1:$QUEUE handle 2$QUEUE: pfifo"}}
	shaped, err := peer.Attach(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	details, err := shaped.Details(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(details, "qdisc pfifo 2"); got != target.Queues {
		t.Errorf("pfifo on %d of %d queues:\n%s", got, target.Queues, details)
	}
	if !strings.Contains(details, "pfifo 214: parent 1:14 ") {
		t.Errorf("no pfifo on the last queue, 1:14:\n%s", details)
	}
}

func TestNoRateToChange(t *testing.T) {
	for _, peer := range Peers() {
		if peer.Shapes {
			continue
		}
		err := byTC{peer: peer}.SetRate(t.Context(), 1)
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("SetRate of %s = %v, want ErrUnsupported", peer.Name, err)
		}
	}
}

func TestAttachFails(t *testing.T) {
	peer := Peer{Name: "test", Commands: []string{"qdisc add dev $DEV root nonsense"}}
	_, err := peer.Attach(t.Context(), newTarget(t, 0))
	if err == nil || !strings.Contains(err.Error(), "attach test") || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("Attach = %v, want an error with the shaper, what tc says and the command", err)
	}
}

func TestCakeMQKnowsPresets(t *testing.T) {
	target := newTarget(t, 40e6)
	target.Diffserv = "nonsense"
	if _, err := attachCakeMQ(t.Context(), target); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("attachCakeMQ = %v, want an error that names the preset", err)
	}
}

func TestLookup(t *testing.T) {
	if _, err := Lookup("nothing"); err == nil || !strings.Contains(err.Error(), "cakectl") {
		t.Errorf("Lookup = %v, want an error that lists the names", err)
	}
	var names []string
	for _, peer := range Peers() {
		if slices.Contains(names, peer.Name) {
			t.Errorf("two shapers are called %s", peer.Name)
		}
		names = append(names, peer.Name)
	}
}

func TestEDTLoads(t *testing.T) {
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	var objects edtObjects
	if err := loadEdtObjects(&objects, nil); err != nil {
		t.Fatalf("%+v", err)
	}
	if err := (&edt{objects: objects}).SetRate(t.Context(), 80); err != nil {
		t.Error(err)
	}
	var rate uint64
	if err := objects.BytesPerSecond.Get(&rate); err != nil || rate != 10 {
		t.Errorf("bytes_per_second = %d, %v; want 10", rate, err)
	}
	if err := objects.Close(); err != nil {
		t.Error(err)
	}
}

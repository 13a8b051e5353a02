// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// inNetns runs the rest of the test in a network namespace of its own.
func inNetns(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatalf("get the network namespace: %v", err)
	}
	own, err := netns.New()
	if err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() {
		own.Close()
		if err := netns.Set(before); err != nil {
			// The thread is of no use to anybody; leaving it locked ends it.
			t.Errorf("go back to the network namespace: %v", err)
			return
		}
		before.Close()
		runtime.UnlockOSThread()
	})
}

// newVeth makes the veth device v0 with so many queues, up unless told
// otherwise, in the namespace of the test.
func newVeth(t *testing.T, queues int, up bool) netlink.Link {
	t.Helper()
	a := netlink.NewLinkAttrs()
	a.Name, a.NumTxQueues, a.NumRxQueues = "v0", queues, queues
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "v1"}); err != nil {
		t.Fatalf("add a veth pair: %v", err)
	}
	link := linkByName(t, "v0")
	if up {
		for _, l := range []netlink.Link{link, linkByName(t, "v1")} {
			if err := netlink.LinkSetUp(l); err != nil {
				t.Fatalf("set %s up: %v", l.Attrs().Name, err)
			}
		}
	}
	return link
}

func linkByName(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatalf("find %s: %v", name, err)
	}
	return link
}

// tc runs tc(8), the yardstick for what we send and read by ourselves.
func tc(t *testing.T, args string) string {
	t.Helper()
	out, err := exec.Command("tc", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("tc %s: %v: %s", args, err, out)
	}
	return string(out)
}

// addFilter adds a classic BPF filter that returns 0.
func addFilter(t *testing.T, where ...string) {
	t.Helper()
	args := append([]string{"filter", "add", "dev", "v0"}, where...)
	args = append(args, "prio", "5", "protocol", "all", "bpf", "bytecode", "1,6 0 0 0")
	if out, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
		t.Fatalf("tc %q: %v: %s", args, err, out)
	}
}

func mustCapture(t *testing.T, link netlink.Link) Journal {
	t.Helper()
	j, err := Capture(link)
	if err != nil {
		t.Fatalf("Capture: %v", err)
	}
	return j
}

func wantSame(t *testing.T, what string, before Journal, link netlink.Link) {
	t.Helper()
	for _, d := range Diff(before, mustCapture(t, link)) {
		t.Errorf("%s: %s", what, d)
	}
}

func wantTree(t *testing.T, link netlink.Link, want string) {
	t.Helper()
	var got []string
	for _, q := range mustCapture(t, link).tree() {
		got = append(got, fmt.Sprintf("%s@%s", q, q.Parent))
	}
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("qdiscs are %s\nwant       %s", s, want)
	}
}

// pfifoLeaf is a leaf that all kernels have.
type pfifoLeaf struct{ limitPackets uint32 }

func (pfifoLeaf) kind() string { return "pfifo" }
func (l pfifoLeaf) options() []byte {
	return binary.NativeEndian.AppendUint32(nil, l.limitPackets)
}
func (l pfifoLeaf) diff(shown []byte) ([]string, error) {
	if len(shown) != 4 {
		return nil, errors.New("pfifo options are not 4 bytes")
	}
	if got := binary.NativeEndian.Uint32(shown); got != l.limitPackets {
		return []string{fmt.Sprintf("limit is %d, want %d", got, l.limitPackets)}, nil
	}
	return nil, nil
}
func (pfifoLeaf) probe(*rtnl, int) error { return nil }

// vmOnly is for tests that need a kernel with sch_fq. In the VM lane its
// absence is a failure.
func vmOnly(t *testing.T) {
	t.Helper()
	inNetns(t)
	link := newVeth(t, 1, true)
	c, err := openRTNL()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	err = fqLeaf{}.probe(c, link.Attrs().Index)
	if delErr := netlink.LinkDel(link); delErr != nil {
		t.Fatalf("delete the veth pair: %v", delErr)
	}
	switch {
	case err == nil:
	case errors.Is(err, ErrNoFQ) && os.Getenv("CAKECTL_VM") == "":
		t.Skip("no sch_fq in this kernel: this test runs in the VM lane")
	default:
		t.Fatal(err)
	}
}

// setQueues does what ethtool -L does.
func setQueues(t *testing.T, device string, queues uint32) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	channels, err := ethtoolChannels(fd, device, ethtoolGetChannels, ethtoolChannelsData{})
	if err != nil {
		t.Fatalf("%s: get channels: %v", device, err)
	}
	if channels.MaxCombined > 0 {
		channels.Combined = queues
	} else {
		channels.Tx, channels.Rx = queues, queues
	}
	if _, err := ethtoolChannels(fd, device, ethtoolSetChannels, channels); err != nil {
		t.Fatalf("%s: set %d channels: %v", device, queues, err)
	}
}

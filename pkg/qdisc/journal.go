// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// JournalVersion is the version of the layout of [Journal].
const JournalVersion = 1

// Journal records what is on a device: everything that Install, ApplyGSOCap
// or a careless neighbour might change. It is stored as JSON.
type Journal struct {
	Version int    `json:"version"`
	Device  string `json:"device"`
	Index   int    `json:"index"`
	Up      bool   `json:"up"`

	// Qdiscs are all qdiscs of the device, those that the kernel made by
	// itself included, sorted by parent.
	Qdiscs []Qdisc `json:"qdiscs"`
	// DefaultQdisc is net.core.default_qdisc: the kind that the kernel makes
	// by itself on a queue.
	DefaultQdisc string `json:"default_qdisc"`

	NumTxQueues int `json:"num_tx_queues"`
	// RealTxQueues are the queues in use (ethtool -L); 0 means unknown.
	RealTxQueues int `json:"real_tx_queues"`
	TxQueueLen   int `json:"tx_queue_length_packets"`
	// LinkSpeedMegabits is the speed of the link in Mbit/s, as the driver tells it; 0 means unknown,
	// as it is of a link that is down.
	LinkSpeedMegabits int `json:"link_speed_megabits,omitempty"`
	// XPS are the CPU and receive queue maps of the transmit queues. Only
	// multi-queue devices of kernels with CONFIG_XPS have them.
	XPS []XPSMap `json:"xps,omitempty"`

	GSOMaxSizeBytes uint32 `json:"gso_max_size_bytes"`
	GSOMaxSegments  uint32 `json:"gso_max_segments"`
	// GSOIPv4MaxSizeBytes is 0 on kernels before 6.3, where GSOMaxSizeBytes
	// covers both families.
	GSOIPv4MaxSizeBytes uint32 `json:"gso_ipv4_max_size_bytes,omitempty"`
}

// Qdisc is one qdisc of a device.
type Qdisc struct {
	Kind   string `json:"kind"`
	Handle Handle `json:"handle"`
	Parent Handle `json:"parent"`
	// Options are the bytes of TCA_OPTIONS, as the kernel shows them.
	Options []byte `json:"options,omitempty"`
	// SizeTable is set when the qdisc has a size table (tc's stab). The
	// kernel shows only a part of it.
	SizeTable bool `json:"size_table,omitempty"`
	// Filters and Classes are counted because creating the qdisc again would
	// not bring them back. Classes are only those that somebody made.
	Filters int `json:"filters,omitempty"`
	Classes int `json:"classes,omitempty"`
}

// XPSMap says which CPUs or receive queues may choose a transmit queue, as
// sysfs writes it.
type XPSMap struct {
	Queue    int    `json:"queue"`
	CPUs     string `json:"cpus"`
	RxQueues string `json:"rx_queues"`
}

// Capture records the device. It changes nothing.
func Capture(link netlink.Link) (Journal, error) {
	c, err := openRTNL()
	if err != nil {
		return Journal{}, err
	}
	defer c.close()
	return capture(c, link)
}

// checkVersion refuses a journal of another layout, the zero one included.
func (j Journal) checkVersion() error {
	if j.Version != JournalVersion {
		return fmt.Errorf("journal has version %d, this program reads version %d", j.Version, JournalVersion)
	}
	return nil
}

// captureTries bounds how often a device is read again because it was renamed meanwhile, which moves
// its directory in sysfs.
const captureTries = 10

func capture(c *rtnl, link netlink.Link) (Journal, error) {
	for range captureTries {
		j, err := captureOnce(c, link)
		if err != nil {
			return Journal{}, err
		}
		now, err := netlink.LinkByIndex(j.Index)
		if err != nil {
			return Journal{}, fmt.Errorf("%s: read the device: %w", j.Device, err)
		}
		if now.Attrs().Name == j.Device {
			return j, nil
		}
	}
	return Journal{}, fmt.Errorf("%s: renamed in each of %d tries to read it", link.Attrs().Name, captureTries)
}

func captureOnce(c *rtnl, link netlink.Link) (Journal, error) {
	name, index := link.Attrs().Name, link.Attrs().Index
	current, err := netlink.LinkByIndex(index)
	if err != nil {
		return Journal{}, fmt.Errorf("%s: read the device: %w", name, err)
	}
	a := current.Attrs()
	j := Journal{
		Version:             JournalVersion,
		Device:              a.Name,
		Index:               a.Index,
		Up:                  a.RawFlags&unix.IFF_UP != 0,
		NumTxQueues:         a.NumTxQueues,
		TxQueueLen:          a.TxQLen,
		GSOMaxSizeBytes:     a.GSOMaxSize,
		GSOMaxSegments:      a.GSOMaxSegs,
		GSOIPv4MaxSizeBytes: a.GSOIPv4MaxSize,
	}
	if j.Qdiscs, err = captureQdiscs(c, index); err != nil {
		return Journal{}, fmt.Errorf("%s: read the qdiscs: %w", j.Device, err)
	}
	if err := j.captureSysfs(); err != nil {
		return Journal{}, fmt.Errorf("%s: read the transmit queues: %w", j.Device, err)
	}
	// Absent in network namespaces of older kernels; only used to explain.
	if kind, err := os.ReadFile("/proc/sys/net/core/default_qdisc"); err == nil {
		j.DefaultQdisc = strings.TrimSpace(string(kind))
	}
	return j, nil
}

func captureQdiscs(c *rtnl, index int) ([]Qdisc, error) {
	msgs, err := c.dumpTC(unix.RTM_GETQDISC, unix.RTM_NEWQDISC, index, 0)
	if err != nil {
		return nil, err
	}
	var qdiscs []Qdisc
	for _, m := range msgs {
		_, sizeTable := m.attrs[nl.TCA_STAB]
		q := Qdisc{Kind: nl.BytesToString(m.attrs[nl.TCA_KIND]), Handle: m.handle, Parent: m.parent, SizeTable: sizeTable}
		if options := m.attrs[nl.TCA_OPTIONS]; len(options) > 0 {
			q.Options = options
		}
		qdiscs = append(qdiscs, q)
	}
	slices.SortFunc(qdiscs, func(a, b Qdisc) int {
		return cmp.Or(cmp.Compare(a.Parent, b.Parent), cmp.Compare(a.Handle, b.Handle))
	})
	for i := range qdiscs {
		q := &qdiscs[i]
		// A qdisc that the kernel made inside another one cannot be named in
		// a request, so nobody can have given it classes or filters. A
		// default root can be: by leaving the parent out.
		if q.ingress() || q.ours() || (q.Handle == 0 && q.Parent != parentRoot) {
			continue
		}
		filters, err := c.dumpTC(unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, index, q.Handle)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, fmt.Errorf("filters of %s: %w", q, err)
		}
		q.Filters = countFilters(filters)
	}
	classes, err := c.dumpTC(unix.RTM_GETTCLASS, unix.RTM_NEWTCLASS, index, 0)
	if err != nil {
		return nil, fmt.Errorf("classes: %w", err)
	}
	for _, m := range classes {
		for i := range qdiscs {
			q := &qdiscs[i]
			if q.Handle != 0 && q.Handle == m.handle.major() && !restorableKind(q.Kind) {
				q.Classes++
			}
		}
	}
	return qdiscs, nil
}

// countFilters leaves out the messages that stand for a chain or a priority
// and not for a filter: those have no handle.
func countFilters(msgs []tcMessage) int {
	n := 0
	for _, m := range msgs {
		if m.handle != 0 {
			n++
		}
	}
	return n
}

// captureSysfs records what only sysfs shows.
func (j *Journal) captureSysfs() error {
	sysfs, closeSysfs, err := deviceSysfs(j.Device, j.Index)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeSysfs()
	if text, err := fs.ReadFile(sysfs, "speed"); err == nil {
		if speed, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			j.LinkSpeedMegabits = max(speed, 0)
		}
	}
	for {
		dir := fmt.Sprintf("queues/tx-%d", j.RealTxQueues)
		if _, err := fs.Stat(sysfs, dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		// The kernel answers ENOENT for the maps of a one-queue device.
		cpus, err := fs.ReadFile(sysfs, dir+"/xps_cpus")
		if err == nil {
			var rx []byte
			if rx, err = fs.ReadFile(sysfs, dir+"/xps_rxqs"); err == nil {
				j.XPS = append(j.XPS, XPSMap{j.RealTxQueues, strings.TrimSpace(string(cpus)), strings.TrimSpace(string(rx))})
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		j.RealTxQueues++
	}
}

// String names the qdisc as tc does, such as "fq_codel 8001:".
func (q Qdisc) String() string { return q.Kind + " " + q.Handle.String() }

// ingress tells whether q is an ingress or clsact qdisc, which are others'
// business.
func (q Qdisc) ingress() bool { return q.Parent == parentIngress }

// ours tells whether q is the root of the tree that Install makes, or in it.
func (q Qdisc) ours() bool {
	if q.Parent == parentRoot {
		return q.Handle == RootHandle && (q.Kind == "mq" || q.Kind == "fq")
	}
	return q.Parent.major() == RootHandle
}

// root is the root qdisc; a device that was never up has none.
// RootKind is the kind of the root qdisc, "" if there is none.
func (j Journal) RootKind() string {
	root, _ := j.root()
	return root.Kind
}

func (j Journal) root() (Qdisc, bool) { return j.at(parentRoot) }

func (j Journal) at(parent Handle) (Qdisc, bool) {
	for _, q := range j.Qdiscs {
		if q.Parent == parent {
			return q, true
		}
	}
	return Qdisc{}, false
}

// tree is the qdiscs of the device without ingress and clsact.
func (j Journal) tree() []Qdisc {
	var t []Qdisc
	for _, q := range j.Qdiscs {
		if !q.ingress() {
			t = append(t, q)
		}
	}
	return t
}

// Default tells whether the device has what the kernel makes by itself, which
// it makes again whenever the root is deleted: nothing (the device was never
// up), noqueue, or a root with the handle 0: and no filters.
func (j Journal) Default() bool {
	root, ok := j.root()
	return !ok || (root.Handle == 0 && root.Filters == 0)
}

// Ours tells whether the root is the one that Install makes. Whether the rest
// of the tree is right too is for [Verify] to say.
func (j Journal) Ours() bool {
	root, ok := j.root()
	return ok && root.ours()
}

// restorableKind tells whether a qdisc is the same again after it was created
// anew from its kind, handle and the options that the kernel shows. The tests
// prove each of these kinds.
func restorableKind(kind string) bool {
	switch kind {
	case "noqueue", "mq", "pfifo", "bfifo", "pfifo_head_drop", "pfifo_fast", "tbf", "fq", "fq_codel", "cake", "cake_mq":
		return true
	}
	return false
}

// Unrestorable says what Restore could not bring back, in words; empty means
// that it can bring back everything.
func (j Journal) Unrestorable() []string {
	if j.Default() || j.Ours() {
		return nil
	}
	var lost []string
	for _, q := range j.tree() {
		name := q.String()
		switch {
		case q.Filters > 0 && q.Classes > 0:
			lost = append(lost, fmt.Sprintf("%s with %s and %s", name, count(q.Classes, "class", "es"), count(q.Filters, "filter", "s")))
		case q.Classes > 0:
			lost = append(lost, fmt.Sprintf("%s with %s", name, count(q.Classes, "class", "es")))
		case q.Filters > 0:
			lost = append(lost, fmt.Sprintf("%s of %s", count(q.Filters, "filter", "s"), name))
		case !restorableKind(q.Kind) && q.Handle != 0:
			lost = append(lost, name+", a kind that is not known to come back as it was")
		}
		if q.SizeTable {
			lost = append(lost, "size table (stab) of "+name)
		}
	}
	return lost
}

func count(n int, one, plural string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s%s", n, one, plural)
}

// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/qdisc"
)

// Device is what shaping one device depends on.
type Device struct {
	Name   string
	Kind   string // of a virtual device, as ip(8) has it; "device" for others
	Driver string
	// Below are the devices that carry its packets: ports of a bond, what a VLAN is on.
	Below []string
	// Above are the devices whose packets it carries.
	Above    []Above
	RxQueues int
	CPUs     int
	Found    qdisc.Journal
	// Programs at the egress hook, in the order in which they run.
	Programs []string

	// Status is that of an attached device, else nil.
	Status *api.Status
	// Foresight is what a check of CheckedFor found, unless CheckFailed says why there is none.
	Foresight   api.Foresight
	CheckedFor  time.Duration
	CheckFailed error
}

// Above is a device whose packets another one carries: it cuts them by limits of its own.
type Above struct {
	Name            string
	GSOMaxSizeBytes uint32
}

// LookAtDevice asks the kernel for all but the state of the shaping.
func LookAtDevice(name string) (Device, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return Device{}, fmt.Errorf("find %s: %w", name, err)
	}
	d := Device{Name: name, Kind: l.Type(), RxQueues: l.Attrs().NumRxQueues, CPUs: runtime.NumCPU(), Driver: driver(name)}
	if d.Found, err = qdisc.Capture(l); err != nil {
		return d, err
	}
	links, err := allLinks()
	if err != nil {
		return d, err
	}
	d.Below = below(l, links)
	for _, other := range links {
		if carries(l, other) {
			d.Above = append(d.Above, Above{Name: other.Attrs().Name, GSOMaxSizeBytes: other.Attrs().GSOMaxSize})
		}
	}
	d.Programs, err = programs(l)
	return d, err
}

// Stacked is what the findings of a device say where others hold its packets; nil where none do.
func Stacked(name string) (*Finding, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	links, err := allLinks()
	if err != nil {
		return nil, err
	}
	d := Device{Name: name, Kind: l.Type(), Below: below(l, links)}
	if len(d.Below) == 0 {
		return nil, nil
	}
	f := d.device()
	return &f, nil
}

func allLinks() ([]netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // then most of them are there
		return nil, fmt.Errorf("list the devices: %w", err)
	}
	return links, nil
}

// below names the devices that carry the packets of one.
func below(l netlink.Link, links []netlink.Link) (names []string) {
	for _, other := range links {
		if carries(other, l) {
			names = append(names, other.Attrs().Name)
		}
	}
	return names
}

// driver asks ethtool; "" is no answer.
func driver(name string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// carries tells whether packets of a stacked device, such as a VLAN or a bond, leave by another one.
func carries(below, stacked netlink.Link) bool {
	port := below.Attrs().MasterIndex == stacked.Attrs().Index
	on := slices.Contains([]string{"vlan", "macvlan", "ipvlan", "macsec"}, stacked.Type())
	here := stacked.Attrs().NetNsID < 0 // else the index is one of another network namespace
	return port || on && here && below.Attrs().Index == stacked.Attrs().ParentIndex
}

// ownProgram begins the names of our program and of our filter.
const ownProgram = "cakectl"

// programs lists what runs at egress: tcx first, then the filters of clsact.
func programs(l netlink.Link) ([]string, error) {
	var names []string
	tcx, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXEgress})
	if err == nil {
		for _, attached := range tcx.Programs {
			names = append(names, programName(attached.ID))
		}
	}
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		return nil, fmt.Errorf("list the qdiscs of %s: %w", l.Attrs().Name, err)
	}
	if !slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }) {
		return names, nil
	}
	filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_EGRESS)
	if err != nil {
		return nil, fmt.Errorf("list the egress filters of %s: %w", l.Attrs().Name, err)
	}
	for _, filter := range filters {
		name := filter.Type() + " filter"
		if bpf, ok := filter.(*netlink.BpfFilter); ok {
			name, _, _ = strings.Cut(bpf.Name, ":")
		}
		names = append(names, name)
	}
	return names, nil
}

func programName(id ebpf.ProgramID) string {
	unknown := fmt.Sprintf("program %d", id)
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return unknown
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil || info.Name == "" {
		return unknown
	}
	return info.Name
}

// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Hook is the way a program hangs at a device's egress.
type Hook string

const (
	// TCX is the link-based hook of Linux 6.6.
	TCX Hook = "tcx"
	// Clsact is the older one: a filter at the clsact pseudo qdisc.
	Clsact Hook = "clsact"
)

// filterName marks our clsact filter in dumps for the people who read them. It is not what
// identifies it: that is the program's ID.
const filterName = "cakectl"

// Attachment is how a data path was attached: what detaching has to undo.
type Attachment struct {
	Hook Hook `json:"hook"`
	// MadeClsact tells that the clsact qdisc was not there before.
	MadeClsact bool `json:"made_clsact,omitempty"`
}

// Attach hangs the program into the device's egress hook, before programs that are there already:
// one of them could end the packet's walk. With want empty it takes tcx, and clsact where the kernel
// has no tcx. A tcx link that somebody detached is given up for a new one.
func (d *DataPath) Attach(device netlink.Link, want Hook) (Attachment, error) {
	name, index := device.Attrs().Name, device.Attrs().Index
	if d.tcx != nil {
		if err := d.tcx.Close(); err != nil {
			return Attachment{}, fmt.Errorf("give up the tcx link of %s: %w", name, err)
		}
		d.tcx = nil
	}
	if want != Clsact {
		tcx, err := link.AttachTCX(link.TCXOptions{
			Interface: index,
			Program:   d.objects.CakectlEgress,
			Attach:    ebpf.AttachTCXEgress,
			Anchor:    link.Head(),
		})
		if err == nil {
			d.tcx = tcx
			return Attachment{Hook: TCX}, nil
		}
		if want == TCX || !errors.Is(err, link.ErrNotSupported) {
			return Attachment{}, fmt.Errorf("attach to %s at tcx egress: %w", name, err)
		}
	}
	return d.attachClsact(device)
}

func (d *DataPath) attachClsact(device netlink.Link) (a Attachment, err error) {
	name := device.Attrs().Name
	a.Hook = Clsact
	err = netlink.QdiscAdd(clsactOf(device))
	switch {
	case err == nil:
		a.MadeClsact = true
	case errors.Is(err, fs.ErrExist):
		// The ingress qdisc takes clsact's place but has no egress.
		ingress, err := hasQdisc(device, "ingress")
		if err != nil {
			return a, err
		}
		if ingress {
			return a, fmt.Errorf("attach to %s at clsact egress: an ingress qdisc sits where clsact would; remove it (tc qdisc del dev %[1]s ingress) or replace it by clsact, which does all it does", name)
		}
	default:
		return a, fmt.Errorf("add a clsact qdisc to %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeClsact(device, a))
		}
	}()
	priority, err := freePriority(device)
	if err != nil {
		return a, err
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: device.Attrs().Index,
			Parent:    netlink.HANDLE_MIN_EGRESS,
			Handle:    1,
			Protocol:  unix.ETH_P_ALL,
			Priority:  priority,
		},
		Fd:           d.objects.CakectlEgress.FD(),
		Name:         filterName,
		DirectAction: true,
	}
	if err := netlink.FilterAdd(filter); err != nil {
		return a, fmt.Errorf("attach to %s at clsact egress: %w", name, err)
	}
	return a, nil
}

func clsactOf(device netlink.Link) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: device.Attrs().Index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
}

// hasQdisc tells whether the device has a qdisc of a kind.
func hasQdisc(device netlink.Link, kind string) (bool, error) {
	qdiscs, err := netlink.QdiscList(device)
	if err != nil {
		return false, fmt.Errorf("list the qdiscs of %s: %w", device.Attrs().Name, err)
	}
	return slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == kind }), nil
}

// egressFilters lists the filters at clsact egress.
func egressFilters(device netlink.Link) ([]netlink.Filter, error) {
	filters, err := netlink.FilterList(device, netlink.HANDLE_MIN_EGRESS)
	if err != nil {
		return nil, fmt.Errorf("list the egress filters of %s: %w", device.Attrs().Name, err)
	}
	return filters, nil
}

// freePriority is the first priority without a filter: ours must not replace another's.
func freePriority(device netlink.Link) (uint16, error) {
	filters, err := egressFilters(device)
	if err != nil {
		return 0, err
	}
	taken := map[uint16]bool{}
	for _, filter := range filters {
		taken[filter.Attrs().Priority] = true
	}
	priority := uint16(1)
	for taken[priority] {
		priority++
	}
	return priority, nil
}

// Detach takes the program out of the device's egress hook, and the clsact qdisc with it if Attach
// made it and nobody else uses it by now. It is no error if it is out already, or if the device is
// gone (nil).
func (d *DataPath) Detach(device netlink.Link, a Attachment, pins string) error {
	if d.tcx != nil {
		// Closing the last reference detaches, so the pin has to go first. Detach does it
		// whoever holds the link, but fails when the device is gone and the link is dead.
		if err := os.Remove(filepath.Join(pins, LinkPin)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the pin of the tcx link: %w", err)
		}
		if err := d.tcx.Detach(); err != nil && !errors.Is(err, unix.ENOLINK) {
			return fmt.Errorf("detach the tcx link: %w", err)
		}
		err := d.tcx.Close()
		d.tcx = nil
		return err
	}
	if device == nil || a.Hook != Clsact {
		return nil
	}
	filters, err := d.ownFilters(device)
	if err != nil {
		return err
	}
	for _, filter := range filters {
		if err := netlink.FilterDel(filter); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove our egress filter from %s: %w", device.Attrs().Name, err)
		}
	}
	return removeClsact(device, a)
}

// ownFilters lists the egress filters that run our program.
func (d *DataPath) ownFilters(device netlink.Link) ([]netlink.Filter, error) {
	info, err := d.objects.CakectlEgress.Info()
	if err != nil {
		return nil, fmt.Errorf("read the program's ID: %w", err)
	}
	id, _ := info.ID()
	filters, err := egressFilters(device)
	if err != nil {
		return nil, err
	}
	var own []netlink.Filter
	for _, filter := range filters {
		if bpf, ok := filter.(*netlink.BpfFilter); ok && bpf.Id == int(id) {
			own = append(own, filter)
		}
	}
	return own, nil
}

// removeClsact removes the clsact qdisc if we made it and no filter is left in either direction.
func removeClsact(device netlink.Link, a Attachment) error {
	if !a.MadeClsact {
		return nil
	}
	name := device.Attrs().Name
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := netlink.FilterList(device, parent)
		if err != nil {
			return fmt.Errorf("list the filters of %s: %w", name, err)
		}
		if len(filters) > 0 {
			return nil
		}
	}
	if there, err := hasQdisc(device, "clsact"); err != nil || !there {
		return err
	}
	if err := netlink.QdiscDel(clsactOf(device)); err != nil {
		return fmt.Errorf("remove the clsact qdisc from %s: %w", name, err)
	}
	return nil
}

// Attached reports whether the program hangs at the device's egress right now.
func (d *DataPath) Attached(device netlink.Link, a Attachment) (bool, error) {
	if a.Hook == Clsact {
		filters, err := d.ownFilters(device)
		return len(filters) > 0, err
	}
	if d.tcx == nil {
		return false, nil
	}
	info, err := d.tcx.Info()
	if err != nil {
		return false, fmt.Errorf("read the tcx link of %s: %w", device.Attrs().Name, err)
	}
	tcx := info.TCX()
	return tcx != nil && int(tcx.Ifindex) == device.Attrs().Index, nil
}

// Found is how the program hangs at the device's egress right now, by the look of it: a clsact qdisc is
// likelier ours than somebody's. The zero value is that it does not.
func (d *DataPath) Found(device netlink.Link) (Attachment, error) {
	for _, a := range []Attachment{{Hook: TCX}, {Hook: Clsact, MadeClsact: true}} {
		if attached, err := d.Attached(device, a); err != nil || attached {
			return a, err
		}
	}
	return Attachment{}, nil
}

// Orphaned reports whether the device that the program was attached to is certainly gone. By clsact
// there is no telling.
func (d *DataPath) Orphaned() (bool, error) {
	if d.tcx == nil {
		return false, nil
	}
	info, err := d.tcx.Info()
	if err != nil {
		return false, fmt.Errorf("read the tcx link: %w", err)
	}
	tcx := info.TCX()
	return tcx != nil && tcx.Ifindex == 0, nil
}

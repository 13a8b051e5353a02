// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// Build identifies the program that this version of cakectl loads.
func Build() string {
	sum := sha256.Sum256(_DataPathBytes)
	return hex.EncodeToString(sum[:8])
}

// OpenProgram takes over no more of the data path pinned in dir than its program and its link, which
// look the same in every version: what it takes to detach or replace it, not to configure or read it.
func OpenProgram(dir string) (*DataPath, error) {
	d := &DataPath{}
	if err := d.openProgram(dir); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *DataPath) openProgram(dir string) (err error) {
	d.objects.CakectlEgress, err = ebpf.LoadPinnedProgram(filepath.Join(dir, programPin), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("program in %s: %w", dir, ErrNotPinned)
	}
	if err != nil {
		return fmt.Errorf("open the pinned program: %w", err)
	}
	d.tcx, err = link.LoadPinnedLink(filepath.Join(dir, LinkPin), nil)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open the pinned tcx link: %w", err)
	}
	return nil
}

// TakeOver puts d into the place of a data path of another layout that is attached to the device and
// pinned in dir: one packet is shaped by the old program, the next by the new one. What has been
// booked stays in the old maps, so for as long as packets wait that were given their departure by
// it, the line can be promised more than it carries. The controller's counters go on where both
// versions keep them alike. Where TakeOver fails the old data path goes on.
func (d *DataPath) TakeOver(old *DataPath, device netlink.Link, dir string) (err error) {
	building, err := d.build(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(building)) }()
	if old.tcx != nil {
		if err := os.Link(filepath.Join(dir, LinkPin), filepath.Join(building, LinkPin)); err != nil {
			return fmt.Errorf("pin the tcx link: %w", err)
		}
	}
	if err := d.inheritCounters(dir); err != nil {
		return err
	}
	if err := d.replace(old, device); err != nil {
		return err
	}
	// A process that ends here leaves pins of the old layout, which are taken over once more.
	return exchange(building, dir)
}

// inheritCounters takes over the controller's counters pinned in dir, unless those of this version are
// others.
func (d *DataPath) inheritCounters(dir string) error {
	old, err := ebpf.LoadPinnedMap(filepath.Join(dir, dataPathMapController), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the controller's counters of the other version: %w", err)
	}
	defer old.Close()
	if !sameValues(old, d.objects.Controller) {
		return nil
	}
	var counters dataPathControllerStats
	if err := old.Lookup(uint32(0), &counters); err != nil {
		return fmt.Errorf("read the controller's counters of the other version: %w", err)
	}
	if err := d.objects.Controller.Put(uint32(0), counters); err != nil {
		return fmt.Errorf("take over the controller's counters: %w", err)
	}
	return nil
}

// sameValues tells whether two maps have keys and values of the same size, and the same members in
// the same places of the values. Of maps that do not tell, it takes that they have not.
func sameValues(a, b *ebpf.Map) bool {
	if a.Type() != b.Type() || a.KeySize() != b.KeySize() || a.ValueSize() != b.ValueSize() {
		return false
	}
	members, others := controllerMembers(a), controllerMembers(b)
	return len(members) > 0 && slices.Equal(members, others)
}

type member struct {
	name  string
	place btf.Bits
}

// controllerMembers are the members of struct controller_stats as a map's own type information has
// them, nil where it has none.
func controllerMembers(m *ebpf.Map) []member {
	handle, err := m.Handle()
	if err != nil {
		return nil
	}
	defer handle.Close()
	spec, err := handle.Spec(nil)
	if err != nil {
		return nil
	}
	var stats *btf.Struct
	if err := spec.TypeByName("controller_stats", &stats); err != nil {
		return nil
	}
	var members []member
	for _, m := range stats.Members {
		members = append(members, member{m.Name, m.Offset})
	}
	return members
}

// Renew puts the program of this version into the place of one of the same layout: the maps, and all
// that is in them, stay. Of options, those that the maps do not tell count. dir is where the data path
// is pinned.
func (d *DataPath) Renew(device netlink.Link, options Options, dir string) error {
	options.Queues = d.queues
	options.Flows = int(d.objects.Flows.MaxEntries()) * FlowWays / (d.queues * options.Tins)
	renewed := &DataPath{queues: d.queues}
	if err := renewed.load(options, d.pinned()); err != nil {
		return err
	}
	defer renewed.Close() // which is the old one once it is replaced
	pin := filepath.Join(dir, programPin)
	if err := os.RemoveAll(pin + buildingSuffix); err != nil {
		return fmt.Errorf("clear what an earlier attempt left of the program's pin: %w", err)
	}
	if err := renewed.objects.CakectlEgress.Pin(pin + buildingSuffix); err != nil {
		return fmt.Errorf("pin the program: %w", err)
	}
	if err := renewed.replace(d, device); err != nil {
		return errors.Join(err, os.Remove(pin+buildingSuffix))
	}
	if err := os.Rename(pin+buildingSuffix, pin); err != nil {
		return fmt.Errorf("put the program's pin in place: %w", err)
	}
	d.objects, renewed.objects = renewed.objects, d.objects
	d.tcx, renewed.tcx = renewed.tcx, d.tcx
	return nil
}

// replace makes the device run d's program instead of old's, without a packet in between. A device
// that runs neither is left alone: attaching is for [DataPath.Attach].
func (d *DataPath) replace(old *DataPath, device netlink.Link) error {
	if old.tcx != nil {
		attached, err := old.Attached(device, Attachment{Hook: TCX})
		if err != nil {
			return err
		}
		if attached {
			if err := old.tcx.Update(d.objects.CakectlEgress); err != nil {
				return fmt.Errorf("give the tcx link of %s the new program: %w", device.Attrs().Name, err)
			}
		}
		d.tcx, old.tcx = old.tcx, nil
		return nil
	}
	filters, err := old.ownFilters(device)
	if err != nil {
		return err
	}
	for _, filter := range filters {
		err := netlink.FilterReplace(&netlink.BpfFilter{
			FilterAttrs:  *filter.Attrs(),
			Fd:           d.objects.CakectlEgress.FD(),
			Name:         filterName,
			DirectAction: true,
		})
		if err != nil {
			return fmt.Errorf("give the egress filter of %s the new program: %w", device.Attrs().Name, err)
		}
	}
	return nil
}

// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// Restore brings the qdisc tree of the device back to what the journal found
// and compares. It touches only what differs: restoring what is restored
// already does nothing. Ingress and clsact qdiscs, and whatever hangs on them,
// are left alone; so are the GSO limits, which are for [RestoreGSO].
//
// A default tree comes back by deleting our root, so the kernel makes its
// default of today: where net.core.default_qdisc was changed since, Restore
// returns a [*RestoreError] that says so. It also does for a tree that
// [Options.Force] let Install replace: the device then has the default. A
// journal that was captured while our tree was in place tells nothing about
// what was there before it; Restore takes that for the default.
//
// A root that is neither the kernel's, ours nor the journal's was put there by
// somebody since: it is left alone and a [*ForeignError] returned.
func Restore(ctx context.Context, link netlink.Link, found Journal) error {
	if err := found.checkVersion(); err != nil {
		return fmt.Errorf("%s: restore: %w", link.Attrs().Name, err)
	}
	if found.Ours() {
		// As of a device that was never up: any default will do.
		found.Qdiscs, found.Up = nil, false
	}
	return converge(ctx, link, found)
}

// converge brings the qdisc tree of the device to that of a journal, touching
// only what differs.
func converge(ctx context.Context, link netlink.Link, target Journal) error {
	c, err := openRTNL()
	if err != nil {
		return err
	}
	defer c.close()
	now, err := capture(c, link)
	if err != nil {
		return err
	}
	if len(diffTree(target, now)) == 0 {
		return nil
	}
	reachable := target
	if len(target.Unrestorable()) > 0 {
		reachable.Qdiscs = nil
	}
	if root, _ := now.root(); root.Handle != 0 && root.Handle != RootHandle {
		if was, _ := reachable.root(); was.Handle != root.Handle || was.Kind != root.Kind {
			return &ForeignError{Device: now.Device, Kind: root.Kind, Handle: root.Handle, Restoring: true}
		}
	}
	pending := planConverge(c, now, reachable)
	if err := pending.run(ctx); err != nil {
		return err
	}
	after, err := capture(c, link)
	if err != nil {
		return err
	}
	if d := diffTree(target, after); len(d) > 0 {
		return &RestoreError{Device: after.Device, Differences: d}
	}
	return nil
}

// planConverge lists the steps from the tree that is there now to that of the
// journal, parents first. What has no handle the kernel makes by itself: at
// the root when that is deleted, but inside another qdisc only together with
// that one. Deleting it there leaves noop, which drops all packets.
func planConverge(c *rtnl, now, target Journal) steps {
	pending := steps{device: now.Device}
	remove := func(q Qdisc) {
		pending.add("delete "+q.String(), func() error { return c.deleteQdisc(now.Index, q) })
	}
	fresh := map[Handle]bool{} // made anew: nothing of what is there now is in them
	done := map[Handle]bool{}
	within := func(q Qdisc, set map[Handle]bool) bool { return q.Parent != parentRoot && set[q.Parent.major()] }
	for progress := true; progress; {
		progress = false
		for _, q := range target.tree() {
			if q.Handle == 0 || done[q.Handle] || (q.Parent != parentRoot && !within(q, done)) {
				continue
			}
			done[q.Handle], progress = true, true
			have, ok := now.at(q.Parent)
			ok = ok && !within(q, fresh)
			want := q
			want.Options = settable(q)
			if ok && have.Handle == q.Handle {
				if have.Kind == q.Kind && bytes.Equal(have.Options, q.Options) && !mustRemake(q, now, target) {
					continue
				}
				if have.Kind == "fq" && q.Kind == "fq" {
					pending.add("change "+q.String(), func() error { return c.changeQdisc(now.Index, want) })
					continue
				}
				// The kernel takes a handle that is there for a request to
				// change that qdisc; not all can change all their options.
				remove(have)
			}
			pending.add("create "+q.String(), func() error { return c.newQdisc(now.Index, want) })
			fresh[q.Handle] = true
		}
	}
	for _, q := range now.tree() {
		kept := q.Parent == parentRoot || (done[q.Parent.major()] && !within(q, fresh))
		if was, ok := target.at(q.Parent); q.Handle != 0 && kept && (!ok || was.Handle == 0) {
			remove(q)
		}
	}
	return pending
}

// mustRemake tells whether inside a qdisc something has taken the place of
// what the kernel makes there by itself.
func mustRemake(q Qdisc, now, target Journal) bool {
	for _, child := range now.tree() {
		if child.Handle == 0 || child.Parent == parentRoot || child.Parent.major() != q.Handle {
			continue
		}
		was, ok := target.at(child.Parent)
		// The kernel doesn't show what it made for queues not in use.
		hidden := !ok && q.Kind == "mq" && int(child.Parent.minor()) > target.RealTxQueues
		if hidden || (ok && was.Handle == 0) {
			return true
		}
	}
	return false
}

// settable turns the options that the kernel shows of a qdisc into those that
// make it show the same again.
func settable(q Qdisc) []byte {
	if q.Kind != "fq_codel" {
		return q.Options
	}
	// CoDel keeps times in units of 1024 ns. Showing them in microseconds
	// rounds down, and so does setting them: what is shown as 4999 us and set
	// so becomes 4998. One more microsecond leads back to the same unit.
	times := []uint16{1, 3, 7} // TCA_FQ_CODEL_TARGET, INTERVAL, CE_THRESHOLD
	list, err := nl.ParseRouteAttr(q.Options)
	if err != nil {
		return q.Options
	}
	var out []byte
	for _, a := range list {
		if slices.Contains(times, a.Attr.Type) && len(a.Value) == 4 {
			a.Value = nl.Uint32Attr(nl.NativeEndian().Uint32(a.Value) + 1)
		}
		out = append(out, nl.NewRtAttr(int(a.Attr.Type), a.Value).Serialize()...)
	}
	return out
}

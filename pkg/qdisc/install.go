// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Options say what Install is to install, and over what.
type Options struct {
	FQ FQOptions
	// Replace allows to take the place of a qdisc that is neither the
	// kernel's default nor ours, provided that Restore can bring it back.
	Replace bool
	// Force allows it, together with Replace, even where Restore cannot.
	Force bool
}

// Install puts mq with one fq per transmit queue under the device, or a lone
// fq under a device with one queue. Leaves are put on all queues that the
// device could have in use, so that ethtool -L adds no queue without one.
//
// What is in place already is left alone: an fq that has other options gets
// them without losing a packet, and a device that has everything is not
// touched. When a step fails, or ctx is done, the device gets back what it had
// and Install returns the error.
//
// The returned function puts back what was there before this call; it is for
// a caller whose own later step fails. To detach use [Restore] with the
// journal of the first attach.
//
// Errors: [ErrNoFQ], [*ForeignError], [*UnrestorableError], or the kernel's.
func Install(ctx context.Context, link netlink.Link, o Options) (undo func() error, err error) {
	return installer{leaf: fqLeaf{o.FQ}, replace: o.Replace, force: o.Force}.install(ctx, link)
}

// leaf is the qdisc that holds the packets of one queue. It is fq; the tests
// of the tree's mechanics bring another for kernels without it.
type leaf interface {
	kind() string
	options() []byte
	// diff says how a live leaf's options differ from those wanted.
	diff(shown []byte) ([]string, error)
	// probe returns an error when the kernel has no such qdisc. It changes
	// nothing.
	probe(c *rtnl, index int) error
}

type fqLeaf struct{ FQOptions }

func (fqLeaf) kind() string                                   { return "fq" }
func (l fqLeaf) options() []byte                              { return l.encode() }
func (l fqLeaf) diff(shown []byte) (diff []string, err error) { return l.FQOptions.diff(shown) }

// probe asks for an fq with an option that no kernel accepts. A kernel that
// has fq, or can load it, refuses the option; another doesn't know the kind.
// Either way the device is not touched, unlike by an attempt to install one
// under an mq that had to be put in place for it first.
func (fqLeaf) probe(c *rtnl, index int) error { return probe(c, index, "fq") }

func probe(c *rtnl, index int, kind string) error {
	const impossibleBuckets = 255 // more bits than the value has
	bad := fqAttr{kind: fqBucketsLog, bytes: 4, value: impossibleBuckets}
	err := c.newQdisc(index, Qdisc{Kind: kind, Parent: parentRoot, Handle: probeHandle, Options: encodeFQ([]fqAttr{bad})})
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w (the kernel says: %w)", ErrNoFQ, err)
	case errors.Is(err, unix.EINVAL):
		return nil
	case err == nil:
		return fmt.Errorf("ask the kernel for %s: it accepted 2^%d buckets", kind, impossibleBuckets)
	}
	return fmt.Errorf("ask the kernel for %s: %w", kind, err)
}

// Plan lists the steps that Install would take, in words and in order; none
// means that all is in place. It changes nothing and returns the errors by
// which Install refuses, except [ErrNoFQ].
func Plan(link netlink.Link, o Options) ([]string, error) {
	c, err := openRTNL()
	if err != nil {
		return nil, err
	}
	defer c.close()
	_, pending, err := installer{leaf: fqLeaf{o.FQ}, replace: o.Replace, force: o.Force}.prepare(c, link)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, st := range pending.list {
		names = append(names, st.name)
	}
	return names, nil
}

type installer struct {
	leaf           leaf
	replace, force bool
	// before is the fault injection of steps.
	before func(name string) error
}

// wanted is the tree for a device with so many transmit queues.
func (in installer) wanted(queues int) []Qdisc {
	if queues <= 1 {
		return []Qdisc{{Kind: in.leaf.kind(), Handle: RootHandle, Parent: parentRoot, Options: in.leaf.options()}}
	}
	tree := []Qdisc{{Kind: "mq", Handle: RootHandle, Parent: parentRoot}}
	for i := range queues {
		tree = append(tree, Qdisc{Kind: in.leaf.kind(), Handle: leafHandle(i), Parent: classOf(RootHandle, i), Options: in.leaf.options()})
	}
	return tree
}

func (in installer) install(ctx context.Context, link netlink.Link) (func() error, error) {
	c, err := openRTNL()
	if err != nil {
		return nil, err
	}
	defer c.close()
	found, pending, err := in.prepare(c, link)
	if err != nil {
		return nil, err
	}
	if len(pending.list) == 0 {
		return func() error { return nil }, nil
	}
	if err := in.leaf.probe(c, found.Index); err != nil {
		return nil, fmt.Errorf("%s: %w", found.Device, err)
	}
	// The context may be what fails; going back must not depend on it.
	undo := func() error { return converge(context.WithoutCancel(ctx), link, found) }
	err = pending.run(ctx)
	if err == nil {
		err = in.check(c, link)
	}
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// prepare reads the device and lists the steps for it. Nothing is changed yet.
func (in installer) prepare(c *rtnl, link netlink.Link) (found Journal, pending steps, err error) {
	if found, err = capture(c, link); err != nil {
		return Journal{}, steps{}, err
	}
	if err := in.admit(found); err != nil {
		return Journal{}, steps{}, err
	}
	pending, err = in.plan(c, found)
	return found, pending, err
}

// check returns an error when the kernel accepted all steps and something
// else is in place.
func (in installer) check(c *rtnl, link netlink.Link) error {
	now, err := capture(c, link)
	if err != nil {
		return err
	}
	problems, err := in.problems(now)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return fmt.Errorf("%s: the kernel accepted the qdiscs and shows others: %s", now.Device, strings.Join(problems, "; "))
	}
	return nil
}

// admit refuses a device whose qdiscs must not be replaced.
func (in installer) admit(found Journal) error {
	if found.NumTxQueues > maxLeaves {
		return fmt.Errorf("%s: %d transmit queues, more than the %d that there are handles for", found.Device, found.NumTxQueues, maxLeaves)
	}
	if found.Default() || in.owns(found) {
		return nil
	}
	root, _ := found.root()
	lost := found.Unrestorable()
	switch {
	case !in.replace:
		return &ForeignError{Device: found.Device, Kind: root.Kind, Handle: root.Handle, Lost: lost}
	case len(lost) > 0 && !in.force:
		return &UnrestorableError{Device: found.Device, Lost: lost}
	}
	return nil
}

// owns is Journal.Ours for any kind of leaf.
func (in installer) owns(found Journal) bool {
	root, _ := found.root()
	return root.Handle == RootHandle && (root.Kind == "mq" || root.Kind == in.leaf.kind())
}

// plan lists the steps from the tree that was found to the one wanted.
func (in installer) plan(c *rtnl, found Journal) (steps, error) {
	pending := steps{device: found.Device, before: in.before}
	fresh := false // a new root means new leaves
	for _, want := range in.wanted(found.NumTxQueues) {
		have, ok := found.at(want.Parent)
		switch {
		case fresh || !ok || have.Handle != want.Handle || have.Kind != want.Kind:
			if ok && !fresh && have.Handle == want.Handle {
				// The kernel takes a handle that it knows for a request to
				// change that qdisc, and a qdisc can't change its kind.
				pending.add("delete "+have.String(), func() error { return c.deleteQdisc(found.Index, have) })
			}
			pending.add("create "+want.String(), func() error { return c.newQdisc(found.Index, want) })
			fresh = fresh || want.Parent == parentRoot
		case want.Kind == in.leaf.kind():
			diff, err := in.leaf.diff(have.Options)
			if err != nil {
				return steps{}, fmt.Errorf("%s: read the options of %s: %w", found.Device, want, err)
			}
			if len(diff) > 0 {
				pending.add("change "+want.String(), func() error { return c.changeQdisc(found.Index, want) })
			}
		}
	}
	return pending, nil
}

// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"bytes"
	"fmt"
	"slices"
)

// Diff says in words how b, the device now, differs from a, the device
// before; empty means not at all.
func Diff(a, b Journal) []string {
	d := diffQdiscs(a, b, func(Qdisc) bool { return true })
	number := func(what string, x, y int) {
		if x != y {
			d = append(d, fmt.Sprintf("%s: was %d, is %d", what, x, y))
		}
	}
	number("transmit queues", a.NumTxQueues, b.NumTxQueues)
	number("transmit queues in use", a.RealTxQueues, b.RealTxQueues)
	number("txqueuelen", a.TxQueueLen, b.TxQueueLen)
	number("gso_max_size", int(a.GSOMaxSizeBytes), int(b.GSOMaxSizeBytes))
	number("gso_max_segs", int(a.GSOMaxSegments), int(b.GSOMaxSegments))
	number("gso_ipv4_max_size", int(a.GSOIPv4MaxSizeBytes), int(b.GSOIPv4MaxSizeBytes))
	maps := max(len(a.XPS), len(b.XPS))
	if a.RealTxQueues != b.RealTxQueues {
		maps = min(len(a.XPS), len(b.XPS)) // queues that are gone took theirs along
	}
	for i := range maps {
		x, y := xpsOf(a, i), xpsOf(b, i)
		if x != y {
			d = append(d, fmt.Sprintf("XPS of queue %d: was cpus %q rx queues %q, is cpus %q rx queues %q",
				i, x.CPUs, x.RxQueues, y.CPUs, y.RxQueues))
		}
	}
	return d
}

func xpsOf(j Journal, i int) XPSMap {
	if i < len(j.XPS) {
		return j.XPS[i]
	}
	return XPSMap{Queue: i}
}

// diffTree is Diff for what Restore answers for: the qdiscs of the device
// without ingress and clsact.
func diffTree(a, b Journal) []string {
	return diffQdiscs(a, b, func(q Qdisc) bool { return !q.ingress() })
}

func diffQdiscs(a, b Journal, keep func(Qdisc) bool) []string {
	var d []string
	if a.Default() && b.Default() && (!a.Up || !b.Up) {
		// The kernel makes its default when the device comes up, not before:
		// a root that is not there yet is the default too.
		if _, ok := a.root(); !ok {
			b.Qdiscs = b.ingressOnly()
		}
		if _, ok := b.root(); !ok {
			a.Qdiscs = a.ingressOnly()
		}
	}
	for _, p := range parents(a, b) {
		x, wasThere := a.at(p)
		y, isThere := b.at(p)
		if (wasThere && !keep(x)) || (isThere && !keep(y)) {
			continue
		}
		if wasThere != isThere && beyondQueues(a, b, p) {
			continue
		}
		place := "root"
		if p != parentRoot {
			place = "parent " + p.String()
		}
		switch {
		case !wasThere:
			d = append(d, fmt.Sprintf("%s: was nothing, is %s", place, y))
		case !isThere:
			d = append(d, fmt.Sprintf("%s: was %s, is nothing", place, x))
		case x.Kind != y.Kind || x.Handle != y.Handle:
			s := fmt.Sprintf("%s: was %s, is %s", place, x, y)
			if x.Handle == 0 && y.Handle == 0 && a.DefaultQdisc != b.DefaultQdisc {
				s += fmt.Sprintf(" (net.core.default_qdisc was %s, is %s)", a.DefaultQdisc, b.DefaultQdisc)
			}
			d = append(d, s)
		default:
			d = append(d, diffQdisc(place, x, y)...)
		}
	}
	return d
}

// beyondQueues tells whether a place is that of a queue which only one of two
// default trees has because queues were added or removed in between
// (ethtool -L): the kernel then adds or removes the leaves of its mq.
func beyondQueues(a, b Journal, parent Handle) bool {
	return a.Default() && b.Default() && parent.major() == 0 &&
		a.RealTxQueues != b.RealTxQueues && int(parent.minor()) > min(a.RealTxQueues, b.RealTxQueues)
}

func diffQdisc(place string, x, y Qdisc) []string {
	var d []string
	name := place + ": " + x.String()
	if !bytes.Equal(x.Options, y.Options) {
		d = append(d, fmt.Sprintf("%s options were %x, are %x", name, x.Options, y.Options))
	}
	if x.SizeTable != y.SizeTable {
		d = append(d, fmt.Sprintf("%s size table (stab) was there: %t, is there: %t", name, x.SizeTable, y.SizeTable))
	}
	if x.Filters != y.Filters {
		d = append(d, fmt.Sprintf("%s had %s, has %d", name, count(x.Filters, "filter", "s"), y.Filters))
	}
	if x.Classes != y.Classes {
		d = append(d, fmt.Sprintf("%s had %s, has %d", name, count(x.Classes, "class", "es"), y.Classes))
	}
	return d
}

func (j Journal) ingressOnly() []Qdisc {
	return slices.DeleteFunc(slices.Clone(j.Qdiscs), func(q Qdisc) bool { return !q.ingress() })
}

// parents lists the places of both journals, the root first.
func parents(a, b Journal) []Handle {
	seen := map[Handle]bool{}
	var all []Handle
	for _, q := range slices.Concat(a.Qdiscs, b.Qdiscs) {
		if !seen[q.Parent] {
			seen[q.Parent] = true
			all = append(all, q.Parent)
		}
	}
	slices.SortFunc(all, func(x, y Handle) int {
		// parentRoot is the highest number: adding one makes it the lowest.
		return int(int64(x+1) - int64(y+1))
	})
	return all
}

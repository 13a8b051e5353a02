// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Verify says in words what of the tree that Install makes is not in place on
// the device right now; empty means that all of it is.
func Verify(link netlink.Link, o Options) (problems []string, err error) {
	now, err := Capture(link)
	if err != nil {
		return nil, err
	}
	return installer{leaf: fqLeaf{o.FQ}}.problems(now)
}

func (in installer) problems(now Journal) ([]string, error) {
	var problems []string
	for _, want := range in.wanted(now.NumTxQueues) {
		place := "root"
		if want.Parent != parentRoot {
			place = fmt.Sprintf("leaf of queue %d", want.Parent.minor()-1)
		}
		have, ok := now.at(want.Parent)
		switch {
		case !ok:
			problems = append(problems, fmt.Sprintf("%s: nothing there, so the kernel drops its packets, want %s", place, want))
		case have.Kind != want.Kind || have.Handle != want.Handle:
			problems = append(problems, fmt.Sprintf("%s: is %s, want %s", place, have, want))
		case want.Kind == in.leaf.kind():
			diff, err := in.leaf.diff(have.Options)
			if err != nil {
				return nil, fmt.Errorf("%s: read the options of %s: %w", now.Device, have, err)
			}
			for _, d := range diff {
				problems = append(problems, fmt.Sprintf("%s: %s, %s", place, have, d))
			}
			continue
		default:
			continue
		}
		if want.Parent == parentRoot {
			// Without the root there are no leaves of ours to speak of.
			break
		}
	}
	return problems, nil
}

// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/daemon"
)

// findDevice gives the kernel's name of a device, which may have been called by another. If there is
// none it says which names are near.
func findDevice(name string) (string, error) {
	link, err := netlink.LinkByName(name)
	if err == nil {
		return link.Attrs().Name, nil
	}
	var missing netlink.LinkNotFoundError
	if !errors.As(err, &missing) {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	names, err := deviceNames()
	if err != nil {
		return "", err
	}
	if near := nearNames(name, names); len(near) > 0 {
		return "", invalid("no such device: %s; did you mean %s?", name, strings.Join(near, " or "))
	}
	return "", invalid("no such device: %s", name)
}

// deviceNames lists the devices of this network namespace.
func deviceNames() ([]string, error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // then most of them are there
		return nil, fmt.Errorf("list the devices: %w", err)
	}
	names := make([]string, 0, len(links))
	for _, link := range links {
		names = append(names, link.Attrs().Name)
	}
	return names, nil
}

const maxNearNames = 3

// nearNames lists those that name may have been meant to be, nearest first.
func nearNames(name string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var near []candidate
	for _, n := range names {
		// With half its letters changed, a short name is near to everything.
		if d := editDistance(name, n); d <= min(max(len(name)/3, 1), 2) {
			near = append(near, candidate{n, d})
		}
	}
	slices.SortFunc(near, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), strings.Compare(a.name, b.name))
	})
	var result []string
	for _, c := range near[:min(len(near), maxNearNames)] {
		result = append(result, c.name)
	}
	return result
}

// editDistance counts the letters that have to be inserted, removed, replaced, or swapped with the
// next one, to turn a into b (optimal string alignment).
func editDistance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := d[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}

// completeDevice completes the argument of verbs that take any device.
func completeDevice(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, err := deviceNames()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeAttached completes the argument of verbs that take an attached device.
func (a *app) completeAttached(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	// Completion parses the flags but runs nothing before this.
	if err := cmd.Root().PersistentPreRunE(cmd, args); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := a.shapers.List()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// mustAttached turns "not attached" into "no such device" where that is why.
func mustAttached(device string, err error) error {
	if daemon.KindOf(err) != api.KindNotAttached {
		return err
	}
	if _, missing := findDevice(device); missing != nil {
		return missing
	}
	return err
}

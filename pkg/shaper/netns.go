// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Netns identifies the network namespace of the calling thread.
func Netns() (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &stat); err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	return stat.Ino, nil
}

// wayInto is a path by which a network namespace can be entered: a name that ip-netns gave it, or a process
// in it. "" is that there is none to be seen.
func wayInto(netns uint64) string {
	for _, places := range []string{"/run/netns/*", "/proc/[0-9]*/ns/net"} {
		paths, err := filepath.Glob(places)
		if err != nil {
			continue
		}
		for _, path := range paths {
			var stat unix.Stat_t
			if unix.Stat(path, &stat) == nil && stat.Ino == netns {
				return path
			}
		}
	}
	return ""
}

// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// missingCapabilities names those that shaping needs and this process lacks.
func missingCapabilities() []string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil // then the kernel's refusal has to do
	}
	has := func(capability int) bool {
		return data[capability/32].Effective&(1<<(capability%32)) != 0
	}
	var missing []string
	for _, c := range []struct {
		name       string
		capability int
		implied    bool // by CAP_SYS_ADMIN
	}{
		{"CAP_BPF", unix.CAP_BPF, true},
		{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, false},
		{"CAP_PERFMON", unix.CAP_PERFMON, true},
	} {
		if !has(c.capability) && !(c.implied && has(unix.CAP_SYS_ADMIN)) {
			missing = append(missing, c.name)
		}
	}
	return missing
}

// requireCapabilities fails early, with the remedy, what the kernel would refuse half way.
func requireCapabilities(verb, device string) error {
	if len(missingCapabilities()) == 0 {
		return nil
	}
	return fmt.Errorf("%s %s: %w: CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are needed", verb, device, fs.ErrPermission)
}

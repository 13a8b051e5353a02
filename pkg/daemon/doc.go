// SPDX-License-Identifier: BSD-2-Clause

// Package daemon is a process that shapes devices and answers for them.
//
// [Device] is one attached device: its controller, and what clients may do with it. `cakectl attach`
// is one of these. [Daemon] is `cakectl serve`: it keeps any number of devices as a configuration
// wants them, each by a goroutine of its own that waits for the device to appear, attaches it, tries
// again when that fails, and answers on the device's own socket all the while. Nothing is shared
// between two devices but the list of them, so one that is slow holds up no other.
package daemon

// SPDX-License-Identifier: BSD-2-Clause

// Package loader puts the data path of one device into the kernel and takes it out again.
//
// A [DataPath] is the program and its maps. [Load] makes a new one, [DataPath.Pin] makes it outlive
// the process, [Open] takes over one that is pinned. [DataPath.Attach] hangs it into the egress hook
// of a device, by tcx where the kernel has it (6.6), else by clsact.
//
// The package knows the kernel's objects and the layout of the maps. What to write into them is
// decided elsewhere.
package loader

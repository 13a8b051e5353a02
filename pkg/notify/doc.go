// SPDX-License-Identifier: BSD-2-Clause

// Package notify tells when something about a network device may have changed: the kernel's netlink
// notifications of links, of qdiscs and filters, and of what ethtool sets; and inotify's of pins that
// are removed.
//
// It says that there is something to look at, not what: whoever is told reads the device anew. So a
// burst of notifications is one, and one that the kernel had to drop costs nothing but that look.
//
// Some changes have no notification: the GSO limits, what is written to sysfs (XPS maps), and what
// becomes of a tcx link.
package notify

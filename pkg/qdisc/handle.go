// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// Handle names a qdisc (major:) or a class (major:minor) of a device, as tc
// writes it: both halves are hexadecimal, the minor one is left out when zero.
type Handle uint32

const (
	// RootHandle is the handle of the tree that Install makes.
	RootHandle Handle = 0xca4e_0000

	// Leaf handles follow the root's, one a queue, so that a leaf that
	// somebody else put in place of ours is recognised by its handle.
	firstLeafHandle Handle = 0xca4f_0000
	// The kernel hands out 8000: and up by itself and ffff: is ingress and
	// clsact, so this many leaves fit between our root and that.
	maxLeaves = 0xffff - 0xca4f

	// probeHandle is only ever sent in a request that the kernel must refuse.
	probeHandle Handle = 0xca4d_0000

	parentRoot    Handle = netlink.HANDLE_ROOT
	parentIngress Handle = netlink.HANDLE_INGRESS
)

// leafHandle is the handle of the leaf of a queue, counted from zero.
func leafHandle(queue int) Handle { return firstLeafHandle + Handle(queue)<<16 }

// classOf is the class of an mq root that stands for a queue, counted from zero.
func classOf(root Handle, queue int) Handle { return root | Handle(queue+1) }

func (h Handle) major() Handle { return h & 0xffff_0000 }
func (h Handle) minor() Handle { return h & 0xffff }

// String writes the handle as tc does; the parent of a root qdisc is "root".
func (h Handle) String() string {
	if h == parentRoot {
		return "root"
	}
	if h.minor() == 0 {
		return fmt.Sprintf("%x:", uint32(h>>16))
	}
	return fmt.Sprintf("%x:%x", uint32(h>>16), uint32(h.minor()))
}

// MarshalText makes journals readable: handles are stored as tc writes them.
func (h Handle) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (h *Handle) UnmarshalText(text []byte) error {
	s := string(text)
	if s == "root" {
		*h = parentRoot
		return nil
	}
	majorText, minorText, found := strings.Cut(s, ":")
	major, err := strconv.ParseUint(majorText, 16, 16)
	if err != nil || !found {
		return fmt.Errorf("parse qdisc handle %q: want MAJOR: or MAJOR:MINOR in hexadecimal, or root", s)
	}
	var minor uint64
	if minorText != "" {
		if minor, err = strconv.ParseUint(minorText, 16, 16); err != nil {
			return fmt.Errorf("parse qdisc handle %q: want MAJOR: or MAJOR:MINOR in hexadecimal, or root", s)
		}
	}
	*h = Handle(major<<16 | minor)
	return nil
}

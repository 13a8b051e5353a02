// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// The kernel answers at once; this only keeps a lost message from
	// blocking for ever.
	netlinkTimeout = 30 * time.Second
	// A dump is interrupted when qdiscs change while it runs. On a machine
	// where that goes on for this many tries in a row no dump can be trusted.
	dumpTries = 20
)

// rtnl is one route netlink socket that reports the kernel's own words for
// what it refuses, which the shared sockets of the netlink package don't.
type rtnl struct {
	socket *nl.SocketHandle
}

func openRTNL() (*rtnl, error) {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a route netlink socket: %w", err)
	}
	timeout := unix.NsecToTimeval(netlinkTimeout.Nanoseconds())
	for _, set := range []error{s.SetExtAck(true), s.SetSendTimeout(&timeout), s.SetReceiveTimeout(&timeout)} {
		if set != nil {
			s.Close()
			return nil, fmt.Errorf("set up a route netlink socket: %w", set)
		}
	}
	return &rtnl{&nl.SocketHandle{Socket: s}}, nil
}

func (c *rtnl) close() { c.socket.Close() }

func (c *rtnl) request(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.socket}
	return req
}

// tcRequest starts a request about the qdiscs, classes or filters of a device.
func (c *rtnl) tcRequest(kind, flags, index int, parent, handle Handle) *nl.NetlinkRequest {
	req := c.request(kind, flags)
	req.AddData(&nl.TcMsg{
		Family:  nl.FAMILY_ALL,
		Ifindex: int32(index),
		Parent:  uint32(parent),
		Handle:  uint32(handle),
	})
	return req
}

// dump runs a dump request until it is not interrupted by changes.
func (c *rtnl) dump(newRequest func() *nl.NetlinkRequest, answer uint16) ([][]byte, error) {
	for range dumpTries {
		msgs, err := newRequest().Execute(unix.NETLINK_ROUTE, answer)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return msgs, err
		}
	}
	return nil, fmt.Errorf("%w in each of %d tries", netlink.ErrDumpInterrupted, dumpTries)
}

// tcMessage is one qdisc, class or filter of a dump.
type tcMessage struct {
	parent, handle Handle
	attrs          map[uint16][]byte
}

// dumpTC lists the qdiscs, classes or filters of one device. The kernel dumps
// the qdiscs of all devices whatever the request says, so filter by index.
func (c *rtnl) dumpTC(get int, answer uint16, index int, parent Handle) ([]tcMessage, error) {
	msgs, err := c.dump(func() *nl.NetlinkRequest {
		req := c.tcRequest(get, unix.NLM_F_DUMP, index, parent, 0)
		if get == unix.RTM_GETQDISC {
			// Without this the kernel hides what it made by itself inside
			// other qdiscs.
			req.AddData(nl.NewRtAttr(nl.TCA_DUMP_INVISIBLE, nil))
		}
		return req
	}, answer)
	if err != nil {
		return nil, err
	}
	var out []tcMessage
	for _, m := range msgs {
		if len(m) < nl.SizeofTcMsg {
			return nil, fmt.Errorf("short message of %d bytes from the kernel", len(m))
		}
		head := nl.DeserializeTcMsg(m)
		if int(head.Ifindex) != index {
			continue
		}
		attrs, err := attributes(m[nl.SizeofTcMsg:])
		if err != nil {
			return nil, err
		}
		out = append(out, tcMessage{Handle(head.Parent), Handle(head.Handle), attrs})
	}
	return out, nil
}

// attributes splits a run of netlink attributes by type.
func attributes(b []byte) (map[uint16][]byte, error) {
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, fmt.Errorf("parse netlink attributes: %w", err)
	}
	m := make(map[uint16][]byte, len(list))
	for _, a := range list {
		m[a.Attr.Type&nl.NLA_TYPE_MASK] = a.Value
	}
	return m, nil
}

// newQdisc creates a qdisc in a place, over whatever is there.
func (c *rtnl) newQdisc(index int, q Qdisc) error {
	return c.sendQdisc(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, index, q)
}

// changeQdisc gives a qdisc that is in its place other options. The kernel
// does this without touching the packets it holds.
func (c *rtnl) changeQdisc(index int, q Qdisc) error {
	return c.sendQdisc(unix.RTM_NEWQDISC, 0, index, q)
}

// deleteQdisc takes a qdisc out of its place; the kernel fills that with its
// default. It names the handle too, so that nobody else's qdisc is deleted.
func (c *rtnl) deleteQdisc(index int, q Qdisc) error {
	return c.sendQdisc(unix.RTM_DELQDISC, 0, index, Qdisc{Kind: q.Kind, Parent: q.Parent, Handle: q.Handle})
}

func (c *rtnl) sendQdisc(kind, flags, index int, q Qdisc) error {
	req := c.tcRequest(kind, flags|unix.NLM_F_ACK, index, q.Parent, q.Handle)
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(q.Kind)))
	if len(q.Options) > 0 {
		req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, q.Options))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

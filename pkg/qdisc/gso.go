// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/rates"
)

const (
	// A super-packet should take no more of the link than this: it leaves in one lump, so it is the
	// excess that windows of some milliseconds see. 1 ms gave windows of 10 ms 1.08 times the
	// bandwidth at 200 Mbit/s, 0.25 ms 1.02; less made start-up bursts worse, not better.
	gsoCapNs = 250_000

	// At middling rates packets one by one made start-up bursts worse (at 40 Mbit/s windows of 10 ms
	// had 1.15 times the bandwidth instead of 1.06), so two may stay together, but for slow lines, where a
	// segment takes this long: at 2 Mbit/s single ones brought windows of 100 ms from 1.40 to 1.26.
	minGSOSegments = 2
	slowSegmentNs  = 1_000_000
	// TCP takes MAX_TCP_HEADER (320 on 64-bit machines, less with fewer
	// protocols built in) off the device's limit before it fills a
	// super-packet. With less than this added, two segments would not fit.
	gsoHeaderBytes = 384
)

// GSOCap is the largest super-packet that takes at most 0.25 ms of the bandwidth, and no less than
// two segments, or than one where that takes 1 ms or more: its size in bytes, with room for headers,
// and its number of segments. For rates.Unlimited both are the largest uint32.
func GSOCap(bandwidth rates.Rate, mtuBytes uint32) (sizeBytes, segments uint32) {
	const unlimited = 1<<32 - 1
	if bandwidth == rates.Unlimited {
		return unlimited, unlimited
	}
	mtu := uint64(max(mtuBytes, 1))
	perCap := uint64(bandwidth) / (8 * 1_000_000_000 / gsoCapNs)
	least := uint64(minGSOSegments)
	if mtu*8*1_000_000_000 >= slowSegmentNs*uint64(bandwidth) {
		least = 1
	}
	n := max(perCap/mtu, least)
	return uint32(min(n*mtu+gsoHeaderBytes, unlimited)), uint32(min(n, unlimited))
}

// gsoLimits are the limits of a device, or what they should be.
type gsoLimits struct {
	sizeBytes, segments uint32
	// ipv4SizeBytes is 0 where the kernel has no such limit.
	ipv4SizeBytes uint32
}

// ApplyGSOCap caps the super-packets of the device by [GSOCap], but never
// raises a limit above what the journal found. It follows a change of the
// bandwidth in both directions; for rates.Unlimited the limits are as found.
//
// What a change does to TCP connections (measured on Linux 6.1, 6.12, 6.18 and
// 7.3): a socket takes the limits when it takes its route, so connections
// opened later have the new ones, and open ones take them when their cached
// route is renewed. For IPv4 that is asked for here ([renewIPv4Routes]); for
// IPv6 only a change of an address or route of its own does it, and until then
// the large packets of open connections come whole to the egress hook and to fq:
// the kernel splits what is above the limits only after fq has let it go, so
// they leave in one burst. Sockets that send through an upper device (VLAN,
// bond, bridge, tunnel) take that one's limits and never this one's, and
// forwarded packets are as large as the receiving device made them.
func ApplyGSOCap(link netlink.Link, found Journal, bandwidth rates.Rate) error {
	if err := found.checkVersion(); err != nil {
		return fmt.Errorf("%s: cap GSO: %w", link.Attrs().Name, err)
	}
	current, err := netlink.LinkByIndex(link.Attrs().Index)
	if err != nil {
		return fmt.Errorf("%s: read the device: %w", link.Attrs().Name, err)
	}
	return setGSO(current, capped(current, found, bandwidth))
}

// capped are the limits that [ApplyGSOCap] sets.
func capped(current netlink.Link, found Journal, bandwidth rates.Rate) gsoLimits {
	size, segments := GSOCap(bandwidth, uint32(current.Attrs().MTU))
	return gsoLimits{
		sizeBytes:     min(size, found.GSOMaxSizeBytes),
		segments:      min(segments, found.GSOMaxSegments),
		ipv4SizeBytes: min(size, found.GSOIPv4MaxSizeBytes),
	}
}

// PlanGSO tells the limits that [ApplyGSOCap] would leave the device with, and whether it has them.
func PlanGSO(link netlink.Link, found Journal, bandwidth rates.Rate) (sizeBytes, segments uint32, inPlace bool) {
	a, want := link.Attrs(), capped(link, found, bandwidth)
	return want.sizeBytes, want.segments, gsoLimits{a.GSOMaxSize, a.GSOMaxSegs, a.GSOIPv4MaxSize} == want
}

// VerifyGSO says in words which limits of the device are above those that [ApplyGSOCap] sets; empty
// means none. Lower ones, as a driver may choose, are as good.
func VerifyGSO(link netlink.Link, found Journal, bandwidth rates.Rate) (problems []string) {
	a, want := link.Attrs(), capped(link, found, bandwidth)
	above := func(name string, is, want uint32) {
		if is > want {
			problems = append(problems, fmt.Sprintf("%s is %d, want at most %d", name, is, want))
		}
	}
	above("gso_max_size", a.GSOMaxSize, want.sizeBytes)
	above("gso_max_segs", a.GSOMaxSegs, want.segments)
	above("gso_ipv4_max_size", a.GSOIPv4MaxSize, want.ipv4SizeBytes)
	return problems
}

// RestoreGSO sets the GSO limits of the device back to what the journal found.
func RestoreGSO(link netlink.Link, found Journal) error {
	if err := found.checkVersion(); err != nil {
		return fmt.Errorf("%s: restore GSO: %w", link.Attrs().Name, err)
	}
	current, err := netlink.LinkByIndex(link.Attrs().Index)
	if err != nil {
		return fmt.Errorf("%s: read the device: %w", link.Attrs().Name, err)
	}
	return setGSO(current, gsoLimits{found.GSOMaxSizeBytes, found.GSOMaxSegments, found.GSOIPv4MaxSizeBytes})
}

// setGSO sets the limits that differ, in one request.
func setGSO(link netlink.Link, want gsoLimits) error {
	a := link.Attrs()
	if (gsoLimits{a.GSOMaxSize, a.GSOMaxSegs, a.GSOIPv4MaxSize}) == want {
		return nil
	}
	c, err := openRTNL()
	if err != nil {
		return err
	}
	defer c.close()
	req := c.request(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(a.Index)
	req.AddData(msg)
	// The kernel takes the attributes in this order. Setting the first one
	// sets the IPv4 limit too, so that is always sent after it.
	req.AddData(nl.NewRtAttr(unix.IFLA_GSO_MAX_SIZE, nl.Uint32Attr(want.sizeBytes)))
	req.AddData(nl.NewRtAttr(unix.IFLA_GSO_MAX_SEGS, nl.Uint32Attr(want.segments)))
	if want.ipv4SizeBytes != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_GSO_IPV4_MAX_SIZE, nl.Uint32Attr(want.ipv4SizeBytes)))
	}
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("%s: set gso_max_size %d, gso_max_segs %d, gso_ipv4_max_size %d: %w",
			a.Name, want.sizeBytes, want.segments, want.ipv4SizeBytes, err)
	}
	if err := renewIPv4Routes(); err != nil {
		return fmt.Errorf("%s: renew the routes of open connections: %w", a.Name, err)
	}
	return nil
}

// renewIPv4Routes makes every IPv4 socket of the network namespace look its route up again with its
// next packet. Where the sysctl cannot be written, as in many containers, open connections keep
// their limits.
func renewIPv4Routes() error {
	err := os.WriteFile("/proc/sys/net/ipv4/route/flush", []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return nil
	}
	return err
}

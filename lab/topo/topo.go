// SPDX-License-Identifier: BSD-2-Clause

// Package topo makes the network of an experiment: a sender and a receiver, each in a network
// namespace of its own, joined by veth devices, by veth devices and a router, or by the NICs of a
// virtual machine.
package topo

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Names and addresses of every pair.
const (
	SenderDevice   = "tx0"
	ReceiverDevice = "rx0"
	prefixBits     = 24
)

// SenderAddress is the address of the sender.
var SenderAddress = netip.AddrFrom4([4]byte{10, 77, 0, 1})

// receiverAddresses is how many addresses the receiver has, so that one kind of traffic can take
// several paths through whatever hashes addresses.
const receiverAddresses = 4

// Of a router between the two.
const (
	routerIn  = "in0"  // to the sender
	routerOut = "out0" // to the receiver
)

var (
	routerInAddress  = netip.AddrFrom4([4]byte{10, 77, 0, 254})
	routerOutAddress = netip.AddrFrom4([4]byte{10, 77, 1, 254})
)

// The devices that a virtual machine has (see package vm).
var virtioDevices = [2]string{"eth0", "eth1"}

// Port is a device, and where it is.
type Port struct {
	Namespace *Namespace
	Device    string
	// Queues is its number of transmit queues.
	Queues int
}

// Pair is a sender and a receiver.
type Pair struct {
	Sender, Receiver *Namespace
	// Up is where everything that goes to the receiver leaves, and Down everything that goes to the
	// sender: the places of shapers.
	Up, Down Port
	// ReceiverAddresses are those of the receiver. Any does.
	ReceiverAddresses []netip.Addr

	close []func() error // in the order of making
}

// NewPair joins a sender and a receiver by veth devices with so many transmit and receive queues. The
// namespaces' names begin with prefix. What else the kernel sets on a new device is left alone.
func NewPair(prefix string, queues int) (_ *Pair, err error) {
	p := &Pair{ReceiverAddresses: receivers(0)}
	defer p.closeOn(&err)
	if err := p.addEnds(prefix); err != nil {
		return nil, err
	}
	p.Up, p.Down = Port{p.Sender, SenderDevice, queues}, Port{p.Receiver, ReceiverDevice, queues}
	if err := p.addVeth(p.Up, p.Down); err != nil {
		return nil, err
	}
	return p, p.join(p.Up, []netip.Addr{SenderAddress}, p.Down, p.ReceiverAddresses)
}

// NewRouted puts a router between a sender and a receiver, which has no sockets of its own. Packets come
// to it as on a wire, one by one, or merged: in super-packets of up to 64 kB, as GRO makes them of the
// bursts that a fast link brings.
func NewRouted(prefix string, queues int, merged bool) (_ *Pair, err error) {
	p := &Pair{ReceiverAddresses: receivers(1)}
	defer p.closeOn(&err)
	if err := p.addEnds(prefix); err != nil {
		return nil, err
	}
	router, err := p.addNamespace(prefix + "-router")
	if err != nil {
		return nil, err
	}
	err = router.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	if err != nil {
		return nil, fmt.Errorf("make a router: %w", err)
	}
	p.Up, p.Down = Port{router, routerOut, queues}, Port{router, routerIn, queues}
	sender, receiver := Port{p.Sender, SenderDevice, queues}, Port{p.Receiver, ReceiverDevice, queues}
	if err := errors.Join(p.addVeth(sender, p.Down), p.addVeth(p.Up, receiver)); err != nil {
		return nil, err
	}
	if err := errors.Join(
		p.join(sender, []netip.Addr{SenderAddress}, p.Down, []netip.Addr{routerInAddress}),
		p.join(p.Up, []netip.Addr{routerOutAddress}, receiver, p.ReceiverAddresses),
		sender.route(routerOutAddress, routerInAddress), receiver.route(routerInAddress, routerOutAddress),
	); err != nil {
		return nil, err
	}
	if merged {
		return p, nil
	}
	return p, errors.Join(sender.noSuperPackets(), receiver.noSuperPackets())
}

// NewVirtio takes the two NICs of the virtual machine, which are joined outside it, and makes them use so
// many of their queues. Close gives them back.
func NewVirtio(prefix string, queues int) (_ *Pair, err error) {
	p := &Pair{ReceiverAddresses: receivers(0)}
	defer p.closeOn(&err)
	if err := p.addEnds(prefix); err != nil {
		return nil, err
	}
	if p.Up, err = p.take(virtioDevices[0], p.Sender, SenderDevice); err != nil {
		return nil, err
	}
	if p.Down, err = p.take(virtioDevices[1], p.Receiver, ReceiverDevice); err != nil {
		return nil, err
	}
	if err := errors.Join(p.Up.setQueues(queues), p.Down.setQueues(queues), p.Up.forgetByteQueueLimits()); err != nil {
		return nil, err
	}
	p.Up.Queues, p.Down.Queues = queues, queues
	return p, p.join(p.Up, []netip.Addr{SenderAddress}, p.Down, p.ReceiverAddresses)
}

// NewSink makes a sender whose device, with so many transmit queues, takes every packet and delivers
// none. There is no receiver.
func NewSink(prefix string, queues int) (_ *Pair, err error) {
	p := &Pair{}
	defer p.closeOn(&err)
	if p.Sender, err = p.addNamespace(prefix + "-tx"); err != nil {
		return nil, err
	}
	p.Up = Port{p.Sender, SenderDevice, queues}
	err = p.Sender.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.NumTxQueues = SenderDevice, queues
		return netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	})
	if err != nil {
		return nil, fmt.Errorf("add a dummy device with %d queues: %w", queues, err)
	}
	p.close = append(p.close, p.Up.remove)
	_, err = p.Up.configure([]netip.Addr{SenderAddress})
	return p, err
}

// receivers are the receiver's addresses in 10.77.subnet.0/24.
func receivers(subnet byte) (addresses []netip.Addr) {
	for i := range receiverAddresses {
		addresses = append(addresses, netip.AddrFrom4([4]byte{10, 77, subnet, byte(2 + i)}))
	}
	return addresses
}

func (p *Pair) addEnds(prefix string) (err error) {
	if p.Sender, err = p.addNamespace(prefix + "-tx"); err != nil {
		return err
	}
	p.Receiver, err = p.addNamespace(prefix + "-rx")
	return err
}

func (p *Pair) addNamespace(name string) (*Namespace, error) {
	n, err := NewNamespace(name)
	if err == nil {
		p.close = append(p.close, n.Close)
	}
	return n, err
}

// addVeth makes a pair of devices.
func (p *Pair) addVeth(a, b Port) error {
	err := a.Namespace.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = a.Device, a.Queues, a.Queues
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:       attrs,
			PeerName:        b.Device,
			PeerNamespace:   netlink.NsFd(b.Namespace.handle),
			PeerNumTxQueues: uint32(b.Queues),
			PeerNumRxQueues: uint32(b.Queues),
		})
	})
	if err != nil {
		return fmt.Errorf("add a veth pair with %d queues: %w", a.Queues, err)
	}
	p.close = append(p.close, a.remove)
	return nil
}

// take moves a device from the thread's namespace into another one, until Close.
func (p *Pair) take(device string, n *Namespace, name string) (Port, error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return Port{}, fmt.Errorf("find %s: %w", device, err)
	}
	home, err := netnsOfThread()
	if err != nil {
		return Port{}, err
	}
	port := Port{n, name, link.Attrs().NumTxQueues}
	if err := netlink.LinkSetNsFd(link, int(n.handle)); err != nil {
		return Port{}, errors.Join(fmt.Errorf("move %s to %s: %w", device, n.Name, err), home.Close())
	}
	p.close = append(p.close, func() error {
		err := port.do(func(link netlink.Link) error {
			return errors.Join(netlink.LinkSetDown(link), netlink.LinkSetName(link, device), netlink.LinkSetNsFd(link, int(home)))
		})
		return errors.Join(err, home.Close())
	})
	err = n.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.LinkSetName(link, name)
	})
	if err != nil {
		return Port{}, fmt.Errorf("name %s in %s: %w", device, n.Name, err)
	}
	return port, nil
}

// join gives the devices at the two ends of a link their addresses and sets them up.
func (p *Pair) join(a Port, aAddresses []netip.Addr, b Port, bAddresses []netip.Addr) error {
	aMAC, err := a.configure(aAddresses)
	if err != nil {
		return err
	}
	bMAC, err := b.configure(bAddresses)
	if err != nil {
		return err
	}
	return errors.Join(a.neighbours(bMAC, bAddresses), b.neighbours(aMAC, aAddresses), a.steer(), b.steer())
}

// do calls f with the device, in its namespace.
func (p Port) do(f func(netlink.Link) error) error {
	err := p.Namespace.Do(func() error {
		link, err := netlink.LinkByName(p.Device)
		if err != nil {
			return err
		}
		return f(link)
	})
	if err != nil {
		return fmt.Errorf("%s in %s: %w", p.Device, p.Namespace.Name, err)
	}
	return nil
}

// remove deletes a device that was made. Its namespace may live on for a moment; it has no reason to.
func (p Port) remove() error { return p.do(netlink.LinkDel) }

// configure gives the device its addresses, sets it up, and returns its link-layer address.
func (p Port) configure(addresses []netip.Addr) (mac net.HardwareAddr, err error) {
	err = p.do(func(link netlink.Link) error {
		for _, a := range addresses {
			prefix := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(prefixBits, a.BitLen())}
			if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: prefix}); err != nil {
				return fmt.Errorf("add the address %v: %w", prefix, err)
			}
		}
		mac = link.Attrs().HardwareAddr
		return netlink.LinkSetUp(link)
	})
	return mac, err
}

// neighbours makes static entries: nothing of the traffic is ARP.
func (p Port) neighbours(mac net.HardwareAddr, addresses []netip.Addr) error {
	return p.do(func(link netlink.Link) error {
		for _, a := range addresses {
			err := netlink.NeighSet(&netlink.Neigh{
				LinkIndex:    link.Attrs().Index,
				Family:       unix.AF_INET,
				State:        netlink.NUD_PERMANENT,
				IP:           a.AsSlice(),
				HardwareAddr: mac,
			})
			if err != nil {
				return fmt.Errorf("add the neighbour %v: %w", a, err)
			}
		}
		return nil
	})
}

// route sends what is for the subnet of an address to a gateway.
func (p Port) route(address, gateway netip.Addr) error {
	subnet := netip.PrefixFrom(address, prefixBits).Masked()
	return p.do(func(link netlink.Link) error {
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index,
			Dst:       &net.IPNet{IP: subnet.Addr().AsSlice(), Mask: net.CIDRMask(prefixBits, subnet.Addr().BitLen())},
			Gw:        gateway.AsSlice(),
		})
	})
}

// setQueues makes a NIC use so many queues; left alone, a driver gives each CPU one.
func (p Port) setQueues(queues int) error {
	cmd := exec.Command("ip", "netns", "exec", p.Namespace.Name, "ethtool", "-L", p.Device, "combined", strconv.Itoa(queues))
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("give %s %d queues: %w: %s", p.Device, queues, err, output)
	}
	return nil
}

func (p Port) noSuperPackets() error {
	return p.do(func(link netlink.Link) error { return netlink.LinkSetGSOMaxSegs(link, 1) })
}

// MAC is the device's link-layer address.
func (p Port) MAC() (mac net.HardwareAddr, err error) {
	err = p.do(func(link netlink.Link) error { mac = link.Attrs().HardwareAddr; return nil })
	return mac, err
}

// SentPackets is how many packets the device has sent.
func (p Port) SentPackets() (packets uint64, err error) {
	err = p.do(func(link netlink.Link) error { packets = link.Attrs().Statistics.TxPackets; return nil })
	return packets, err
}

// AddNobody makes an address on the receiver's side whose packets the receiver throws away at once: their
// link-layer address is nobody's.
func (p *Pair) AddNobody() (netip.Addr, error) {
	subnet := p.ReceiverAddresses[0].As4()
	subnet[3] = 99
	nobody := netip.AddrFrom4(subnet)
	return nobody, p.Up.neighbours(net.HardwareAddr{2, 0, 0, 0, 0, 99}, []netip.Addr{nobody})
}

// steer makes one CPU receive all packets of a flow, as the hashing of a NIC does. A veth device
// receives on the CPU that sends, and two of those could put packets into an order that they did not
// have on the wire.
func (p Port) steer() error {
	if runtime.NumCPU() == 1 {
		return nil
	}
	const script = `for queue in /sys/class/net/"$1"/queues/rx-*; do echo "$2" >"$queue"/rps_cpus; done`
	mask := fmt.Sprintf("%x", uint32(1)<<min(runtime.NumCPU(), 31)-1)
	// By ip, which mounts a /sys that shows the namespace's devices.
	cmd := exec.Command("ip", "netns", "exec", p.Namespace.Name, "sh", "-e", "-c", script, "sh", p.Device, mask)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("steer what %s receives: %w: %s", p.Device, err, output)
	}
	return nil
}

// ByteQueueLimits are how many bytes each transmit queue of a NIC may hold at the moment (BQL), none
// where the driver keeps no account of them.
func (p Port) ByteQueueLimits() ([]uint64, error) {
	const script = `for queue in /sys/class/net/"$1"/queues/tx-*; do cat "$queue"/byte_queue_limits/limit; done`
	cmd := exec.Command("ip", "netns", "exec", p.Namespace.Name, "sh", "-e", "-c", script, "sh", p.Device)
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("read the byte-queue limits of %s: %w", p.Device, err)
	}
	var limits []uint64
	for _, word := range strings.Fields(string(text)) {
		limit, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read the byte-queue limits of %s: %w", p.Device, err)
		}
		limits = append(limits, limit)
	}
	return limits, nil
}

// forgetByteQueueLimits makes the driver find out anew how much its queues have to hold: what an earlier
// shaper sent has raised the limits.
func (p Port) forgetByteQueueLimits() error {
	const script = `for limit in /sys/class/net/"$1"/queues/tx-*/byte_queue_limits/limit; do echo 0 >"$limit"; done`
	cmd := exec.Command("ip", "netns", "exec", p.Namespace.Name, "sh", "-e", "-c", script, "sh", p.Device)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("reset the byte-queue limits of %s: %w: %s", p.Device, err, output)
	}
	return nil
}

// Close removes what was made, and gives back what was taken.
func (p *Pair) Close() error {
	var errs []error
	for _, f := range slices.Backward(p.close) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// closeOn is for a deferred call: what was made before a failure goes.
func (p *Pair) closeOn(err *error) {
	if *err != nil {
		*err = errors.Join(*err, p.Close())
	}
}

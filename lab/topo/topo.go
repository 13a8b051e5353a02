// SPDX-License-Identifier: BSD-2-Clause

// Package topo makes the network of an experiment: a sender and a receiver, each in a network
// namespace of its own, joined by a pair of veth devices.
package topo

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a named network namespace, as `ip netns` knows them.
type Namespace struct {
	Name   string
	handle netns.NsHandle
}

// NewNamespace makes a network namespace with lo up.
func NewNamespace(name string) (*Namespace, error) {
	n := &Namespace{Name: name, handle: netns.None()}
	err := onThread(func() (err error) {
		n.handle, err = netns.NewNamed(name)
		if err != nil {
			return fmt.Errorf("make the network namespace %s: %w", name, err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find lo of %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return fmt.Errorf("set lo of %s up: %w", name, err)
		}
		// Router solicitations and duplicate address detection would be traffic of nobody's.
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Do calls f on a thread that is in the namespace: sockets that f makes belong to it.
func (n *Namespace) Do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(n.handle); err != nil {
			return fmt.Errorf("enter the network namespace %s: %w", n.Name, err)
		}
		return f()
	})
}

// Close deletes the namespace; it is gone when its last socket is.
func (n *Namespace) Close() error {
	if !n.handle.IsOpen() {
		return nil
	}
	if err := errors.Join(n.handle.Close(), netns.DeleteNamed(n.Name)); err != nil {
		return fmt.Errorf("delete the network namespace %s: %w", n.Name, err)
	}
	return nil
}

// onThread calls f on a thread of its own choice and puts the thread back into the namespace it was
// in. A thread that cannot go back is not used again.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		before, err := netns.Get()
		if err != nil {
			result <- fmt.Errorf("get the thread's network namespace: %w", err)
			return // which ends the locked thread
		}
		defer before.Close()
		err = f()
		if back := netns.Set(before); back != nil {
			result <- errors.Join(err, fmt.Errorf("leave the network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
		result <- err
	}()
	return <-result
}

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

// Pair is a sender and a receiver.
type Pair struct {
	Sender, Receiver *Namespace
	// Queues is the number of transmit queues of the devices.
	Queues int
	// ReceiverAddresses are those of the receiver. Any does.
	ReceiverAddresses []netip.Addr
}

// NewPair makes a pair with so many transmit and receive queues on both devices. The namespaces'
// names begin with prefix. What else the kernel sets on a new device is left alone.
func NewPair(prefix string, queues int) (_ *Pair, err error) {
	p := &Pair{Queues: queues}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.Sender, err = NewNamespace(prefix + "-tx"); err != nil {
		return nil, err
	}
	if p.Receiver, err = NewNamespace(prefix + "-rx"); err != nil {
		return nil, err
	}
	for i := range receiverAddresses {
		p.ReceiverAddresses = append(p.ReceiverAddresses, netip.AddrFrom4([4]byte{10, 77, 0, byte(2 + i)}))
	}
	err = p.Sender.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = SenderDevice, queues, queues
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:       attrs,
			PeerName:        ReceiverDevice,
			PeerNamespace:   netlink.NsFd(p.Receiver.handle),
			PeerNumTxQueues: uint32(queues),
			PeerNumRxQueues: uint32(queues),
		})
	})
	if err != nil {
		return nil, fmt.Errorf("add a veth pair with %d queues: %w", queues, err)
	}
	tx, err := p.configure(p.Sender, SenderDevice, SenderAddress)
	if err != nil {
		return nil, err
	}
	rx, err := p.configure(p.Receiver, ReceiverDevice, p.ReceiverAddresses...)
	if err != nil {
		return nil, err
	}
	if err := neighbours(p.Sender, SenderDevice, rx, p.ReceiverAddresses...); err != nil {
		return nil, err
	}
	if err := p.steerReceiver(); err != nil {
		return nil, err
	}
	return p, neighbours(p.Receiver, ReceiverDevice, tx, SenderAddress)
}

// NewSink makes a sender whose device, with so many transmit queues, takes every packet and delivers
// none. There is no receiver.
func NewSink(prefix string, queues int) (_ *Pair, err error) {
	p := &Pair{Queues: queues}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.Sender, err = NewNamespace(prefix + "-tx"); err != nil {
		return nil, err
	}
	err = p.Sender.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.NumTxQueues = SenderDevice, queues
		return netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	})
	if err != nil {
		return nil, fmt.Errorf("add a dummy device with %d queues: %w", queues, err)
	}
	_, err = p.configure(p.Sender, SenderDevice, SenderAddress)
	return p, err
}

// configure gives a device its addresses, sets it up, and returns its link-layer address.
func (p *Pair) configure(n *Namespace, device string, addresses ...netip.Addr) (mac net.HardwareAddr, err error) {
	err = n.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		for _, a := range addresses {
			prefix := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(prefixBits, a.BitLen())}
			if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: prefix}); err != nil {
				return err
			}
		}
		mac = link.Attrs().HardwareAddr
		return netlink.LinkSetUp(link)
	})
	if err != nil {
		return nil, fmt.Errorf("configure %s: %w", device, err)
	}
	return mac, nil
}

// neighbours makes static entries: nothing of the traffic is ARP.
func neighbours(n *Namespace, device string, mac net.HardwareAddr, addresses ...netip.Addr) error {
	return n.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find %s: %w", device, err)
		}
		for _, a := range addresses {
			err := netlink.NeighSet(&netlink.Neigh{
				LinkIndex:    link.Attrs().Index,
				Family:       unix.AF_INET,
				State:        netlink.NUD_PERMANENT,
				IP:           a.AsSlice(),
				HardwareAddr: mac,
			})
			if err != nil {
				return fmt.Errorf("add the neighbour %v on %s: %w", a, device, err)
			}
		}
		return nil
	})
}

// steerReceiver makes one CPU receive all packets of a flow, as the hashing of a NIC does. A veth
// device receives on the CPU that sends, and two of those could put packets into an order that they
// did not have on the wire.
func (p *Pair) steerReceiver() error {
	if runtime.NumCPU() == 1 {
		return nil
	}
	const script = `for queue in /sys/class/net/"$1"/queues/rx-*; do echo "$2" >"$queue"/rps_cpus; done`
	mask := fmt.Sprintf("%x", uint32(1)<<min(runtime.NumCPU(), 31)-1)
	// By ip, which mounts a /sys that shows the namespace's devices.
	cmd := exec.Command("ip", "netns", "exec", p.Receiver.Name, "sh", "-e", "-c", script, "sh", ReceiverDevice, mask)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("steer what %s receives: %w: %s", ReceiverDevice, err, output)
	}
	return nil
}

// Close removes everything.
func (p *Pair) Close() error {
	var errs []error
	if p.Sender != nil {
		// The namespace may live on for a moment, its device has no reason to.
		errs = append(errs, p.Sender.Do(func() error {
			link, err := netlink.LinkByName(SenderDevice)
			var missing netlink.LinkNotFoundError
			if errors.As(err, &missing) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("find %s: %w", SenderDevice, err)
			}
			return netlink.LinkDel(link)
		}), p.Sender.Close())
	}
	if p.Receiver != nil {
		errs = append(errs, p.Receiver.Close())
	}
	return errors.Join(errs...)
}

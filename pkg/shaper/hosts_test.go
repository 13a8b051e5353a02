// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/pkg/config"
)

// TestHostsShare: a host with one flow gets about as much as one with eight, which go to one host or
// to eight, whatever queues they hash to. Without isolation it gets a ninth. What guarantees leave goes
// by arrival, so that the host with more senders is ahead by some percent.
func TestHostsShare(t *testing.T) {
	env, device := newEnv(t, 8)
	const a, b = "10.0.1.1", "10.0.1.2"
	for _, address := range []string{a, b} {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(32, 32)}}
		if err := netlink.AddrAdd(device, addr); err != nil {
			t.Fatalf("give the device an address: %v", err)
		}
	}
	peer := testnet.Link(t, testnet.Peer)
	destinations := []net.IP{net.ParseIP(testnet.PeerAddress)}
	for i := range 8 {
		destination := net.IPv4(10, 0, 0, byte(10+i))
		err := netlink.NeighSet(&netlink.Neigh{
			LinkIndex: device.Attrs().Index, State: unix.NUD_PERMANENT, IP: destination, HardwareAddr: peer.Attrs().HardwareAddr,
		})
		if err != nil {
			t.Fatalf("say where %v is: %v", destination, err)
		}
		destinations = append(destinations, destination)
	}
	spec := spec("20mbit")
	spec.Isolation = config.IsolateDualSrcHost
	s, err := Attach(t.Context(), env, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer s.Detach(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	here := testnet.Here(t)
	running.Go(func() {
		if err := here.Do(func() error { return s.Run(ctx) }); err != nil {
			t.Errorf("run the controller: %v", err)
		}
	})
	one := func(to func(flow int) net.IP) float64 {
		sent := make([]atomic.Int64, 9)
		sending, stop := context.WithCancel(ctx)
		var senders sync.WaitGroup
		for flow := range sent {
			from := a
			if flow > 0 {
				from = b
			}
			conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(from)}, &net.UDPAddr{IP: to(flow), Port: 5000})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			senders.Go(func() {
				// A socket's buffer holds its sender up.
				for sending.Err() == nil {
					n, err := conn.Write(make([]byte, 1400))
					if err != nil {
						t.Errorf("send: %v", err)
						return
					}
					sent[flow].Add(int64(n))
				}
			})
		}
		total := func() (sum int64) {
			for i := range sent {
				sum += sent[i].Load()
			}
			return sum
		}
		time.Sleep(6 * time.Second) // what is booked at the start takes its time to leave
		before, beforeAll := sent[0].Load(), total()
		time.Sleep(3 * time.Second)
		share := float64(sent[0].Load()-before) / float64(total()-beforeAll)
		stop()
		senders.Wait()
		time.Sleep(2 * time.Second)
		return share
	}
	for _, test := range []struct {
		isolation config.Isolation
		to        func(flow int) net.IP
	}{
		{config.IsolateDualSrcHost, func(int) net.IP { return destinations[0] }},
		{config.IsolateTriple, func(flow int) net.IP { return destinations[flow] }},
	} {
		if _, err := s.Set(t.Context(), config.Change{Isolation: &test.isolation}); err != nil {
			t.Fatal(err)
		}
		got := one(test.to)
		t.Logf("%s: the host with one flow of nine gets %.3f", test.isolation, got)
		if got < 0.4 || got > 0.6 {
			t.Errorf("%s: the host with one flow of nine gets %.3f of the line, want a half", test.isolation, got)
		}
	}
}

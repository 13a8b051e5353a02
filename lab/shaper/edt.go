// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/rates"
)

// edt is the naive EDT shaper: mq and fq by tc, and one clock in a BPF program.
type edt struct {
	byTC
	objects edtObjects
}

func attachEDT(ctx context.Context, t Target) (_ Shaped, err error) {
	peer, err := Lookup("edt")
	if err != nil {
		return nil, err
	}
	s := &edt{byTC: byTC{peer: peer, target: t}}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, err
	}
	if err := loadEdtObjects(&s.objects, nil); err != nil {
		return nil, fmt.Errorf("load the program: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.SetRate(ctx, t.Rate); err != nil {
		return nil, err
	}
	if err := s.run(ctx, peer.Commands, t.Rate); err != nil {
		return nil, err
	}
	return s, t.Namespace.Do(s.hook)
}

// hook hangs the program into the egress of the device, with which it goes.
func (s *edt) hook() error {
	device, err := netlink.LinkByName(s.target.Device)
	if err != nil {
		return fmt.Errorf("find %s: %w", s.target.Device, err)
	}
	err = netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: device.Attrs().Index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}})
	// A meter may have added one.
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add a clsact qdisc to %s: %w", s.target.Device, err)
	}
	err = netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: device.Attrs().Index,
			Parent:    netlink.HANDLE_MIN_EGRESS,
			Handle:    1,
			Protocol:  unix.ETH_P_ALL,
			Priority:  1,
		},
		Fd:           s.objects.EdtEgress.FD(),
		Name:         "edt",
		DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("attach to the egress of %s: %w", s.target.Device, err)
	}
	return nil
}

func (s *edt) SetRate(_ context.Context, rate rates.Rate) error {
	if err := s.objects.BytesPerSecond.Set(uint64(rate) / 8); err != nil {
		return fmt.Errorf("set the rate: %w", err)
	}
	return nil
}

func (s *edt) Close() error { return s.objects.Close() }

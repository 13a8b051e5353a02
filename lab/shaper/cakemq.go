// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/rates"
)

// From linux/pkt_sched.h.
const (
	tcaCakeBaseRate64   = 2
	tcaCakeDiffservMode = 3
	tcaCakeATM          = 4
	tcaCakeOverhead     = 6

	cakeATM = 1 // of enum cake_atm_mode
)

// cakeDiffservModes are the values of enum cake_diffserv_mode.
var cakeDiffservModes = map[string]uint32{
	"diffserv3":  0,
	"diffserv4":  1,
	"diffserv8":  2,
	"besteffort": 3,
	"precedence": 4,
}

// cakeMQ is set by netlink: tc knows it since iproute2 7.
type cakeMQ struct {
	target     Target
	configured *callCount // nil until somebody asks for the work
}

func attachCakeMQ(_ context.Context, t Target) (Shaped, error) {
	s := &cakeMQ{target: t}
	return s, s.request(unix.NLM_F_CREATE|unix.NLM_F_EXCL, t.Rate)
}

func (s *cakeMQ) SetRate(_ context.Context, rate rates.Rate) error {
	if err := s.request(0, rate); err != nil {
		return fmt.Errorf("change the rate of cake_mq: %w", err)
	}
	return nil
}

func (s *cakeMQ) Details(ctx context.Context) (string, error) { return qdiscs(ctx, s.target) }

func (*cakeMQ) Kill() error { return nil }

func (s *cakeMQ) Close() error {
	if s.configured == nil {
		return nil
	}
	return s.configured.close()
}

func (s *cakeMQ) request(flags int, rate rates.Rate) error {
	mode, ok := cakeDiffservModes[s.target.Diffserv]
	if !ok {
		return fmt.Errorf("cake_mq has no %q", s.target.Diffserv)
	}
	return s.target.Namespace.Do(func() error {
		link, err := netlink.LinkByName(s.target.Device)
		if err != nil {
			return fmt.Errorf("find %s: %w", s.target.Device, err)
		}
		request := nl.NewNetlinkRequest(unix.RTM_NEWQDISC, flags|unix.NLM_F_ACK)
		request.AddData(&nl.TcMsg{
			Family:  nl.FAMILY_ALL,
			Ifindex: int32(link.Attrs().Index),
			Parent:  netlink.HANDLE_ROOT,
		})
		request.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("cake_mq")))
		options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
		options.AddRtAttr(tcaCakeBaseRate64, nl.Uint64Attr(uint64(rate)/8))
		options.AddRtAttr(tcaCakeDiffservMode, nl.Uint32Attr(mode))
		if f := s.target.Framing; f != (Framing{}) {
			options.AddRtAttr(tcaCakeOverhead, nl.Uint32Attr(uint32(f.Overhead)))
			if f.ATM {
				options.AddRtAttr(tcaCakeATM, nl.Uint32Attr(cakeATM))
			}
		}
		request.AddData(options)
		if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return fmt.Errorf("set cake_mq on %s: %w", s.target.Device, err)
		}
		return nil
	})
}

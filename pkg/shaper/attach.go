// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/control"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/qdisc"
	"github.com/cakectl/cakectl/pkg/rates"
)

// maxFlowTableBytes bounds the memory for flows on devices with very many queues; their flow tables
// get smaller instead.
const maxFlowTableBytes = 16 << 20

const flowBytes = 48

// Shaper is one attached device.
type Shaper struct {
	env  Env
	log  *slog.Logger
	name string

	mu         sync.Mutex
	device     netlink.Link
	record     record
	recordLost bool
	rates      rates.Config
	datapath   *loader.DataPath // nil where the pins are gone
	controller *control.Controller
	reacted    func(time.Duration)
}

// Attach shapes a device as spec says. Where it is shaped already, the device is adopted: traffic,
// clocks and counters go on, what is missing is put back, and spec is applied as a change; a Spec
// without a bandwidth adopts what is there.
//
// When a first attach fails, or ctx ends, the device is left as it was.
func Attach(ctx context.Context, env Env, spec config.Spec) (*Shaper, error) {
	if err := env.prepare(); err != nil {
		return nil, err
	}
	if spec.Keep && env.pinsVanish() {
		return nil, fmt.Errorf("keep %s shaped: the BPF file system at %s is this process's own and ends with it, as under ip netns exec: enter the namespace by nsenter --net=/run/netns/NAME instead", spec.Device, filepath.Dir(env.BPFFS))
	}
	l, err := env.lockDevice(ctx, spec.Device)
	if err != nil {
		return nil, err
	}
	defer l.release()
	device, err := netlink.LinkByName(spec.Device)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", spec.Device, err)
	}
	s, err := open(env, spec.Device)
	switch {
	case errors.Is(err, ErrNotAttached):
		return attachNew(ctx, env, device, spec)
	case err != nil:
		return nil, err
	}
	fresh, err := s.sweepUp(ctx)
	if err != nil || fresh {
		err = errors.Join(err, s.Close())
		if err != nil {
			return nil, err
		}
		return attachNew(ctx, env, device, spec)
	}
	if err := s.adopt(ctx, spec); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// sweepUp removes what is left of a device that cannot be adopted: one that is gone, or whose
// attach or detach was cut short. It reports whether it did.
func (s *Shaper) sweepUp(ctx context.Context) (bool, error) {
	switch {
	case s.device == nil:
		if err := s.requireGone(); err != nil {
			return false, err
		}
		s.log.Info("the device that was shaped is gone; starting over", "device", s.name)
	case s.recordLost:
		s.log.Warn("the record of what was there before is lost; giving the kernel's defaults back first", "device", s.name)
	case s.datapath == nil:
		s.log.Info("an earlier attach or detach was cut short; restoring the device first", "device", s.name)
	default:
		return false, nil
	}
	return true, s.teardown(ctx)
}

// requireGone refuses to clean up after a device that this process does not see but that may be
// alive in another network namespace.
func (s *Shaper) requireGone() error {
	netns, err := netnsID()
	if err != nil {
		return err
	}
	if s.record.Netns == netns || s.datapath == nil {
		return nil
	}
	gone, err := s.datapath.Orphaned()
	if err != nil || gone {
		return err
	}
	return fmt.Errorf("a device %s is shaped in another network namespace (%d) and has the pins %s: run this there, or give this namespace directories of its own (--bpffs, --run-dir)", s.name, s.record.Netns, s.env.pins(s.name))
}

func attachNew(ctx context.Context, env Env, device netlink.Link, spec config.Spec) (*Shaper, error) {
	s, err := newShaper(env, device, spec)
	if err != nil {
		return nil, err
	}
	if err := s.run(ctx, s.steps()); err != nil {
		// What was done has to be undone although ctx may be over.
		return nil, errors.Join(err, s.teardown(context.WithoutCancel(ctx)), s.Close())
	}
	return s, nil
}

// newShaper notes what an attach has to know before it touches the device.
func newShaper(env Env, device netlink.Link, spec config.Spec) (*Shaper, error) {
	cfg, err := spec.Resolve(linkSpeed(spec.Device))
	if err != nil {
		return nil, err
	}
	found, err := qdisc.Capture(device)
	if err != nil {
		return nil, err
	}
	netns, err := netnsID()
	if err != nil {
		return nil, err
	}
	return &Shaper{
		env:    env,
		log:    env.Log,
		name:   spec.Device,
		device: device,
		rates:  cfg,
		record: record{
			Version: recordVersion,
			Ifindex: device.Attrs().Index,
			Netns:   netns,
			Spec:    spec,
			Found:   found,
		},
	}, nil
}

// adopt completes a device that another process attached, and makes spec effective.
func (s *Shaper) adopt(ctx context.Context, spec config.Spec) error {
	change, err := changeFrom(s.record.Spec, spec)
	if err != nil {
		return err
	}
	if !spec.Bandwidth.IsZero() {
		// No part of a change: who answers for the device decides.
		s.record.Spec.FromFile, s.record.Spec.CheckQueues = spec.FromFile, spec.CheckQueues
	}
	if s.rates, err = s.record.Spec.Resolve(linkSpeed(s.name)); err != nil {
		return err
	}
	if err := s.run(ctx, s.steps()); err != nil {
		return err
	}
	_, err = s.change(ctx, change)
	return err
}

// changeFrom is the change that turns one spec into another.
func changeFrom(from, to config.Spec) (config.Change, error) {
	if to.Bandwidth.IsZero() {
		return config.Change{}, nil
	}
	change, err := from.ChangeTo(to)
	change.Tins = to.Tins // what they do not name stays
	return change, err
}

// The steps that a dry run says more about.
const (
	stepDataPath = "load the data path"
	stepQdiscs   = "put mq and fq in place"
)

// step is one part of an attach. Its work may be done already.
type step struct {
	name string
	do   func(ctx context.Context) error
}

// steps attach the device, from nothing or from whatever is there.
func (s *Shaper) steps() []step {
	return []step{
		{"record what the device looks like", func(context.Context) error { return s.env.writeRecord(s.record) }},
		{stepDataPath, s.loadDataPath},
		{stepQdiscs, s.installQdiscs},
		{"cap GSO by the rate", s.capGSO},
		{"attach the program", s.attachProgram},
		{"plan the rates", s.startController},
	}
}

func (s *Shaper) run(ctx context.Context, steps []step) error {
	for _, step := range steps {
		err := ctx.Err()
		if err == nil && s.env.fault != nil {
			err = s.env.fault(step.name)
		}
		if err == nil {
			err = step.do(ctx)
		}
		if err != nil {
			return fmt.Errorf("attach %s: %s: %w", s.name, step.name, err)
		}
		s.log.Debug("done", "device", s.name, "step", step.name)
	}
	return nil
}

func (s *Shaper) loadDataPath(context.Context) error {
	sizing, err := qdisc.HostSizing()
	if err != nil {
		return err
	}
	settings, err := settings(s.record.Spec, s.rates, s.queuesInUse(), s.device.Attrs().MTU, sizing)
	if err != nil {
		return err
	}
	if s.datapath == nil {
		if err := s.newDataPath(len(s.rates.Tins)); err != nil {
			return err
		}
	}
	if err := s.datapath.Configure(settings); err != nil {
		return err
	}
	queues, err := xpsQueues(s.record.Found.XPS)
	if err != nil {
		return err
	}
	return s.datapath.SetXPS(queues)
}

// queuesInUse is the number of transmit queues that the kernel chooses from, as far as the maps have
// room for them.
func (s *Shaper) queuesInUse() int {
	queues := max(s.record.Found.RealTxQueues, 1)
	if s.record.Found.RealTxQueues == 0 {
		queues = max(s.record.Found.NumTxQueues, 1)
	}
	if s.datapath != nil {
		queues = min(queues, s.datapath.Queues())
	}
	return queues
}

func (s *Shaper) newDataPath(tins int) (err error) {
	queues := max(s.record.Found.NumTxQueues, 1)
	flows := loader.DefaultFlows
	for flows > 8*loader.FlowWays && queues*tins*flows*flowBytes > maxFlowTableBytes {
		flows /= 2
	}
	header := 0
	if len(s.device.Attrs().HardwareAddr) > 0 {
		header = 14
	}
	s.datapath, err = loader.Load(loader.Options{Queues: queues, Tins: tins, Flows: flows, LinkHeaderBytes: header})
	if err != nil {
		return err
	}
	return s.datapath.Pin(s.env.pins(s.name))
}

func (s *Shaper) installQdiscs(ctx context.Context) error {
	if err := s.sizeFQ(); err != nil {
		return err
	}
	if _, err := qdisc.Install(ctx, s.device, s.qdiscs()); err != nil {
		return err
	}
	return s.env.writeRecord(s.record)
}

func (s *Shaper) capGSO(context.Context) error {
	return qdisc.ApplyGSOCap(s.device, s.record.Found, packetRate(s.record.Spec, s.rates.Bandwidth, s.device.Attrs().MTU))
}

// sizeFQ makes the fqs large enough for the rates and for what sockets may have waiting.
func (s *Shaper) sizeFQ() error {
	sizing, err := qdisc.HostSizing()
	if err != nil {
		return err
	}
	settings, err := settings(s.record.Spec, s.rates, s.queuesInUse(), s.device.Attrs().MTU, sizing)
	if err != nil {
		return err
	}
	sizing.Bandwidth = s.rates.Bandwidth
	sizing.LocalHorizonNs = uint64(settings.LocalHorizon)
	sizing.ForwardHorizonNs = uint64(settings.ForwardHorizon)
	s.record.FQ = grow(s.record.FQ, qdisc.SizeFQ(sizing))
	return nil
}

func (s *Shaper) qdiscs() qdisc.Options {
	return qdisc.Options{FQ: s.record.FQ, Replace: s.record.Spec.Replace}
}

// grow keeps limits that are larger: an fq that is given a smaller one drops what it holds beyond.
func grow(have, want qdisc.FQOptions) qdisc.FQOptions {
	want.LimitPackets = max(have.LimitPackets, want.LimitPackets)
	want.FlowLimitPackets = max(have.FlowLimitPackets, want.FlowLimitPackets)
	want.HorizonNs = max(have.HorizonNs, want.HorizonNs)
	return want
}

func (s *Shaper) attachProgram(context.Context) error {
	attached, err := s.datapath.Attached(s.device, s.record.Attachment)
	if err != nil || attached {
		return err
	}
	s.record.Attachment, err = s.datapath.Attach(s.device, s.env.Hook)
	if err != nil {
		return err
	}
	if err := s.datapath.PinLink(s.env.pins(s.name)); err != nil {
		return err
	}
	return s.env.writeRecord(s.record)
}

func (s *Shaper) startController(context.Context) error {
	written, err := s.datapath.Cells()
	if err != nil {
		return err
	}
	counters, err := s.datapath.ControllerCounters()
	if err != nil {
		return err
	}
	s.controller = control.New(s.datapath, control.Options{
		Config:   s.rates,
		Written:  written,
		Counters: counters,
		Reacted: func(d time.Duration) {
			if s.reacted != nil {
				s.reacted(d)
			}
		},
		Log: s.log.With("device", s.name),
	})
	_, err = s.controller.Recompute(loader.TriggerStart)
	return err
}

// Open takes over an attached device without changing anything on it. It returns [ErrNotAttached]
// where there is none.
func Open(env Env, device string) (*Shaper, error) {
	s, err := open(env, device)
	if err != nil {
		return nil, err
	}
	if s.recordLost {
		return s, nil // good for Detach only
	}
	if s.rates, err = s.record.Spec.Resolve(linkSpeed(device)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func open(env Env, device string) (*Shaper, error) {
	s := &Shaper{env: env, log: env.Log, name: device}
	record, err := env.readRecord(device)
	if errors.Is(err, ErrNotAttached) {
		record, s.recordLost = env.lostRecord(device)
		if s.recordLost {
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	s.record = record
	link, err := netlink.LinkByName(device)
	var missing netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &missing) {
		return nil, fmt.Errorf("find %s: %w", device, err)
	}
	netns, netnsErr := netnsID()
	if netnsErr != nil {
		return nil, netnsErr
	}
	if err == nil && link.Attrs().Index == record.Ifindex && netns == record.Netns {
		s.device = link
	}
	s.datapath, err = loader.Open(env.pins(device))
	if err != nil && !errors.Is(err, loader.ErrNotPinned) {
		return nil, fmt.Errorf("open the data path of %s: %w", device, err)
	}
	return s, nil
}

// Close lets go of the device and leaves it shaped.
func (s *Shaper) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.datapath == nil {
		return nil
	}
	err := s.datapath.Close()
	s.datapath = nil
	return err
}

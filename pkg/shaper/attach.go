// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/control"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/qdisc"
	"github.com/cakectl/cakectl/pkg/rates"
)

// Memory for the flow tables of a device: where the user does not say how large they are, they get
// smaller on devices with very many queues.
const (
	maxFlowTableBytes      = 16 << 20
	maxAskedFlowTableBytes = 1 << 30
)

// Shaper is one attached device.
type Shaper struct {
	env  Env
	log  *slog.Logger
	name string

	// nudged makes the follower look at the device.
	nudged     chan struct{}
	lastLookNs atomic.Int64 // when the follower looked last, on the wall clock
	lookDue    atomic.Bool  // it will be nudged to

	mu         sync.Mutex
	device     netlink.Link
	seen       qdisc.Journal // the device when it was last looked at
	applied    situation     // what the settings in force were made for
	record     record
	recordLost bool
	adopted    bool
	rates      rates.Config
	datapath   *loader.DataPath // nil where the pins are gone
	old        *loader.DataPath // the program of one that another version made, in place of datapath
	controller *control.Controller
	reacted    func(time.Duration)
	// stopController ends the present run of the controller and waits for that; nil without one.
	stopController func()
	drift          drift
	takingBack     bool // a repair may replace any qdisc
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
	if err := env.checkKeep(spec); err != nil {
		return nil, err
	}
	device, err := env.find(spec.Device)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", spec.Device, err)
	}
	if spec.Device, err = env.Recorded(spec.Device); err != nil {
		return nil, err
	}
	l, err := env.lockDevice(ctx, spec.Device)
	if err != nil {
		return nil, err
	}
	defer l.release()
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
		if err := s.requireHere(); err != nil {
			return false, err
		}
		s.log.Info("the device that was shaped is gone; starting over", "device", s.name)
	case s.recordLost:
		s.log.Warn("the record of what was there before is lost; giving the kernel's defaults back first", "device", s.name)
	case s.program() == nil:
		s.log.Info("an earlier attach or detach was cut short; restoring the device first", "device", s.name)
	default:
		return false, nil
	}
	return true, s.teardown(ctx)
}

// requireHere refuses a device that is alive in another network namespace. Where that cannot be told, a
// device that is not seen is gone.
func (s *Shaper) requireHere() error {
	if s.device != nil {
		return nil
	}
	netns, err := Netns()
	if err != nil || s.record.Netns == netns {
		return err
	}
	way := wayInto(s.record.Netns)
	if program := s.program(); program != nil {
		if gone, err := program.Orphaned(); err != nil || gone {
			return err
		}
	} else if way == "" { // under ip netns exec no pins are seen, and that says nothing
		return nil
	}
	return fmt.Errorf("a device %s of another network namespace (%d) is shaped: run this there (nsenter --net=%s cakectl ...), or give this namespace directories of its own (--run-dir, --bpffs)", s.name, s.record.Netns, cmp.Or(way, "PATH"))
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
	found, err := qdisc.Capture(device)
	if err != nil {
		return nil, err
	}
	netns, err := Netns()
	if err != nil {
		return nil, err
	}
	s := &Shaper{
		env:    env,
		log:    env.Log,
		name:   spec.Device,
		nudged: make(chan struct{}, 1),
		device: device,
		seen:   found,
		record: record{
			Version: recordVersion,
			Ifindex: device.Attrs().Index,
			Netns:   netns,
			Build:   loader.Build(),
			Spec:    spec,
			Found:   found,
		},
	}
	if err := s.checkPercent(spec.Bandwidth); err != nil {
		return nil, err
	}
	if s.rates, err = s.resolve(spec); err != nil {
		return nil, err
	}
	options := s.loaderOptions()
	if bytes := options.FlowTableBytes(); bytes > maxAskedFlowTableBytes {
		return nil, fmt.Errorf("%w: flows %d: with %d queues and %d tins that takes %d MB, above %d", config.ErrInvalid, options.Flows, options.Queues, options.Tins, bytes>>20, maxAskedFlowTableBytes>>20)
	}
	s.record.Spec.Flows = options.Flows
	return s, nil
}

// resolve turns a spec into rates. A percentage of a link that does not tell its speed now, because
// it is down, is one of the speed that it had.
func (s *Shaper) resolve(spec config.Spec) (rates.Config, error) {
	if speed := s.seen.LinkSpeedMegabits; speed != 0 {
		s.record.LinkSpeed = rates.Rate(speed) * rates.Mbit
	}
	return spec.Resolve(s.record.LinkSpeed)
}

// checkPercent refuses a percentage of a speed that the kernel makes up: that of a veth, which has no line.
// Devices that have one on record keep it.
func (s *Shaper) checkPercent(bandwidth rates.Value) error {
	if !bandwidth.IsPercent() || s.device == nil || s.device.Type() != "veth" {
		return nil
	}
	return fmt.Errorf("%w: bandwidth %s: %s is a veth, which has no line, and the speed that it tells is made up: give an absolute rate, such as 1gbit", config.ErrInvalid, bandwidth, s.name)
}

// program is what may be attached to the device: the data path, or that of another version.
func (s *Shaper) program() *loader.DataPath {
	if s.datapath != nil {
		return s.datapath
	}
	return s.old
}

// errOtherVersion says what to do about a data path that this version cannot read.
func (s *Shaper) errOtherVersion() error {
	return fmt.Errorf("another version of cakectl attached it, whose maps this one cannot read: cakectl attach %s takes it over, under traffic", s.name)
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
	if err := s.refresh(); err != nil {
		return err
	}
	if s.rates, err = s.resolve(s.record.Spec); err != nil {
		return err
	}
	if err := s.run(ctx, s.steps()); err != nil {
		return err
	}
	_, err = s.change(ctx, change)
	s.adopted = err == nil
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

// step is one part of an attach. Its work may be done already.
type step struct {
	name string
	do   func(ctx context.Context) error
}

// steps attach the device, from nothing or from whatever is there.
func (s *Shaper) steps() []step {
	return []step{
		{"record what the device looks like", func(context.Context) error { return s.env.writeRecord(s.record) }},
		{"load the data path", s.loadDataPath},
		{"put mq and fq in place", s.installQdiscs},
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

func (s *Shaper) loadDataPath(ctx context.Context) error {
	if s.env.Loads != nil {
		if err := s.env.Loads.Acquire(ctx, 1); err != nil {
			return fmt.Errorf("wait for the data paths of other devices: %w", err)
		}
		defer s.env.Loads.Release(1)
	}
	sizing, err := qdisc.HostSizing()
	if err != nil {
		return err
	}
	settings, err := settings(s.record.Spec, s.rates, s.queuesInUse(), s.device.Attrs().MTU, sizing)
	if err != nil {
		return err
	}
	switch pins := s.env.pins(s.name); {
	case s.datapath != nil && s.record.Build != loader.Build():
		if err := s.datapath.Renew(s.device, s.loaderOptions(), pins); err != nil {
			return err
		}
		s.log.Info("the program of this version takes the place of another's", "device", s.name)
		s.record.Build = loader.Build()
	case s.datapath != nil:
	case s.old != nil:
		return s.takeOver(settings)
	default:
		if s.datapath, err = loader.Load(s.loaderOptions()); err != nil {
			return err
		}
		if err := s.datapath.Pin(pins); err != nil {
			return err
		}
	}
	return s.configure(s.datapath, settings)
}

// takeOver replaces the data path of another version whose maps this one cannot read. The new maps
// know neither its counters of packets nor what it has booked.
func (s *Shaper) takeOver(settings loader.Settings) error {
	datapath, err := loader.Load(s.loaderOptions())
	if err != nil {
		return err
	}
	err = s.configure(datapath, settings)
	if err == nil {
		err = datapath.TakeOver(s.old, s.device, s.env.pins(s.name))
	}
	if err != nil {
		return errors.Join(err, datapath.Close())
	}
	s.log.Info("took over from a version with other maps; the counters of packets start anew", "device", s.name)
	err = s.old.Close()
	s.datapath, s.old, s.record.Build = datapath, nil, loader.Build()
	return err
}

func (s *Shaper) configure(datapath *loader.DataPath, settings loader.Settings) error {
	if err := datapath.Configure(settings); err != nil {
		return err
	}
	queues, err := qdisc.XPSQueues(s.seen.XPS)
	if err != nil {
		return err
	}
	if err := datapath.SetXPS(queues); err != nil {
		return err
	}
	s.applied = s.situation()
	return nil
}

// queuesInUse is the number of transmit queues that the kernel chooses from, as far as the maps have
// room for them. The maps have room for all that the device can have, so ethtool -L needs no others.
func (s *Shaper) queuesInUse() int {
	queues := max(s.seen.RealTxQueues, 1)
	if s.seen.RealTxQueues == 0 {
		queues = max(s.seen.NumTxQueues, 1)
	}
	if s.datapath != nil {
		queues = min(queues, s.datapath.Queues())
	}
	return queues
}

// loaderOptions are what is fixed while the device is attached.
func (s *Shaper) loaderOptions() loader.Options {
	o := loader.Options{
		Queues: max(s.seen.NumTxQueues, 1),
		Tins:   len(s.rates.Tins),
		Flows:  s.record.Spec.Flows,
	}
	if o.Flows == 0 {
		o.Flows = loader.DefaultFlows
		for o.Flows > config.MinFlows && o.FlowTableBytes() > maxFlowTableBytes {
			o.Flows /= 2
		}
	}
	if len(s.device.Attrs().HardwareAddr) > 0 {
		o.LinkHeaderBytes = linkHeaderBytes
	}
	return o
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
	return qdisc.ApplyGSOCap(s.device, s.record.Found, s.gsoRate())
}

// gsoRate is the rate that super-packets are capped by.
func (s *Shaper) gsoRate() rates.Rate {
	if s.record.Spec.WholeGSO {
		return rates.Unlimited
	}
	return packetRate(s.record.Spec, s.rates.Bandwidth, s.device.Attrs().MTU)
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
	return qdisc.Options{FQ: s.record.FQ, Replace: s.record.Spec.Replace || s.takingBack, Force: s.takingBack}
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
	attachment, err := s.datapath.Attach(s.device, s.env.Hook)
	if err != nil {
		return err
	}
	// A clsact qdisc of ours stays ours where only our filter was taken away.
	attachment.MadeClsact = attachment.MadeClsact || attachment.Hook == loader.Clsact && s.record.Attachment.MadeClsact
	s.record.Attachment = attachment
	if err := s.datapath.PinLink(s.env.pins(s.name)); err != nil {
		return err
	}
	return s.env.writeRecord(s.record)
}

func (s *Shaper) startController(context.Context) error {
	if s.controller != nil {
		return nil
	}
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
		Woken: s.woken,
		Log:   s.log.With("device", s.name),
	})
	_, err = s.controller.Recompute(loader.TriggerStart)
	return err
}

// Open takes over an attached device without changing anything on it. It returns [ErrNotAttached]
// where there is none.
func Open(env Env, device string) (*Shaper, error) {
	device, err := env.Recorded(device)
	if err != nil {
		return nil, err
	}
	s, err := open(env, device)
	if err != nil {
		return nil, err
	}
	if s.recordLost {
		return s, nil // good for Detach only
	}
	if err = s.requireHere(); err == nil {
		err = s.refresh()
	}
	if err == nil {
		s.rates, err = s.resolve(s.record.Spec)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func open(env Env, device string) (*Shaper, error) {
	s := &Shaper{env: env, log: env.Log, name: device, nudged: make(chan struct{}, 1)}
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
	link, err := netlink.LinkByIndex(record.Ifindex)
	var missing netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &missing) {
		return nil, fmt.Errorf("find %s: %w", device, err)
	}
	netns, netnsErr := Netns()
	if netnsErr != nil {
		return nil, netnsErr
	}
	if err == nil && netns == record.Netns {
		s.device = link
	}
	s.datapath, err = loader.Open(env.pins(device))
	if errors.Is(err, loader.ErrLayout) {
		s.log.Debug("the data path is of another version", "device", device, "err", err)
		s.old, err = loader.OpenProgram(env.pins(device))
	}
	if err != nil && !errors.Is(err, loader.ErrNotPinned) {
		return nil, fmt.Errorf("open the data path of %s: %w", device, err)
	}
	// An attach is under way, or was cut short, that has not come to note this.
	if program := s.program(); program != nil && s.device != nil && s.record.Attachment.Hook == "" {
		if s.record.Attachment, err = program.Found(s.device); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// refresh reads the device anew. One that is gone is forgotten, and one that is made anew has another
// index, so it stays gone.
func (s *Shaper) refresh() error {
	if s.device == nil {
		return nil
	}
	index := s.device.Attrs().Index
	link, err := netlink.LinkByIndex(index)
	var seen qdisc.Journal
	if err == nil {
		seen, err = qdisc.Capture(link)
	}
	if err != nil {
		// It may go while it is read, which has many names.
		var missing netlink.LinkNotFoundError
		if _, gone := netlink.LinkByIndex(index); errors.As(gone, &missing) {
			s.device = nil
			return nil
		}
		return fmt.Errorf("find %s: %w", s.name, err)
	}
	if was, is := s.device.Attrs().Name, link.Attrs().Name; was != is {
		s.log.Info("the device was renamed", "device", s.name, "from", was, "to", is)
	}
	s.device, s.seen = link, seen
	return nil
}

// Close lets go of the device and leaves it shaped.
func (s *Shaper) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.close()
}

func (s *Shaper) close() error {
	var errs []error
	for _, datapath := range []*loader.DataPath{s.datapath, s.old} {
		if datapath != nil {
			errs = append(errs, datapath.Close())
		}
	}
	s.datapath, s.old = nil, nil
	return errors.Join(errs...)
}

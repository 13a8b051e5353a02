// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/notify"
	"github.com/cakectl/cakectl/pkg/rates"
)

const (
	// Whoever changes a device changes it in several steps; the follower looks when they are done.
	settleTime = 100 * time.Millisecond

	// The kernel does not tell of everything (see package notify). So the follower also looks where
	// the controller was woken anyway: now and then, and soon where traffic ended, since traffic that
	// does not pass the program any more looks like that. It never wakes up for it.
	activeLookGap = 10 * time.Second
	idleLookGap   = 500 * time.Millisecond
)

// situation is what the settings in force depend on beside the spec: what the device is like.
type situation struct {
	mtu, queues int
	speed       rates.Rate
	xps         string
}

func (s *Shaper) situation() situation {
	now := situation{mtu: s.device.Attrs().MTU, queues: s.queuesInUse(), xps: fmt.Sprint(s.seen.XPS)}
	if s.record.Spec.Bandwidth.IsPercent() {
		now.speed = s.record.LinkSpeed
	}
	return now
}

// drift is what others changed on the device.
type drift struct {
	present      string // what is wrong now; "" is nothing
	last         string
	lastDetected time.Time
	nextRepair   time.Time
	detected     uint64
	repaired     uint64
	lost         uint64 // notifications
	gone         bool   // the device is, and is awaited
	returned     error  // why it could not be attached anew when it came back
	following    bool
}

// repairs spaces them: the first comes at once, and each that follows another within calmTime waits
// twice as long as that one did. So two managers that disagree about a device do not fight over it.
type repairs struct {
	wait time.Duration
	last time.Time
}

const (
	firstWait   = time.Second
	longestWait = 5 * time.Minute
	calmTime    = 2 * longestWait
)

// due is when the next repair may be.
func (r *repairs) due(now time.Time) time.Time {
	if now.Sub(r.last) > calmTime {
		r.wait = 0
	}
	return r.last.Add(r.wait)
}

// made notes a repair, one that failed too.
func (r *repairs) made(now time.Time) {
	r.wait = min(max(2*r.wait, firstWait), longestWait)
	r.last = now
}

// nudge makes the follower look at the device, if there is one.
func (s *Shaper) nudge() {
	select {
	case s.nudged <- struct{}{}:
	default:
	}
}

// woken is told by the controller what is active when an event has woken it.
func (s *Shaper) woken(active int) {
	gap := activeLookGap
	if active == 0 {
		gap = idleLookGap
	}
	wait := gap - time.Since(time.Unix(0, s.lastLookNs.Load()))
	switch {
	case wait <= 0:
		s.nudge()
	case active == 0 && s.lookDue.CompareAndSwap(false, true):
		// No event may follow this one: not where traffic passes the program by.
		time.AfterFunc(wait, func() {
			s.lookDue.Store(false)
			s.nudge()
		})
	}
}

// follow keeps the device shaped, whatever becomes of it, until ctx ends.
func (s *Shaper) follow(ctx context.Context) error {
	changes, err := notify.Subscribe(s.record.Ifindex, s.name)
	if err != nil {
		return fmt.Errorf("follow %s: %w", s.name, err)
	}
	defer changes.Close()
	var repairs repairs
	timer := time.NewTimer(0) // a first look, for what happened before the subscription
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-s.nudged:
		case <-changes.C:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(settleTime):
			}
		}
		s.lastLookNs.Store(time.Now().UnixNano())
		again, index, err := s.look(ctx, &repairs, changes.Overruns())
		if err != nil && ctx.Err() == nil {
			s.log.Error("follow the device", "device", s.name, "err", err)
			repairs.made(time.Now())
			again = repairs.due(time.Now())
		}
		changes.Follow(index)
		if err := changes.Watch(s.env.pins(s.name)); err != nil {
			s.log.Warn("removed pins are noticed late", "device", s.name, "err", err)
		}
		timer.Stop()
		if !again.IsZero() {
			timer.Reset(time.Until(again))
		}
	}
}

// look reads the device and brings what is on it in step. It returns when it wants to look again,
// never being zero, and the index that the device has.
func (s *Shaper) look(ctx context.Context, repairs *repairs, lost uint64) (again time.Time, index int, err error) {
	l, err := s.env.lockDevice(ctx, s.name)
	if err != nil {
		return time.Time{}, s.record.Ifindex, err
	}
	defer l.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drift.following, s.drift.lost = true, lost
	if err := s.refresh(); err != nil {
		return time.Time{}, s.record.Ifindex, err
	}
	if s.device == nil {
		err := s.awaitReturn(ctx)
		return time.Time{}, s.record.Ifindex, err
	}
	// What others changed can keep the settings from being applied. That is tried first all the same:
	// the device's own change is no drift.
	adaptErr := s.adapt(ctx)
	if s.device == nil {
		return time.Time{}, s.record.Ifindex, nil // gone since; the kernel will tell
	}
	again, err = s.mend(ctx, repairs)
	if err == nil && adaptErr != nil && s.drift.present == "" {
		err = s.adapt(ctx)
	}
	return again, s.record.Ifindex, err
}

// mend repairs what others changed, or tells of it.
func (s *Shaper) mend(ctx context.Context, repairs *repairs) (again time.Time, err error) {
	problems, err := s.problems()
	if err != nil {
		return time.Time{}, err
	}
	if s.detachedByAnother() {
		return time.Time{}, nil
	}
	pinned := true
	if s.datapath != nil {
		if pinned, err = s.datapath.Pinned(s.env.pins(s.name)); err != nil {
			return time.Time{}, err
		}
	}
	if !pinned { // the rates hold all the same, as long as this process lives
		problems = append(problems, fmt.Sprintf("pins are missing in %s", s.env.pins(s.name)))
	}
	found := strings.Join(problems, "; ")
	now := time.Now()
	if found != "" && found != s.drift.present {
		s.drift.detected++
		s.drift.last, s.drift.lastDetected = found, now
		s.log.Warn("another program changed the device", "device", s.name, "found", found, "on_drift", string(s.onDrift()))
	}
	s.drift.present, s.drift.nextRepair = found, time.Time{}
	if found == "" || s.onDrift() == config.DriftReport {
		return time.Time{}, nil
	}
	if due := repairs.due(now); due.After(now) {
		s.drift.nextRepair = due
		return due, nil
	}
	repairs.made(now)
	if !pinned {
		err = errors.Join(s.datapath.Pin(s.env.pins(s.name)), s.datapath.PinLink(s.env.pins(s.name)))
	}
	if err == nil {
		s.takingBack = true
		err = s.run(ctx, s.steps())
		s.takingBack = false
	}
	if err == nil {
		err = s.refresh()
	}
	if err == nil {
		problems, err = s.problems()
	}
	if err == nil && len(problems) > 0 {
		err = fmt.Errorf("put back what is ours on %s: afterwards %s", s.name, strings.Join(problems, "; "))
	}
	if err != nil {
		return time.Time{}, err
	}
	s.drift.present = ""
	s.drift.repaired++
	s.log.Info("put back what is ours", "device", s.name)
	return time.Time{}, nil
}

// detachedByAnother tells whether a command without the daemon, or the daemon's own detach, has taken
// everything off: that is no drift.
func (s *Shaper) detachedByAnother() bool {
	if _, err := s.env.readRecord(s.name); !errors.Is(err, ErrNotAttached) || s.program() == nil {
		return false
	}
	attached, err := s.program().Attached(s.device, s.record.Attachment)
	return err == nil && !attached
}

func (s *Shaper) onDrift() config.OnDrift {
	if s.record.Spec.OnDrift == "" {
		return config.DriftRepair
	}
	return s.record.Spec.OnDrift
}

// adapt brings the settings in step with what the device is like now.
func (s *Shaper) adapt(ctx context.Context) error {
	cfg, err := s.resolve(s.record.Spec)
	if err != nil {
		return err
	}
	was, now := s.applied, s.situation()
	if was == now {
		return nil
	}
	s.log.Info("the device is another now", "device", s.name, "queues", now.queues, "mtu_bytes", now.mtu,
		"link_speed", s.record.LinkSpeed.String(), "bandwidth", cfg.Bandwidth.String(), "xps_changed", was.xps != now.xps)
	s.rates = cfg
	if _, err := s.applyRates(ctx); err != nil {
		return err
	}
	return s.refresh()
}

// awaitReturn attaches anew a device of the name of one that is gone.
func (s *Shaper) awaitReturn(ctx context.Context) error {
	link, err := netlink.LinkByName(s.name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		if !s.drift.gone || s.drift.returned != nil {
			s.log.Warn("the device is gone; waiting for it to come back", "device", s.name)
		}
		s.drift.gone, s.drift.returned = true, nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", s.name, err)
	}
	s.drift.gone = true
	err = s.attachAnew(ctx, link)
	s.drift.gone, s.drift.returned = err != nil, err
	return err
}

// attachAnew attaches a device that takes the place of one that is gone.
func (s *Shaper) attachAnew(ctx context.Context, link netlink.Link) error {
	s.log.Info("the device came back; attaching it anew", "device", s.name)
	if s.stopController != nil {
		s.stopController()
	}
	fresh, err := newShaper(s.env, link, s.record.Spec)
	if err != nil {
		return err
	}
	if s.program() != nil {
		if err := errors.Join(s.teardown(ctx), s.close()); err != nil {
			return err
		}
	}
	s.device, s.seen, s.record, s.rates, s.controller = fresh.device, fresh.seen, fresh.record, fresh.rates, nil
	if err := s.run(ctx, s.steps()); err != nil {
		err = errors.Join(err, s.teardown(context.WithoutCancel(ctx)), s.close())
		s.device = nil // to be tried again
		return err
	}
	return nil
}

// driftStatus is nil where this process does not follow the device.
func (s *Shaper) driftStatus() *api.Drift {
	if !s.drift.following {
		return nil
	}
	d := &api.Drift{
		Policy: string(s.onDrift()), Detected: s.drift.detected, Repaired: s.drift.repaired,
		Last: s.drift.last, NotificationsLost: s.drift.lost,
	}
	if at := s.drift.lastDetected; !at.IsZero() {
		d.LastDetected = &at
	}
	if at := s.drift.nextRepair; !at.IsZero() {
		d.NextRepair = &at
	}
	return d
}

// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/qdisc"
	"github.com/cakectl/cakectl/pkg/rates"
)

// Preview says what an [Attach] would do.
type Preview struct {
	// Spec is what the device would be shaped to, and Rates what that comes to.
	Spec      config.Spec
	Rates     rates.Config
	LinkSpeed rates.Rate // 0 is unknown

	Queues         int // that the maps have room for
	FlowTableBytes int
	// GSOMaxBytes and GSOMaxSegments are the limits that super-packets would have.
	GSOMaxBytes, GSOMaxSegments uint32

	// Found says in words what the device is found with.
	Found string
	// Steps says in words what would be done, in order; none where all is in place.
	Steps []string
	// Refused is why the attach would fail, as far as that can be found out without doing it.
	Refused []error
}

// Plan says what [Attach] would do. It touches nothing: the data path is loaded, and let go of again.
func Plan(_ context.Context, env Env, spec config.Spec) (p Preview, err error) {
	device, err := env.find(spec.Device)
	if err != nil {
		return Preview{}, fmt.Errorf("find %s: %w", spec.Device, err)
	}
	if spec.Device, err = env.Recorded(spec.Device); err != nil {
		return Preview{}, err
	}
	if err := env.checkKeep(spec); err != nil {
		p.Refused = append(p.Refused, err)
	}
	s, err := open(env, spec.Device)
	if err != nil && !errors.Is(err, ErrNotAttached) {
		return Preview{}, err
	}
	if err == nil {
		defer func() { err = errors.Join(err, s.Close()) }()
		if err := s.requireHere(); err != nil {
			return p, err
		}
		if s.device != nil && !s.recordLost && s.program() != nil {
			return p, s.previewAdopt(&p, spec)
		}
		p.Steps = append(p.Steps, "clean up what an attach or detach left that was cut short")
	}
	fresh, err := newShaper(env, device, spec)
	if err != nil {
		return Preview{}, err
	}
	return p, fresh.previewNew(&p)
}

func (s *Shaper) previewNew(p *Preview) error {
	p.Found = s.foundInWords()
	options := s.loaderOptions()
	datapath, err := loader.Load(options)
	switch {
	case err == nil:
		if err := datapath.Close(); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrPermission): // what rights are missing is the caller's to say
		p.Refused = append(p.Refused, fmt.Errorf("load the data path: %w", err))
	}
	p.Steps = append(p.Steps, "write down what the device looks like, for detach", "load the data path")
	if err := s.preview(p); err != nil {
		return err
	}
	p.Steps = append(p.Steps, "attach the program at egress, plan the rates")
	return nil
}

// previewAdopt is of a device that goes on: only what is missing is put back.
func (s *Shaper) previewAdopt(p *Preview, spec config.Spec) error {
	before := s.record.Spec
	change, err := changeFrom(before, spec)
	if err != nil {
		return err
	}
	if err := s.refresh(); err != nil {
		return err
	}
	after, err := before.Apply(change)
	if err == nil {
		err = before.CheckLive(after)
	}
	if err == nil && after.Bandwidth != before.Bandwidth {
		err = s.checkPercent(after.Bandwidth)
	}
	if err != nil {
		return err
	}
	if s.rates, err = s.resolve(after); err != nil {
		return err
	}
	s.record.Spec = after
	p.Found = "shaped already: adopted as it is, clocks and counters go on"
	switch {
	case s.old != nil:
		p.Found = "shaped already by another version, with other maps"
		p.Steps = append(p.Steps, "take over from that version; counters start anew")
	case s.record.Build != loader.Build():
		p.Steps = append(p.Steps, "put the program of this version in the place of another's")
	}
	if err := s.preview(p); err != nil {
		return err
	}
	if s.datapath != nil {
		attached, err := s.datapath.Attached(s.device, s.record.Attachment)
		if err != nil {
			return err
		}
		if !attached {
			p.Steps = append(p.Steps, "attach the program at egress, where somebody took it off")
		}
	}
	for _, difference := range config.Differences(before, after) {
		p.Steps = append(p.Steps, "change "+difference)
	}
	return nil
}

// preview is what a new device and an adopted one have in common.
func (s *Shaper) preview(p *Preview) error {
	options := s.loaderOptions()
	p.Spec, p.Rates, p.LinkSpeed = s.record.Spec, s.rates, s.record.LinkSpeed
	p.Queues, p.FlowTableBytes = options.Queues, options.FlowTableBytes()
	if err := s.sizeFQ(); err != nil {
		return err
	}
	steps, err := qdisc.Plan(s.device, s.qdiscs())
	if err != nil {
		p.Refused = append(p.Refused, err)
	}
	p.Steps = append(p.Steps, together(steps)...)
	var capped bool
	p.GSOMaxBytes, p.GSOMaxSegments, capped = qdisc.PlanGSO(s.device, s.record.Found, s.gsoRate())
	if !capped {
		p.Steps = append(p.Steps, fmt.Sprintf("set the device's limits of super-packets to %d bytes and %d segments", p.GSOMaxBytes, p.GSOMaxSegments))
	}
	return nil
}

// together makes one of steps that do the same to the qdiscs of one queue after the other: those whose
// verb and kind are the same.
func together(steps []string) []string {
	var result []string
	for i := 0; i < len(steps); {
		verb := what(steps[i])
		last := i
		for last+1 < len(steps) && what(steps[last+1]) == verb {
			last++
		}
		step := steps[i]
		if last > i {
			step = fmt.Sprintf("%s to %s, %d of them", steps[i], strings.TrimPrefix(steps[last], verb+" "), last-i+1)
		}
		result = append(result, step)
		i = last + 1
	}
	return result
}

// what is a step without the handle at its end.
func what(step string) string {
	if i := strings.LastIndexByte(step, ' '); i >= 0 {
		return step[:i]
	}
	return step
}

// foundInWords says what is at the root of a device that is not shaped.
func (s *Shaper) foundInWords() string {
	found := s.record.Found
	if found.Default() {
		return "with the kernel's default qdiscs"
	}
	text := "with the qdisc " + found.RootKind()
	if lost := found.Unrestorable(); len(lost) > 0 {
		return text + ", which detach could not restore (" + strings.Join(lost, "; ") + ")"
	}
	if s.record.Spec.Replace {
		return text + ", whose place is taken; detach restores it"
	}
	return text
}

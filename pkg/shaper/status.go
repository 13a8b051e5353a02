// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/control"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/qdisc"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

// Status reads from the kernel what is in force on the device.
func (s *Shaper) Status(context.Context) (api.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recordLost {
		return api.Status{}, fmt.Errorf("read the state of %s: it is shaped, but the record of it in %s is gone; cakectl detach %[1]s takes it off and gives the kernel's defaults back", s.name, s.env.RunDir)
	}
	status := api.Status{
		Device:    s.name,
		Attach:    string(s.record.Attachment.Hook),
		Bandwidth: api.BitsPerSec(s.rates.Bandwidth),
		Diffserv:  string(s.record.Spec.Preset),
		Split:     string(s.rates.Split),
		Isolation: string(cmp.Or(s.record.Spec.Isolation, config.IsolateFlows)),
		Flows:     s.record.Spec.Flows,
		Framing:   s.record.Spec.Framing,
		WholeGSO:  s.record.Spec.WholeGSO,
		Classes: api.Classes{
			Map:        append([]tins.Rule{}, s.record.Spec.Map...),
			FwmarkMask: s.record.Spec.FwmarkMask,
			InnerDSCP:  s.record.Spec.InnerDSCP,
			Wash:       s.record.Spec.Wash,
		},
		Queues:   api.Queues{Total: s.queuesInUse()},
		Bypassed: map[string]uint64{},
		Daemon:   s.env.ControllerPID(s.name),
	}
	if err := s.refresh(); err != nil {
		return status, err
	}
	if s.device != nil {
		status.Device = s.device.Attrs().Name
		status.RootQdisc = s.seen.RootKind()
		status.Queues.Total = s.queuesInUse()
	}
	problems, err := s.problems()
	if err != nil {
		return status, err
	}
	if len(problems) > 0 || s.datapath != nil && s.device != nil && s.situation() != s.applied {
		s.nudge() // what the kernel did not tell of
	}
	status.Drift = s.driftStatus()
	status.Enforcing = len(problems) == 0
	status.Reason = strings.Join(problems, "; ")
	if s.datapath == nil {
		if s.old != nil {
			status.Reason = strings.Join(append(problems, s.errOtherVersion().Error()), "; ")
		}
		return status, nil
	}
	if err := s.readTins(&status); err != nil {
		return status, err
	}
	for queue := range status.Queues.Total {
		counters, err := s.datapath.QueueCounters(queue)
		if err != nil {
			return status, err
		}
		status.Queues.Counters = append(status.Queues.Counters, api.QueueCounters{Bytes: counters.Bytes, Packets: counters.Packets})
	}
	if status.Bypassed, err = s.datapath.Bypassed(); err != nil {
		return status, err
	}
	foreseen, err := s.datapath.Foresight()
	if err != nil {
		return status, err
	}
	status.Foresight = foresight(foreseen)
	status.Controller, err = s.controllerStatus()
	return status, err
}

// problems lists, in words, what keeps the rates from being enforced.
func (s *Shaper) problems() ([]string, error) {
	var problems []string
	if s.device == nil && s.drift.returned != nil {
		return []string{fmt.Sprintf("the device came back, and is not attached: %v", s.drift.returned)}, nil
	}
	if s.device == nil {
		return []string{"the device is gone"}, nil
	}
	program := s.program()
	if program == nil {
		if s.record.Attachment.Hook == "" {
			return []string{"its attach is under way, or was cut short"}, nil
		}
		return []string{"the pinned program and maps are gone"}, nil
	}
	attached, err := program.Attached(s.device, s.record.Attachment)
	if err != nil {
		return nil, err
	}
	if !attached {
		problems = append(problems, fmt.Sprintf("the program is not at the %s egress hook", s.record.Attachment.Hook))
	}
	missing, err := qdisc.Verify(s.device, qdisc.Options{FQ: s.record.FQ})
	if err != nil {
		return nil, err
	}
	problems = append(problems, missing...)
	return append(problems, qdisc.VerifyGSO(s.device, s.record.Found, s.gsoRate())...), nil
}

func (s *Shaper) readTins(status *api.Status) error {
	active, err := s.datapath.Active(nil)
	if err != nil {
		return err
	}
	grants, err := s.datapath.Cells()
	if err != nil {
		return err
	}
	def, err := tins.Lookup(string(s.record.Spec.Preset))
	if err != nil {
		return err
	}
	activeQueues := map[int]bool{}
	for _, cell := range active {
		activeQueues[cell.Queue] = true
	}
	status.Queues.Active = len(activeQueues)
	for _, index := range def.DisplayOrder {
		counters, err := s.datapath.TinCounters(index)
		if err != nil {
			return err
		}
		config := s.rates.Tins[index]
		tin := api.Tin{
			Name:           config.Name,
			Rate:           api.BitsPerSec(config.Rate),
			Ceil:           api.BitsPerSec(min(config.Ceil, s.rates.Bandwidth)),
			SentBytes:      counters.Bytes,
			SentPackets:    counters.Packets,
			DelayedPackets: counters.DelayedPackets,
			ECNMarked:      counters.ECNMarkedPackets,
			DroppedPackets: map[string]uint64{},
			DroppedBytes:   map[string]uint64{},
			Sojourn:        sojourn(counters),
			Queues:         tinQueues(index, active, grants),
		}
		for reason, drops := range counters.Drops {
			name := loader.DropReason(reason).String()
			tin.DroppedPackets[name], tin.DroppedBytes[name] = drops.Packets, drops.Bytes
		}
		for _, queue := range tin.Queues {
			if queue.Active {
				tin.ActiveQueues++
				tin.ActiveFlows += queue.ActiveFlows
			}
		}
		status.Tins = append(status.Tins, tin)
	}
	return nil
}

// tinQueues lists the queues on which a tin is active or has a rate.
func tinQueues(tin int, active []rates.Cell, grants []rates.Grant) []api.TinQueue {
	byQueue := map[int]*api.TinQueue{}
	at := func(queue int) *api.TinQueue {
		if byQueue[queue] == nil {
			byQueue[queue] = &api.TinQueue{Queue: queue}
		}
		return byQueue[queue]
	}
	for _, cell := range active {
		if cell.Tin == tin {
			at(cell.Queue).Active, at(cell.Queue).ActiveFlows = true, int(cell.Flows)
		}
	}
	for _, grant := range grants {
		if grant.Tin == tin {
			at(grant.Queue).EffectiveRate = api.BitsPerSec(grant.Rate)
		}
	}
	queues := []api.TinQueue{}
	for _, queue := range byQueue {
		queues = append(queues, *queue)
	}
	slices.SortFunc(queues, func(a, b api.TinQueue) int { return cmp.Compare(a.Queue, b.Queue) })
	return queues
}

// sojourn turns the data path's buckets into a histogram and its quantiles, which are as coarse as
// the buckets: the upper bound of the bucket that the quantile falls into.
func sojourn(c loader.TinCounters) api.Sojourn {
	result := api.Sojourn{Sum: c.SojournSum.Seconds()}
	var total uint64
	for bucket, packets := range c.SojournBuckets {
		total += packets
		bound := loader.SojournBound(bucket).Seconds()
		if bucket == len(c.SojournBuckets)-1 {
			bound = math.Inf(1)
		}
		result.Buckets = append(result.Buckets, api.SojournBucket{LE: api.Seconds(bound), Cumulative: total})
	}
	quantile := func(q float64) float64 {
		rank := uint64(math.Ceil(q * float64(total)))
		if rank == 0 {
			return 0
		}
		for bucket, b := range result.Buckets {
			if b.Cumulative >= rank {
				return loader.SojournBound(bucket).Seconds()
			}
		}
		return 0
	}
	result.P50, result.P99 = quantile(0.5), quantile(0.99)
	return result
}

// staleAfter is how long an event waits at most for a controller that does its work: one that answers
// a storm holds itself back for a tenth of this.
const staleAfter = time.Second

func (s *Shaper) controllerStatus() (api.Controller, error) {
	counters, err := s.datapath.ControllerCounters()
	if err != nil {
		return api.Controller{}, err
	}
	lost, err := s.datapath.EventsLost()
	if err != nil {
		return api.Controller{}, err
	}
	unanswered, oldest, err := s.datapath.Unanswered()
	if err != nil {
		return api.Controller{}, err
	}
	status := api.Controller{
		Events:              counters.Events,
		RecomputesByTrigger: map[string]uint64{},
		RateWrites:          counters.RateWrites,
		UnchangedRecomputes: counters.UnchangedRecomputes,
		EventsLost:          lost,
		State:               processState(s.env.ControllerPID(s.name)),
		UnansweredEvents:    unanswered,
	}
	if unanswered > 0 {
		age := control.Now() - oldest
		status.UnansweredSeconds = age.Seconds()
		status.Stale = age > staleAfter
	}
	for trigger, n := range counters.Recomputes {
		status.Recomputes += n
		status.RecomputesByTrigger[loader.Trigger(trigger).String()] = n
	}
	if !counters.LastChange.IsZero() {
		status.LastChange = &counters.LastChange
	}
	return status, nil
}

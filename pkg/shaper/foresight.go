// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/loader"
)

// CheckQueues compares, for so long, the transmit queues that the data path foresees with those that
// packets go to, and returns what was counted in that time.
func (s *Shaper) CheckQueues(ctx context.Context, duration time.Duration) (counted api.Foresight, err error) {
	before, check, err := s.beginQueueCheck(ctx, duration)
	if err != nil {
		return counted, fmt.Errorf("check the queues of %s: %w", s.name, err)
	}
	defer func() { err = errors.Join(err, check.Close()) }()
	select {
	case <-ctx.Done():
		return counted, ctx.Err()
	case <-time.After(duration):
	}
	after, err := s.datapath.Foresight()
	if err != nil {
		return counted, err
	}
	for by := range after.Matched {
		after.Matched[by] -= before.Matched[by]
		after.Mismatched[by] -= before.Mismatched[by]
	}
	return foresight(after), nil
}

func (s *Shaper) beginQueueCheck(ctx context.Context, duration time.Duration) (before loader.Foresight, check *loader.QueueCheck, err error) {
	l, err := s.env.lockDevice(ctx, s.name)
	if err != nil {
		return before, nil, err
	}
	defer l.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.device == nil || s.datapath == nil {
		return before, nil, ErrNotAttached
	}
	if before, err = s.datapath.Foresight(); err != nil {
		return before, nil, err
	}
	if check, err = s.datapath.CheckQueues(); err != nil {
		return before, nil, err
	}
	if err = s.datapath.CheckQueuesFor(duration); err != nil {
		return before, nil, errors.Join(err, check.Close())
	}
	return before, check, nil
}

func foresight(f loader.Foresight) api.Foresight {
	result := api.Foresight{Matched: map[string]uint64{}, Mismatched: map[string]uint64{}, DriverChooses: f.DriverChooses}
	for by := range f.Matched {
		name := loader.QueueDecision(by).String()
		result.Matched[name], result.Mismatched[name] = f.Matched[by], f.Mismatched[by]
	}
	return result
}

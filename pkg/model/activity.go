// SPDX-License-Identifier: BSD-2-Clause

package model

import "github.com/cakectl/cakectl/pkg/rates"

// note takes down that the shard is busy.
func (s *shard) note(untilNs int64) {
	s.busyUntilNs = max(s.busyUntilNs, untilNs)
	s.active = true
}

// Sweep finds the shards that went idle: their last packet left so long ago that no flow counts.
func (p *Path) Sweep(nowNs int64) {
	p.rollEpoch(nowNs)
	for key, s := range p.shards {
		if s.active && nowNs-s.busyUntilNs >= 2*holdEpochs*p.settings.EpochNs {
			p.addFlows(&p.tins[key.tin], s.roll(p.epoch))
			s.active = false
		}
	}
}

// Active is the (queue, tin)s that are active, in no order, as [rates.Plan] wants them.
func (p *Path) Active() []rates.Cell {
	var cells []rates.Cell
	for key, s := range p.shards {
		if s.active {
			cells = append(cells, rates.Cell{Queue: key.queue, Tin: key.tin, Flows: uint32(max(s.flows, 1))})
		}
	}
	return cells
}

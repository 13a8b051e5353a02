// SPDX-License-Identifier: BSD-2-Clause

package model

// aqmPhase is where a flow stands with CoDel.
type aqmPhase int

const (
	// aqmBelow: the latest sojourn was below the target.
	aqmBelow aqmPhase = iota
	// aqmAbove: above it, not yet for an interval.
	aqmAbove
	// aqmSignalling: above it for an interval and more: signals, ever closer to each other.
	aqmSignalling
)

const (
	// aqmMemoryIntervals: a flow that comes back to signalling within so many intervals goes on
	// where it was.
	aqmMemoryIntervals = 16

	// aqmRootBits are the fractional bits of a root, and aqmRootSteps the Newton steps from one to
	// the next.
	aqmRootBits  = 16
	aqmRootSteps = 4
	aqmRootMax   = 1<<aqmRootBits - 1
)

// aqm is CoDel for one flow.
type aqm struct {
	phase aqmPhase
	// nextNs is when the next signal is due, or since when the sojourn has been below the target.
	nextNs int64
	// count is the number of signals so far, and root 1/sqrt of that.
	count int64
	root  uint64
}

// aqmRoot is 1/sqrt(count), from the root of a count one less or of a higher one.
func aqmRoot(root uint64, count int64) uint64 {
	for range aqmRootSteps {
		factor := 3<<(2*aqmRootBits) - uint64(count)*root*root
		root = min((factor>>2)*root>>(2*aqmRootBits-1), aqmRootMax)
	}
	return root
}

// signals reports whether the packet that arrives now, and will wait for so long, is to carry a
// signal.
func (a *aqm) signals(nowNs, sojournNs, targetNs, intervalNs int64) bool {
	sinceNs := nowNs - a.nextNs
	if sojournNs <= targetNs {
		if a.phase == aqmSignalling {
			a.nextNs = nowNs
		}
		a.phase = aqmBelow
		return false
	}
	switch a.phase {
	case aqmBelow:
		if sinceNs > aqmMemoryIntervals*intervalNs {
			a.count = 0
		}
		a.phase = aqmAbove
		a.nextNs = nowNs + intervalNs
		return false
	case aqmAbove:
		if sinceNs < 0 {
			return false
		}
		a.phase = aqmSignalling
		a.count = max(a.count-2, 1)
		if a.count == 1 {
			a.root = aqmRootMax
		}
		a.nextNs = nowNs
	case aqmSignalling:
		if sinceNs < 0 {
			return false
		}
		a.count = min(a.count+1, 1<<16-1)
	}
	a.root = aqmRoot(a.root, a.count)
	a.nextNs += intervalNs * int64(a.root) >> aqmRootBits
	return true
}

// SPDX-License-Identifier: BSD-2-Clause

package model

const (
	// flowWays is the number of flows that a set of the flow table holds.
	flowWays = 8

	// epochsAhead is the number of epochs, from the present one on, that flows are counted in.
	epochsAhead = 8
)

// flow is what is kept of a flow.
type flow struct {
	// tag is the hash; 0 is an empty way.
	tag uint32
	// counted is the last of its shard's epochs that the flow is counted in.
	counted int64
	// guaranteeNs is when the next byte leaves at the guaranteed rate.
	guaranteeNs int64
	// departureNs is the latest departure given: nothing of this flow may leave earlier.
	departureNs int64
	aqm         aqm
}

// atRest: the flow could be forgotten without any of its packets leaving earlier for it.
func (f *flow) atRest(nowNs int64) bool { return f.departureNs <= nowNs && f.guaranteeNs <= nowNs }

func (f *flow) isCounted(epoch int64) bool { return f.counted >= epoch }

// flowSet is the flows whose hashes share their lower bits.
type flowSet [flowWays]flow

// find is the way of a hash: its own, else one of a flow at rest that does not count, else one of a
// flow at rest, else one that it has to share. A way that changes hands starts with clean clocks.
// Ways are tried in order from one that the hash picks.
func (s *flowSet) find(hash uint32, epoch, nowNs int64) *flow {
	tag := max(hash, 1)
	at := func(i uint32) *flow { return &s[(hash>>24+i)%flowWays] }
	for i := range uint32(flowWays) {
		if at(i).tag == tag {
			return at(i)
		}
	}
	for _, counted := range []bool{false, true} {
		for i := range uint32(flowWays) {
			if f := at(i); f.atRest(nowNs) && f.isCounted(epoch) == counted {
				*f = flow{tag: tag, counted: epoch - 1}
				return f
			}
		}
	}
	return at(0)
}

// shard is the activity of one (queue, tin).
type shard struct {
	epoch        int64
	epochStartNs int64
	// flows is the number of flows that count now; flowsOf those of this epoch and the ones to
	// come.
	flows   int64
	flowsOf map[int64]int64
	// active: the controller was told of it. busyUntilNs is the latest departure of a flow that
	// waits.
	active      bool
	busyUntilNs int64
}

// roll starts a new epoch when the old one is over, and returns by how much the count of flows
// changed.
func (s *shard) roll(nowNs, epochNs int64) int64 {
	passed := (nowNs - s.epochStartNs) / epochNs
	if passed <= 0 {
		return 0
	}
	s.epochStartNs += passed * epochNs
	if passed >= epochsAhead {
		passed = epochsAhead
		s.epochStartNs = nowNs
	}
	for range passed {
		delete(s.flowsOf, s.epoch)
		s.epoch++
	}
	before := s.flows
	s.flows = s.flowsOf[s.epoch]
	return s.flows - before
}

// count counts a flow in every epoch from this one to the one after that of its departure, as far as
// there are counters. It reports whether the flow is new in this epoch.
func (s *shard) count(f *flow, departureNs, epochNs int64) bool {
	until := s.epoch + 1 + max(0, departureNs-s.epochStartNs)/epochNs
	until = min(until, s.epoch+epochsAhead-1)
	from := s.epoch
	isNew := !f.isCounted(s.epoch)
	if isNew {
		s.flows++
	} else {
		from = f.counted + 1
	}
	for n := from; n <= until; n++ {
		s.flowsOf[n]++
		f.counted = n
	}
	return isNew
}

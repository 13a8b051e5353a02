// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"cmp"
	"slices"
)

const (
	// flowWays is the number of flows that a set of the flow table holds.
	flowWays = 8

	// Epochs can be told apart, from the present one on; holdEpochs are those that a flow at most
	// counts after its last packet has left.
	Epochs     = 128
	holdEpochs = 32

	// countsPackets: a flow counts once it has sent more than so many full packets without catching up
	// with itself.
	countsPackets = 4

	// silentNs is the silence after which a flow is forgotten before others.
	silentNs = 1 << 30
)

// flow is what is kept of a flow.
type flow struct {
	// tag is the hash; 0 is an empty way.
	tag uint32
	// counted is the last epoch that the flow is counted in, countedSince the first of those
	// without a gap.
	counted, countedSince int64
	// guaranteeNs is when the next byte leaves at the guaranteed rate.
	guaranteeNs int64
	// departureNs is the latest departure given: nothing of this flow may leave earlier.
	departureNs int64
	// waitedBytes is what has come of it since, and with, the packet that last found nothing waiting; no
	// longer added up once it is enough to count.
	waitedBytes int64
	aqm         aqm
}

// atRest: the flow could be forgotten without any of its packets leaving earlier for it.
func (f *flow) atRest(nowNs int64) bool { return f.departureNs <= nowNs && f.guaranteeNs <= nowNs }

// fitness says whether the flow may be forgotten for another, and how gladly: one that has been silent
// for long, else one that does not count, else any at rest.
func (f *flow) fitness(epoch, nowNs int64) int {
	switch {
	case !f.atRest(nowNs):
		return 0
	case f.isCounted(epoch):
		return 1
	case nowNs-f.departureNs < silentNs:
		return 2
	}
	return 3
}

func (f *flow) isCounted(epoch int64) bool { return f.counted >= epoch }

// counts takes down bytes of the flow, which is backlogged or not, and says whether it is to count.
func (f *flow) counts(epoch int64, backlogged bool, bytes, fullPacketBytes int64) bool {
	enough := countsPackets * fullPacketBytes
	if !backlogged {
		f.waitedBytes = 0
	}
	if f.waitedBytes <= enough {
		f.waitedBytes += bytes
	}
	return backlogged && (f.waitedBytes > enough || f.isCounted(epoch))
}

// flowSet is the flows whose hashes share some bits.
type flowSet [flowWays]flow

// setsOf are the numbers of the two sets that a flow may be in.
func setsOf(hash, sets uint32) [2]uint32 { return [2]uint32{hash % sets, hash >> 13 % sets} }

// findFlow is the flow of a hash in one of two sets: its own, else in place of the one that is most fit
// to be forgotten, else one that it has to share. A way that changes hands starts with
// clean clocks. Ways are tried in order from one that the hash picks.
func findFlow(sets [2]*flowSet, hash uint32, epoch, nowNs int64) *flow {
	tag := max(hash, 1)
	var ways []*flow
	for _, set := range sets {
		for i := range uint32(flowWays) {
			ways = append(ways, &set[(hash>>16+i)%flowWays])
		}
	}
	for _, f := range ways {
		if f.tag == tag {
			return f
		}
	}
	// The first of the best.
	best := slices.MaxFunc(ways, func(a, b *flow) int { return cmp.Compare(a.fitness(epoch, nowNs), b.fitness(epoch, nowNs)) })
	if best.fitness(epoch, nowNs) == 0 {
		return ways[0]
	}
	*best = flow{tag: tag, counted: epoch - 1}
	return best
}

// rollEpoch brings the epoch up to now.
func (p *Path) rollEpoch(nowNs int64) {
	if passed := (nowNs - p.epochStartNs) / p.settings.EpochNs; passed > 0 {
		p.epochStartNs += passed * p.settings.EpochNs
		p.epoch += min(passed, Epochs)
	}
}

// shard is the activity of one (queue, tin).
type shard struct {
	// epoch is the one that flows is of.
	epoch int64
	flows int64
	// ends says of how many flows each epoch is the last that they count in.
	ends map[int64]int64
	// active: the controller was told of it. busyUntilNs is the latest departure of a flow that
	// waits.
	active      bool
	busyUntilNs int64
}

// roll brings a shard to the present epoch, and returns by how much the count of flows changed.
func (s *shard) roll(epoch int64) int64 {
	s.epoch = epoch
	var ended int64
	for last, flows := range s.ends {
		if last < epoch {
			ended += flows
			delete(s.ends, last)
		}
	}
	s.flows -= ended
	return -ended
}

// count counts a flow until its departure, and for as long after that as it has counted before. It
// reports whether the flow did not count yet. epochStartNs is when the present epoch began.
func (s *shard) count(f *flow, departureNs, epochStartNs, epochNs int64) bool {
	until := max(0, departureNs-epochStartNs) / epochNs
	if f.isCounted(s.epoch) {
		// Ages are kept in 16 bits.
		until += min(int64(uint16(s.epoch-f.countedSince)), holdEpochs)
		until = s.epoch + min(until, Epochs-1)
		if until > f.counted {
			s.ends[f.counted]--
			s.ends[until]++
			f.counted = until
		}
		return false
	}
	until = s.epoch + min(until, Epochs-1)
	s.flows++
	s.ends[until]++
	f.counted, f.countedSince = until, s.epoch
	return true
}

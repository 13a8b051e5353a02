// SPDX-License-Identifier: BSD-2-Clause

package meter

import (
	"math"
	"slices"
	"time"
)

// Series is what a meter counted: bytes of frames, by millisecond and class.
type Series struct {
	// Start is when the first millisecond began, by [Now].
	Start time.Duration
	slots []meterSlot
}

// slot is the index of the millisecond that holds a time, kept inside the series.
func (s *Series) slot(t time.Duration) int {
	return min(max(int((t-s.Start)/time.Millisecond), 0), len(s.slots))
}

// Bytes counts what arrived from one time (inclusive) to another (exclusive) of the given classes,
// of all classes if none is given. Times are rounded down to milliseconds.
func (s *Series) Bytes(from, to time.Duration, classes ...int) uint64 {
	total := uint64(0)
	for _, slot := range s.slots[s.slot(from):max(s.slot(from), s.slot(to))] {
		total += slot.sum(classes)
	}
	return total
}

func (s meterSlot) sum(classes []int) uint64 {
	total := uint64(0)
	if len(classes) == 0 {
		for _, bytes := range s.Bytes {
			total += bytes
		}
		return total
	}
	for _, class := range classes {
		total += s.Bytes[class]
	}
	return total
}

// Rate is the average from one time to another, in bits per second.
func (s *Series) Rate(from, to time.Duration, classes ...int) float64 {
	first, last := s.slot(from), s.slot(to)
	if last <= first {
		return 0
	}
	return float64(s.Bytes(from, to, classes...)) * 8 * 1000 / float64(last-first)
}

// Rates are averages over consecutive intervals, in bits per second: how throughput went over time.
// An incomplete interval at the end is left out.
func (s *Series) Rates(from, to, interval time.Duration, classes ...int) []float64 {
	var rates []float64
	for t := from; t+interval <= to; t += interval {
		rates = append(rates, s.Rate(t, t+interval, classes...))
	}
	return rates
}

// First is when the first packet at or after a time arrived, to the millisecond; ok is false if
// none did.
func (s *Series) First(from time.Duration) (t time.Duration, ok bool) {
	for i := s.slot(from); i < len(s.slots); i++ {
		if s.slots[i].sum(nil) > 0 {
			return s.Start + time.Duration(i)*time.Millisecond, true
		}
	}
	return 0, false
}

// Windows describes the rates of all windows of one length, in bits per second.
type Windows struct {
	Max, P99 float64
}

// Windows looks at every window of a length (whole milliseconds) that begins and ends within an
// interval, one beginning at each millisecond. Without any it returns NaNs.
func (s *Series) Windows(from, to, length time.Duration) Windows {
	size := int(length / time.Millisecond)
	slots := s.slots[s.slot(from):max(s.slot(from), s.slot(to))]
	if size == 0 || len(slots) < size {
		return Windows{math.NaN(), math.NaN()}
	}
	sums := make([]uint64, 0, len(slots)-size+1)
	sum := uint64(0)
	for i, slot := range slots {
		sum += slot.sum(nil)
		if i >= size {
			sum -= slots[i-size].sum(nil)
		}
		if i >= size-1 {
			sums = append(sums, sum)
		}
	}
	slices.Sort(sums)
	perSecond := func(bytes uint64) float64 { return float64(bytes) * 8 * 1000 / float64(size) }
	// The smallest value that at least 99 % are not above.
	p99 := sums[(len(sums)*99+99)/100-1]
	return Windows{Max: perSecond(sums[len(sums)-1]), P99: perSecond(p99)}
}

// HeldSince is from when on a rate (in bits per second) was held for good: every window of a length
// that begins then or later and ends by to is within a share of the rate. It is from if all are.
func (s *Series) HeldSince(from, to, length time.Duration, rate, within float64) time.Duration {
	since := from
	for t := from; t+length <= to; t += time.Millisecond {
		if math.Abs(s.Rate(t, t+length)/rate-1) > within {
			since = t + time.Millisecond
		}
	}
	return since
}

// ReachedAt is when a rate (in bits per second) was reached: the beginning of the first window of a
// length, from the first time on, that is within a share of it. ok is false if there is none by to.
func (s *Series) ReachedAt(from, to, length time.Duration, rate, within float64) (t time.Duration, ok bool) {
	for t := from; t+length <= to; t += time.Millisecond {
		if math.Abs(s.Rate(t, t+length)/rate-1) <= within {
			return t, true
		}
	}
	return 0, false
}

// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"math/bits"

	"github.com/cakectl/cakectl/pkg/rates"
)

// pace is a rate as the nanoseconds of one byte, with 24 fractional bits; 0 is no time at all. The
// data path computes in these, so its rounding is the rule's.
type pace uint64

func paceOf(rate rates.Rate) pace { return pace(rates.NsPerByteQ24(rate)) }

// costNs is the time of so many bytes, rounded down.
func (p pace) costNs(bytes int64) int64 {
	hi, lo := bits.Mul64(uint64(bytes), uint64(p))
	return int64(hi<<40 | lo>>24)
}

// clock is when all that was taken of a rate would have left.
type clock int64

// take advances the clock. Idle time earns no credit: a clock in the past is first brought to now.
func (c *clock) take(nowNs, costNs int64) {
	*c = max(*c, clock(nowNs)) + clock(costNs)
}

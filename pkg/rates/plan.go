// SPDX-License-Identifier: BSD-2-Clause

package rates

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// Split is the policy that divides a tin's share among its active queues.
type Split string

const (
	// SplitFlows divides in proportion to the active flows of each queue. It is the default.
	SplitFlows Split = "flows"
	// SplitEqual gives every active queue of the tin the same, which is cake_mq's rule.
	SplitEqual Split = "equal"
)

// ParseSplit reads the name of a policy.
func ParseSplit(name string) (Split, error) {
	switch s := Split(name); s {
	case SplitFlows, SplitEqual:
		return s, nil
	}
	return "", fmt.Errorf("unknown split %q: want %s or %s", name, SplitFlows, SplitEqual)
}

// TinConfig is what the plan has to know about one tin.
type TinConfig struct {
	Name string
	// Rate is the threshold: guaranteed, and priority up to it.
	Rate Rate
	// Explicit marks a Rate that the user set: it is served before the preset's thresholds.
	Explicit bool
	// Ceil is the hard cap. Unlimited, or 0, is none.
	Ceil Rate
}

// Config is the part of a device's configuration that rates depend on.
type Config struct {
	Bandwidth Rate
	Split     Split
	// Tins are indexed by tin; a higher index has the higher priority.
	Tins []TinConfig
	// DefaultTin is the index of the tin of unmarked traffic.
	DefaultTin int
}

// Cell is one (queue, tin) that is active: it has at least one active flow.
type Cell struct {
	Queue, Tin int
	Flows      uint32
}

// Grant is the guaranteed (effective) rate of one (queue, tin).
type Grant struct {
	Queue, Tin int
	Rate       Rate
}

// starvationShift makes the least share of an active tin: 1/64 of the bandwidth.
const starvationShift = 6

// Plan divides the bandwidth over the active cells: first over the tins ([TinShares]), then each
// tin's share over its own active queues by cfg.Split. It returns one grant per active cell, sorted
// by tin, then queue, whatever the order of the input.
//
// The grants of a tin add up to its share exactly. A cell without flows, or of a tin that cfg
// does not have, is not active and gets no grant. With an unlimited bandwidth every grant is Unlimited.
func Plan(cfg Config, active []Cell) []Grant {
	return new(Planner).Plan(cfg, active)
}

// TinShares is the guaranteed share of each tin, 0 where activeTins is false or ends.
//
//  1. No active tin starves: each gets 1/64 of the bandwidth.
//  2. Tins whose rate the user set get up to it, highest priority first.
//  3. The other tins get up to their threshold, highest priority first.
//  4. What remains goes to the active tins in proportion to their rates.
//
// No tin gets more than its ceiling. The shares add up to the bandwidth exactly, or to
// the sum of the active tins' ceilings where that is less.
func TinShares(cfg Config, activeTins []bool) []Rate {
	return tinShares(cfg, activeTins, nil)
}

// Planner makes plans as [Plan] does, in buffers that it uses again: a Grant slice is valid until
// the next call. The zero Planner is ready; it is not safe for concurrent use.
type Planner struct {
	cells      []Cell
	activeTins []bool
	shares     []Rate
	grants     []Grant
}

// Plan is the function [Plan].
func (p *Planner) Plan(cfg Config, active []Cell) []Grant {
	p.activeTins = slices.Grow(p.activeTins[:0], len(cfg.Tins))[:len(cfg.Tins)]
	clear(p.activeTins)
	p.cells = p.cells[:0]
	for _, c := range active {
		if c.Flows > 0 && c.Tin >= 0 && c.Tin < len(cfg.Tins) {
			p.cells = append(p.cells, c)
			p.activeTins[c.Tin] = true
		}
	}
	slices.SortFunc(p.cells, func(a, b Cell) int {
		return cmp.Or(cmp.Compare(a.Tin, b.Tin), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Flows, b.Flows))
	})
	p.shares = tinShares(cfg, p.activeTins, p.shares[:0])
	p.grants = p.grants[:0]
	for start := 0; start < len(p.cells); {
		tin := p.cells[start].Tin
		end := start
		for end < len(p.cells) && p.cells[end].Tin == tin {
			end++
		}
		p.divide(cfg.Split, p.shares[tin], p.cells[start:end])
		start = end
	}
	return p.grants
}

// divide appends the grants of one tin's cells, which share out exactly share.
//
// Rounding down leaves less than a bit of each cell; the first queues get these bits, one each. So
// a queue never gets less because its own flows became more: while its part stays the same, the
// parts of the others only shrink, which leaves at least as many bits over.
func (p *Planner) divide(split Split, share Rate, cells []Cell) {
	if share == Unlimited {
		for _, c := range cells {
			p.grants = append(p.grants, Grant{Queue: c.Queue, Tin: c.Tin, Rate: Unlimited})
		}
		return
	}
	weight := func(c Cell) uint64 {
		if split == SplitEqual {
			return 1
		}
		return uint64(c.Flows)
	}
	var total uint64
	for _, c := range cells {
		total += weight(c)
	}
	first, left := len(p.grants), share
	for _, c := range cells {
		rate := portion(share, weight(c), total)
		left -= rate
		p.grants = append(p.grants, Grant{Queue: c.Queue, Tin: c.Tin, Rate: rate})
	}
	for i := range int(left) {
		p.grants[first+i].Rate++
	}
}

// portion is weight's part of share: share * weight / total, rounded down.
// weight is at most total, which is not 0, so the quotient fits.
func portion(share Rate, weight, total uint64) Rate {
	hi, lo := bits.Mul64(uint64(share), weight)
	quotient, _ := bits.Div64(hi, lo, total)
	return Rate(quotient)
}

// tinShares is TinShares, appending to shares.
func tinShares(cfg Config, activeTins []bool, shares []Rate) []Rate {
	for range cfg.Tins {
		shares = append(shares, 0)
	}
	active := func(i int) bool { return i < len(activeTins) && activeTins[i] }
	if cfg.Bandwidth == Unlimited {
		for i := range shares {
			if active(i) {
				shares[i] = Unlimited
			}
		}
		return shares
	}
	left := cfg.Bandwidth
	ceiling := func(i int) Rate {
		if c := cfg.Tins[i].Ceil; c != 0 {
			return min(c, cfg.Bandwidth)
		}
		return cfg.Bandwidth
	}
	raise := func(i int, to Rate) {
		if to = min(to, ceiling(i)); to > shares[i] {
			more := min(to-shares[i], left)
			shares[i] += more
			left -= more
		}
	}
	for i := range shares {
		if active(i) {
			raise(i, cfg.Bandwidth>>starvationShift)
		}
	}
	for _, explicit := range [...]bool{true, false} {
		for i, tin := range slices.Backward(cfg.Tins) {
			if active(i) && tin.Explicit == explicit {
				raise(i, tin.Rate)
			}
		}
	}
	// What is left goes round in proportion until all of it is given or every tin is at its
	// ceiling. Each round but the last puts at least one tin at its ceiling.
	weight := func(i int) uint64 { return uint64(min(max(cfg.Tins[i].Rate, 1), cfg.Bandwidth)) }
	for left > 0 {
		var total uint64
		for i := range shares {
			if active(i) && shares[i] < ceiling(i) {
				total += weight(i)
			}
		}
		if total == 0 {
			break
		}
		rest, capped := left, false
		for i := range shares {
			if active(i) && shares[i] < ceiling(i) {
				part := portion(rest, weight(i), total)
				capped = capped || part >= ceiling(i)-shares[i]
				raise(i, shares[i]+part)
			}
		}
		if !capped {
			// Only the few bits that rounding down left over.
			for i := range slices.Backward(shares) {
				if active(i) && left > 0 && shares[i] < ceiling(i) {
					raise(i, shares[i]+1)
				}
			}
		}
	}
	return shares
}

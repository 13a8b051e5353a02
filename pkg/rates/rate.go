// SPDX-License-Identifier: BSD-2-Clause

package rates

import (
	"math"
	"strconv"
	"strings"
)

// Rate is a rate in bits per second.
type Rate uint64

// Decimal units, as in tc(8).
const (
	Bit  Rate = 1
	Kbit      = 1000 * Bit
	Mbit      = 1000 * Kbit
	Gbit      = 1000 * Mbit
	Tbit      = 1000 * Gbit
)

const (
	// Unlimited means that no rate is enforced.
	Unlimited Rate = math.MaxUint64

	// MinBandwidth and MaxBandwidth bound the bandwidth of a device.
	MinBandwidth = 64 * Kbit
	MaxBandwidth = 400 * Gbit

	// Slowest is the slowest rate that the data path is asked to hold:
	// the fixed point of [NsPerByteQ24] ends just below it.
	Slowest = 8 * Kbit
)

// BytesPerSecond converts r to bytes per second, the base unit of the metrics.
// Unlimited is +Inf.
func (r Rate) BytesPerSecond() float64 {
	if r == Unlimited {
		return math.Inf(1)
	}
	return float64(r) / 8
}

// String writes r in the largest unit that shows it exactly with at most three decimals,
// such as "2gbit", "1.5mbit" or "999bit". [ParseValue] reads it back.
func (r Rate) String() string {
	if r == Unlimited {
		return "unlimited"
	}
	for _, u := range [...]struct {
		name string
		size Rate
	}{{"tbit", Tbit}, {"gbit", Gbit}, {"mbit", Mbit}, {"kbit", Kbit}} {
		thousandth := u.size / 1000
		if r >= u.size && r%thousandth == 0 {
			return decimal(uint64(r/thousandth), 3) + u.name
		}
	}
	return strconv.FormatUint(uint64(r), 10) + "bit"
}

// decimal writes n / 10^places without trailing zeros.
func decimal(n uint64, places int) string {
	s := strconv.FormatUint(n, 10)
	if missing := places + 1 - len(s); missing > 0 {
		s = strings.Repeat("0", missing) + s
	}
	whole, fraction := s[:len(s)-places], strings.TrimRight(s[len(s)-places:], "0")
	if fraction == "" {
		return whole
	}
	return whole + "." + fraction
}

// SPDX-License-Identifier: BSD-2-Clause

package rates

const (
	// bitNsPerByteQ24 is the time of one byte at 1 bit/s: 8 s in nanoseconds, with 24 fractional bits.
	bitNsPerByteQ24 = 8_000_000_000 << 24

	// MaxNsPerByteQ24 is the slowest pace of the data path, about 7.6 kbit/s. With it the time of
	// a 64 KB packet, length * pace, is below 2^60 and cannot overflow the data path's 64 bits.
	MaxNsPerByteQ24 = 1 << 44
)

// NsPerByteQ24 is the data path's form of a rate: the nanoseconds of one byte with 24 fractional
// bits, 8e9 * 2^24 / r rounded to the nearest. Rates slower than [MaxNsPerByteQ24], zero among them,
// get that pace; the fastest pace is 1. Unlimited is 0: no time at all.
//
// Between 64 kbit/s and 400 Gbit/s the rounding is below 2e-6 of the rate.
func NsPerByteQ24(r Rate) uint64 {
	switch r {
	case Unlimited:
		return 0
	case 0:
		return MaxNsPerByteQ24
	}
	return min(max(divideRounded(bitNsPerByteQ24, uint64(r)), 1), MaxNsPerByteQ24)
}

// RateFromNsPerByteQ24 is the inverse of [NsPerByteQ24].
func RateFromNsPerByteQ24(pace uint64) Rate {
	if pace == 0 {
		return Unlimited
	}
	return Rate(divideRounded(bitNsPerByteQ24, pace))
}

// divideRounded is n / d rounded to the nearest. n is at most bitNsPerByteQ24, so that n + d/2
// fits for every d.
func divideRounded(n, d uint64) uint64 {
	return (n + d/2) / d
}

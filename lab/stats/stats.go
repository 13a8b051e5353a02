// SPDX-License-Identifier: BSD-2-Clause

// Package stats condenses what was measured to single numbers.
package stats

import (
	"math"
	"slices"
	"time"
)

// Jain is Jain's fairness index of what flows got: 1 when all got the same, 1/n when one got
// everything. Of nothing it is NaN.
func Jain(counts []uint64) float64 {
	sum, squares := 0., 0.
	for _, n := range counts {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum * sum / (float64(len(counts)) * squares)
}

// Quantile is the smallest of the values that at least a share q of them are not above; 1 is the
// maximum. There must be a value.
func Quantile(values []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

// Median is the middle value, or the mean of the two in the middle. There must be a value.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

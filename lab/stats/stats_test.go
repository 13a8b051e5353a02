// SPDX-License-Identifier: BSD-2-Clause

package stats

import (
	"math"
	"testing"
	"time"
)

func TestJain(t *testing.T) {
	for _, test := range []struct {
		counts []uint64
		want   float64
	}{
		{[]uint64{7}, 1},
		{[]uint64{5, 5, 5, 5}, 1},
		{[]uint64{9, 0, 0}, 1. / 3},
		{[]uint64{3, 1}, 16. / 20},
	} {
		if got := Jain(test.counts); math.Abs(got-test.want) > 1e-12 {
			t.Errorf("Jain(%v) = %v, want %v", test.counts, got, test.want)
		}
	}
	if got := Jain([]uint64{0, 0}); !math.IsNaN(got) {
		t.Errorf("Jain of nothing = %v, want NaN", got)
	}
}

func TestQuantile(t *testing.T) {
	var values []time.Duration
	for i := 200; i > 0; i-- {
		values = append(values, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 100, 0.99: 198, 1: 200} {
		if got := Quantile(values, q); got != want {
			t.Errorf("Quantile(1..200, %v) = %d, want %d", q, got, want)
		}
	}
	if values[0] != 200 {
		t.Error("Quantile sorted its argument")
	}
	if got := Quantile([]time.Duration{5}, 0.99); got != 5 {
		t.Errorf("Quantile of one value = %d", got)
	}
}

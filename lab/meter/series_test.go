// SPDX-License-Identifier: BSD-2-Clause

package meter

import (
	"math"
	"testing"
	"time"
)

// series makes a Series of so many bytes of class 0 in each millisecond, starting at 7 s.
func series(bytes ...uint64) *Series {
	s := &Series{Start: 7 * time.Second}
	for _, n := range bytes {
		s.slots = append(s.slots, meterSlot{Bytes: [Classes]uint64{n}})
	}
	return s
}

func at(ms int) time.Duration { return 7*time.Second + time.Duration(ms)*time.Millisecond }

func TestBytes(t *testing.T) {
	s := series(1, 2, 4, 8)
	s.slots[2].Bytes[3] = 100
	for _, test := range []struct {
		name     string
		from, to int
		classes  []int
		want     uint64
	}{
		{"all", 0, 4, nil, 115},
		{"the end is exclusive", 0, 2, nil, 3},
		{"one class", 0, 4, []int{3}, 100},
		{"two classes", 2, 4, []int{0, 3}, 112},
		{"beyond both ends", -10, 100, nil, 115},
		{"backwards", 3, 1, nil, 0},
	} {
		if got := s.Bytes(at(test.from), at(test.to), test.classes...); got != test.want {
			t.Errorf("%s: Bytes(%d, %d, %v) = %d, want %d", test.name, test.from, test.to, test.classes, got, test.want)
		}
	}
}

func TestRate(t *testing.T) {
	s := series(125, 125, 125, 0)
	if got := s.Rate(at(0), at(3)); got != 1e6 {
		t.Errorf("125 bytes a millisecond are %v bit/s, want 1e6", got)
	}
	if got := s.Rate(at(0), at(4)); got != 0.75e6 {
		t.Errorf("with a silent millisecond: %v bit/s, want 0.75e6", got)
	}
	if got := s.Rate(at(2), at(2)); got != 0 {
		t.Errorf("of no time: %v, want 0", got)
	}
	if got := s.Rates(at(0), at(4), 3*time.Millisecond); len(got) != 1 || got[0] != 1e6 {
		t.Errorf("Rates = %v, want the one complete interval, 1e6", got)
	}
}

func TestFirst(t *testing.T) {
	s := series(0, 5, 0, 0, 7)
	for from, want := range map[int]int{-5: 1, 0: 1, 1: 1, 2: 4, 4: 4} {
		if got, ok := s.First(at(from)); !ok || got != at(want) {
			t.Errorf("First(%d ms) = %v, %t; want %v", from, got, ok, at(want))
		}
	}
	if got, ok := s.First(at(5)); ok {
		t.Errorf("First after the end = %v, want none", got)
	}
}

func TestWindows(t *testing.T) {
	// A burst of 30 bytes that no aligned window of 3 ms holds as a whole.
	s := series(1, 1, 10, 10, 10, 1, 1)
	got := s.Windows(at(0), at(7), 3*time.Millisecond)
	if want := 30. * 8 * 1000 / 3; got.Max != want || got.P99 != want {
		t.Errorf("Windows = %+v, want %v for both", got, want)
	}
	got = s.Windows(at(0), at(3), 3*time.Millisecond)
	if want := 12. * 8 * 1000 / 3; got.Max != want {
		t.Errorf("a single window: max %v, want %v", got.Max, want)
	}
	for _, none := range []Windows{s.Windows(at(0), at(2), 3*time.Millisecond), s.Windows(at(0), at(7), 0)} {
		if !math.IsNaN(none.Max) || !math.IsNaN(none.P99) {
			t.Errorf("without a window: %+v, want NaNs", none)
		}
	}
}

func TestWindowsP99(t *testing.T) {
	values := make([]uint64, 200)
	for i := range values {
		values[i] = uint64(i + 1)
	}
	got := series(values...).Windows(at(0), at(200), time.Millisecond)
	if got.Max != 200*8000 || got.P99 != 198*8000 {
		t.Errorf("Windows = %v, want a maximum of 200 and a p99 of 198 bytes a millisecond", got)
	}
}

func TestHeldSince(t *testing.T) {
	for _, test := range []struct {
		name     string
		series   *Series
		from, to int
		want     int
	}{
		{"held all the time", series(10, 10, 10, 10, 10, 10), 0, 6, 0},
		{"from a step on", series(20, 20, 20, 10, 10, 10), 0, 6, 3},
		{"windows may vary inside", series(9, 11, 9, 11, 9, 11), 0, 6, 0},
		{"a late miss counts", series(10, 10, 10, 10, 10, 20), 0, 6, 5},
		{"what is before does not", series(90, 90, 10, 10, 10, 10), 2, 6, 2},
		{"what is after does not", series(10, 10, 10, 10, 90, 90), 0, 4, 0},
		{"too short for a window", series(90), 0, 1, 0},
	} {
		// 10 bytes a millisecond are 80 kbit/s.
		got := test.series.HeldSince(at(test.from), at(test.to), 2*time.Millisecond, 80e3, 0.05)
		if got != at(test.want) {
			t.Errorf("%s: held since %v, want %v", test.name, got, at(test.want))
		}
	}
}

func TestReachedAt(t *testing.T) {
	for _, test := range []struct {
		name   string
		series *Series
		want   int // -1 is never
	}{
		{"at once", series(10, 10, 20, 20), 0},
		{"after a step", series(20, 20, 20, 10, 10), 3},
		{"after a slope", series(1, 5, 8, 9, 10), -1},
		{"not for good", series(20, 10, 10, 30, 30), 1},
		{"in the last window", series(0, 0, 0, 10, 10), 3},
		{"never", series(20, 20, 20), -1},
	} {
		// 10 bytes a millisecond are 80 kbit/s.
		got, ok := test.series.ReachedAt(at(0), at(len(test.series.slots)), 2*time.Millisecond, 80e3, 0.04)
		if ok != (test.want >= 0) || ok && got != at(test.want) {
			t.Errorf("%s: reached at %v, %t; want %d ms", test.name, got, ok, test.want)
		}
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"testing"

	"github.com/cakectl/cakectl/pkg/rates"
)

func TestTicks(t *testing.T) {
	for _, test := range []struct {
		bandwidth rates.Rate
		shift     uint32
		bytes     uint32
	}{
		{64 * rates.Kbit, 29, 4294},
		{10 * rates.Mbit, 22, 5242},
		{40 * rates.Mbit, 20, 5242},
		{200 * rates.Mbit, 20, 26214},
		{400 * rates.Gbit, 20, 52428800},
	} {
		shift := tickShift(test.bandwidth, 1514)
		if bytes := tickBytes(test.bandwidth, shift); shift != test.shift || bytes != test.bytes {
			t.Errorf("%v: ticks of 2^%d ns with %d bytes, want 2^%d with %d", test.bandwidth, shift, bytes, test.shift, test.bytes)
		}
	}
}

// TestRebook carries bookings to longer and to shorter ticks: no byte is lost, and none moves by
// more than the longer tick.
func TestRebook(t *testing.T) {
	const now = uint64(30*24*3600)*1e9 + 12345
	for _, shifts := range [][2]uint32{{20, 22}, {22, 20}, {21, 20}, {20, 30}} {
		from, to := shifts[0], shifts[1]
		var old dataPathCalendar
		ticks := uint64(len(old.Ticks))
		var booked uint64
		for i := range uint64(100) {
			tick := now>>from + i
			old.Ticks[tick%ticks].StampAndBytes = tick<<32 | (1000 + i)
			booked += 1000 + i
		}
		// A stale tick, of an earlier round.
		old.Ticks[(now>>from+200)%ticks].StampAndBytes = (now>>from+200-ticks)<<32 | 77777

		calendar := rebooked(old, now, from, to)
		var total uint64
		for i := range ticks {
			tick := now>>to + i
			if at := calendar.Ticks[tick%ticks].StampAndBytes; at>>32 == tick&(1<<32-1) {
				total += at & (1<<32 - 1)
				if end := (now>>from + 100) << from; at&(1<<32-1) > 0 && tick<<to > end {
					t.Errorf("2^%d to 2^%d ns: booked in tick %d, after the last booking", from, to, i)
				}
			}
		}
		if total != booked {
			t.Errorf("2^%d to 2^%d ns: %d bytes of %d are left", from, to, total, booked)
		}
	}
}

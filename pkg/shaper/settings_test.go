// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"testing"
	"time"

	"github.com/cakectl/cakectl/pkg/rates"
)

// TestAQMIsCAKEs compares with what tc shows for CAKE (diffserv3 at 1 Mbit/s: thresholds of 1/16,
// all and 1/4), which rounds to a tenth of a millisecond.
func TestAQMIsCAKEs(t *testing.T) {
	const fullPacket = 1514
	for _, c := range []struct {
		rate             rates.Rate
		rtt              time.Duration
		target, interval time.Duration
	}{
		{rates.Mbit / 16, 100 * time.Millisecond, 291 * time.Millisecond, 581 * time.Millisecond},
		{rates.Mbit, 100 * time.Millisecond, 18200 * time.Microsecond, 113 * time.Millisecond},
		{rates.Mbit / 4, 100 * time.Millisecond, 72700 * time.Microsecond, 168 * time.Millisecond},
		{rates.Gbit, 100 * time.Millisecond, 5 * time.Millisecond, 100 * time.Millisecond},
		{rates.Gbit, 10 * time.Millisecond, 500 * time.Microsecond, 10 * time.Millisecond},
	} {
		target, interval := aqm(c.rtt, timeToSend(fullPacket, c.rate))
		if !within(target, c.target) || !within(interval, c.interval) {
			t.Errorf("%v, rtt %v: target %v interval %v, want %v and %v", c.rate, c.rtt, target, interval, c.target, c.interval)
		}
	}
}

func within(got, want time.Duration) bool {
	return (got - want).Abs() <= want/200
}

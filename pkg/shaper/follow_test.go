// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestLooksWhereTheControllerIsWoken: the follower is nudged now and then while traffic flows, and soon
// after it has ended, also where the last look is so recent that another would be too early.
func TestLooksWhereTheControllerIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Shaper{nudged: make(chan struct{}, 1)}
		nudged := func() bool {
			synctest.Wait()
			select {
			case <-s.nudged:
				s.lastLookNs.Store(time.Now().UnixNano())
				return true
			default:
				return false
			}
		}
		check := func(when string, want bool) {
			t.Helper()
			if got := nudged(); got != want {
				t.Errorf("%s: looks %v, want %v", when, got, want)
			}
		}
		s.woken(2)
		check("active, and never looked", true)
		time.Sleep(activeLookGap / 2)
		s.woken(3)
		check("active, and looked not long ago", false)
		s.woken(0)
		check("idle, and not looked for a while", true)
		for range 3 {
			s.woken(1)
			s.woken(0)
			check("idle, just after a look", false)
		}
		time.Sleep(idleLookGap)
		check("a while after", true)
		time.Sleep(time.Hour)
		check("and then no more", false)
	})
}

// TestRepairsGetRarer: two managers that disagree about a device do not fight over it.
func TestRepairsGetRarer(t *testing.T) {
	var r repairs
	now := time.Unix(1_000_000, 0)
	if due := r.due(now); due.After(now) {
		t.Errorf("the first repair has to wait until %v", due)
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		r.made(now)
		if got := r.due(now).Sub(now); got != want*time.Second {
			t.Errorf("the next repair after %v, want %v", got, want*time.Second)
		}
		now = r.due(now)
	}
	r.made(now)
	now = now.Add(calmTime + 1)
	if due := r.due(now); due.After(now) {
		t.Errorf("a repair after %v of calm has to wait until %v", calmTime, due.Sub(now))
	}
	r.made(now)
	if got := r.due(now).Sub(now); got != firstWait {
		t.Errorf("and the next %v, want %v", got, firstWait)
	}
}

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

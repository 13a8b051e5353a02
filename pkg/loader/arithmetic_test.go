// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/model"
	"github.com/cakectl/cakectl/pkg/rates"
)

// TestArithmeticAtTheEdges keeps the line full with the slowest and the fastest bandwidth and the
// smallest and the largest packets, at times when numbers are large or begin again: each byte leaves
// when it should, and the model agrees.
func TestArithmeticAtTheEdges(t *testing.T) {
	tw := newTwins(t)
	const day = int64(24 * time.Hour)
	for _, bandwidth := range []rates.Rate{rates.MinBandwidth, rates.MaxBandwidth} {
		settings := testSettings(bandwidth)
		settings.LocalHorizon = time.Minute
		settings.Queues = twinQueues
		tickNs := int64(1) << tickShift(bandwidth, settings.FullPacketBytes)
		// Where the data path's 32-bit numbers of ticks begin again.
		wrapNs := tickNs << 32
		for _, bytes := range []int64{1, 1514, 65536} {
			costNs := float64(bytes) * 8e9 / float64(bandwidth)
			packets := int64(min(4000, 300e9/costNs))
			spanNs := int64(float64(packets) * costNs)
			for _, start := range []struct {
				name string
				ns   int64
			}{
				{"after 30 days", 30 * day},
				{"as ticks begin again", wrapNs - spanNs/2},
			} {
				if start.ns < 30*day {
					t.Fatalf("ticks begin again %v after boot, before the machine's own clock is safely behind", time.Duration(wrapNs))
				}
				t.Run(fmt.Sprintf("%v/%d bytes/%s", bandwidth, bytes, start.name), func(t *testing.T) {
					settings := settings
					if bytes < minFrame {
						// An overhead that takes away all but a byte.
						settings.Framing = framing.Framing{OverIP: true, OverheadBytes: int(bytes) - (minFrame - linkHeader)}
					}
					tw.start(t, start.ns, settings)
					tw.wantFullLine(t, bytes, packets)
				})
				t.Run(fmt.Sprintf("%v/%d bytes/%s/and a day idle", bandwidth, bytes, start.name), func(t *testing.T) {
					tw.do(t, step{pauseNs: day + time.Hour.Nanoseconds()})
					tw.wantFullLine(t, bytes, packets)
				})
			}
		}
	}
}

// wantFullLine sends packets of one flow, with up to a second or some packets of them waiting, and
// looks at when each leaves.
func (tw *twins) wantFullLine(t *testing.T, bytes, packets int64) {
	t.Helper()
	packet := model.Packet{Hash: 1, Bytes: bytes, Segments: 1}
	if bytes < minFrame {
		packet.Bytes = maxFrame - minFrame // the smallest frame
	}
	nsPerByte := 8e9 / float64(tw.settings.Bandwidth)
	costNs := nsPerByte * float64(bytes)
	// A packet of less than a nanosecond moves no clock: a quarter of a tick of these leaves at once.
	slackNs := 2 * costNs
	if costNs < 1 {
		slackNs = float64(int64(1)<<tickShift(tw.settings.Bandwidth, tw.settings.FullPacketBytes)) / 4
	}
	startNs := tw.nowNs
	for i := range packets {
		var pauseNs int64
		if aheadNs := tw.departureNs - tw.nowNs; i > 0 && aheadNs > int64(time.Second)+int64(2*costNs) {
			pauseNs = aheadNs / 2
		}
		tw.do(t, step{packet: &packet, pauseNs: pauseNs})
		gotNs, wantNs := float64(tw.departureNs-startNs), float64(i)*costNs
		// A tick carries whole bytes, and clocks tell whole nanoseconds.
		if math.Abs(gotNs-wantNs) > slackNs+wantNs/5000+2 {
			t.Fatalf("packet %d leaves after %.0f ns, want %.0f ns", i, gotNs, wantNs)
		}
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"testing"
	"time"

	"github.com/cakectl/cakectl/pkg/rates"
)

func testSettings(bandwidth rates.Rate) Settings {
	return Settings{
		Bandwidth:       bandwidth,
		LocalHorizon:    2 * time.Second,
		ForwardHorizon:  100 * time.Millisecond,
		FullPacketBytes: 1514,
		Epoch:           134 * time.Millisecond,
		Tins:            []TinSettings{{Rate: bandwidth, Ceil: rates.Unlimited}},
	}
}

func TestOneFlowIsPaced(t *testing.T) {
	in := newInjected(t, Options{Queues: 1, Tins: 1, LinkHeaderBytes: 14}, testSettings(8*rates.Mbit))
	var last time.Duration
	for i := range 1000 {
		departure := in.send(packet{at: injectedEpoch, flow: 1, bytes: 1000})
		if i%50 == 0 { t.Log(i, departure-injectedEpoch) }
		last = departure
	}
	_ = last
}

// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"testing"
	"time"

	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/qdisc"
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

// TestFramedSettings: what is derived from the size of a packet goes by what it takes on the line.
func TestFramedSettings(t *testing.T) {
	const mtu, framedBytes = 1492, 1696 // 32 cells, of 1492 + 40 bytes
	adsl := config.New("eth0", rates.Absolute(2*rates.Mbit))
	var err error
	if adsl.Framing, err = framing.Parse([]string{"pppoe-llcsnap"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := adsl.Resolve(0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := settings(adsl, cfg, 1, mtu, qdisc.Sizing{})
	if err != nil {
		t.Fatal(err)
	}
	if s.FullPacketBytes != framedBytes || s.Framing != adsl.Framing {
		t.Errorf("a full packet takes %d bytes, want %d", s.FullPacketBytes, framedBytes)
	}
	if want := framedBytes * 4 * time.Microsecond * 3 / 2; s.Tins[0].AQMTarget != want {
		t.Errorf("target %v, want the time of one and a half packets, %v", s.Tins[0].AQMTarget, want)
	}
	// The limit of super-packets is a millisecond of this.
	if got, want := packetRate(adsl, 1696*rates.Mbit, mtu), 1492*rates.Mbit; got != want {
		t.Errorf("packets have %v of the line, want %v", got, want)
	}
	if got := packetRate(adsl, rates.Unlimited, mtu); got != rates.Unlimited {
		t.Errorf("packets have %v of an unlimited line", got)
	}
	if got := packetRate(config.New("eth0", rates.Absolute(rates.Gbit)), rates.Gbit, mtu); got != rates.Gbit {
		t.Errorf("without framing packets have %v of 1gbit", got)
	}
}

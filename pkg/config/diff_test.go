// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

func TestDifferences(t *testing.T) {
	value := func(r rates.Rate) *rates.Value { v := rates.Absolute(r); return &v }
	before := New("eth0", rates.Absolute(2*rates.Gbit))
	before.Tins = []TinOverride{{Name: "voice", Rate: value(rates.Mbit), Ceil: value(5 * rates.Mbit)}, {Name: "video", Rate: value(rates.Mbit)}}
	if got := Differences(before, before); got != nil {
		t.Errorf("between the same: %q", got)
	}
	after := before
	after.Bandwidth, after.RTT, after.Wash = rates.Absolute(rates.Gbit), 30*time.Millisecond, true
	after.Isolation, after.OnDrift = "", DriftRepair // other words for the same
	after.Framing = framing.Framing{OverIP: true, OverheadBytes: 34, Cells: framing.PTM}
	after.Map = []tins.Rule{{Field: tins.DSCP, From: 46, To: 46, Tin: "bulk"}}
	after.FwmarkMask = 0xff
	after.Tins = []TinOverride{{Name: "voice", Rate: value(2 * rates.Mbit), Ceil: value(5 * rates.Mbit)}, {Name: "bulk", Ceil: value(3 * rates.Mbit)}}
	want := []string{
		"bandwidth 2gbit -> 1gbit", "line raw -> overhead 34 ptm", "rtt 100ms -> 30ms", "map none -> dscp:46=bulk",
		"fwmark none -> 0xff", "wash false -> true",
		"voice rate 1mbit -> 2mbit", "video rate 1mbit -> default", "bulk ceil none -> 3mbit",
	}
	if diff := cmp.Diff(want, Differences(before, after)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// No setting of a file is left out: whatever field of a Spec changes, a difference tells it.
func TestDifferencesKnowsAllSettings(t *testing.T) {
	notOfAFile := map[string]bool{"Device": true, "MetricsAddress": true, "FromFile": true}
	other := New("eth0", rates.Absolute(2*rates.Gbit))
	rate := rates.Absolute(rates.Mbit)
	other = Spec{
		Bandwidth: other.Bandwidth, Preset: "x", Split: "x", Isolation: "x", Flows: 1, RTT: 1, Keep: true, Replace: true,
		CheckQueues: true, OnDrift: "x", InnerDSCP: true, Wash: true, WholeGSO: true, FwmarkMask: 1,
		Framing: framing.Framing{MPUBytes: 1}, Map: []tins.Rule{{Field: tins.DSCP}}, Tins: []TinOverride{{Name: "bulk", Rate: &rate}},
	}
	for i := range reflect.TypeFor[Spec]().NumField() {
		name := reflect.TypeFor[Spec]().Field(i).Name
		var changed Spec
		reflect.ValueOf(&changed).Elem().Field(i).Set(reflect.ValueOf(other).Field(i))
		if got := Differences(Spec{}, changed); (len(got) == 1) == notOfAFile[name] {
			t.Errorf("%s: %q", name, got)
		}
	}
}

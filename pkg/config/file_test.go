// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

func TestFile(t *testing.T) {
	const text = `
metrics: none
devices:
  eth1: {bandwidth: 95%, isolation: Triple-Isolate}
  eth0.10:
    bandwidth: 2gbit
    diffserv: Diffserv3
    split: equal
    flows: 2048
    rtt: lan
    cells: noatm
    overhead: pppoe-ptm, ether-vlan
    map: [dscp:EF=bulk, "mark:0x10-0x11=Voice"]
    fwmark: 0xff
    inner_dscp: true
    wash: true
    keep: false
    replace: true
    tins:
      voice: {rate: 50mbit, ceil: 10%}
      bulk: {ceil: none} # a comment
defaults:
  rtt: metro
  overhead: docsis
  tins:
    bulk: {ceil: 1mbit}
    voice: {ceil: 2mbit}
`
	value := func(text string) *rates.Value {
		v, err := rates.ParseValue(text)
		if err != nil {
			t.Fatal(err)
		}
		return &v
	}
	file, err := ParseFile("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := File{MetricsAddress: MetricsNone, Devices: []Spec{
		{
			Device: "eth0.10", Bandwidth: *value("2gbit"), Preset: tins.Diffserv3, Split: rates.SplitEqual, Isolation: IsolateFlows, Flows: 2048, RTT: time.Millisecond,
			Framing:    framing.Framing{OverIP: true, OverheadBytes: 34},
			Map:        []tins.Rule{{Field: tins.DSCP, From: 46, To: 46, Tin: "bulk"}, {Field: tins.Mark, From: 16, To: 17, Tin: "voice"}},
			FwmarkMask: 0xff, InnerDSCP: true, Wash: true,
			MetricsAddress: MetricsNone, Replace: true, FromFile: true,
			Tins: []TinOverride{{Name: "voice", Rate: value("50mbit"), Ceil: value("10%")}},
		},
		{
			Device: "eth1", Bandwidth: *value("95%"), Preset: tins.Diffserv4, Split: rates.SplitFlows, Isolation: IsolateTriple, RTT: 10 * time.Millisecond,
			Framing:        framing.Framing{OverIP: true, OverheadBytes: 18, MPUBytes: 64},
			MetricsAddress: MetricsNone, Keep: true, FromFile: true,
			Tins: []TinOverride{{Name: "bulk", Ceil: value("1mbit")}, {Name: "voice", Ceil: value("2mbit")}},
		},
	}}
	sameValue := cmp.Comparer(func(a, b rates.Value) bool { return a == b })
	if diff := cmp.Diff(want, file, sameValue); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if file, err = ParseFile("test.yaml", []byte("devices: {eth0: {bandwidth: 1gbit}}")); err != nil {
		t.Fatal(err)
	}
	if file.MetricsAddress != DefaultMetricsAddress {
		t.Errorf("metrics on %q, want the default", file.MetricsAddress)
	}
	if file, err = ParseFile("test.yaml", []byte("\ufeffdevices:\r\n  eth0:\r\n    bandwidth: 1gbit\r\n")); err != nil || len(file.Devices) != 1 {
		t.Errorf("as other systems write it: %+v, %v", file, err)
	}
}

// One error for each thing that is wrong, each with its place.
func TestFileErrors(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", []string{"f.yaml: want one YAML document"}},
		{"no YAML", "devices: [", []string{"f.yaml:1:"}},
		{"no devices", "metrics: none", []string{"f.yaml: no section devices"}},
		{"empty devices", "devices: {}", []string{"the section devices is empty"}},
		{"null devices", "devices:", []string{"f.yaml:1:10: devices: want settings as KEY: VALUE"}},
		{"a list", "devices:\n- eth0\n", []string{"f.yaml:2:1: devices: want settings"}},
		{"unknown section", "device: {}\ndevices: {eth0: {bandwidth: 1gbit}}", []string{`f.yaml:1:1: the file: unknown setting "device": want defaults, devices, metrics`}},
		{"unknown setting", "devices:\n  eth0:\n    bandwith: 1gbit\n", []string{`f.yaml:3:5: eth0: unknown setting "bandwith": want bandwidth, `, "f.yaml:2:3: eth0: no bandwidth given"}},
		{"twice", "devices:\n  eth0: {bandwidth: 1gbit}\n  eth0: {bandwidth: 2gbit}\n", []string{`f.yaml:3:3: devices: "eth0" is there twice, first in line 2`}},
		{"twice, and more", "metrics: none\nmetrics: x\ndevices:\n  eth0: {bandwidth: 1gbit, rtt: 20, bandwidth: 2gbit}\n  eth1: {bandwidth: 1gbit, tins: {voice: {rate: 1mbit}, voice: {}}}\n", []string{
			`f.yaml:2:1: the file: "metrics" is there twice, first in line 1`, "f.yaml:4:33: rtt", `f.yaml:4:37: eth0: "bandwidth" is there twice, first in line 4`,
			`f.yaml:5:57: tins: "voice" is there twice, first in line 5`}},
		{"no bandwidth", "devices:\n  eth0: {rtt: lan}\n", []string{"f.yaml:2:3: eth0: no bandwidth given"}},
		{"no value", "devices:\n  eth0:\n    bandwidth:\n", []string{"f.yaml:3:5: bandwidth: want one value"}},
		{"bytes", "devices:\n  eth0:\n    bandwidth: 10mbps\n", []string{"f.yaml:3:16: bandwidth", "mbps"}},
		{"name", "devices:\n  eth0/1: {bandwidth: 1gbit}\n", []string{`f.yaml:2:3: eth0/1: device "eth0/1": not a name`}},
		{"metrics", "metrics: 9750\ndevices: {eth0: {bandwidth: 1gbit}}", []string{`f.yaml:1:10: metrics address "9750": want HOST:PORT`}},
		{"bool", "devices: {eth0: {bandwidth: 1gbit, keep: perhaps}}", []string{`"perhaps": want true or false`}},
		{"tin", "devices:\n  eth0:\n    bandwidth: 1gbit\n    tins:\n      gold: {rate: 1mbit}\n", []string{`f.yaml:5:7: eth0: unknown tin "gold"`}},
		{"tins beside a bad bandwidth", "devices:\n  eth0:\n    bandwidth: 1mbps\n    tins:\n      gold: {rate: 1mbit}\n      voice: {rate: x}\n", []string{
			"f.yaml:3:16: bandwidth", `f.yaml:5:7: eth0: unknown tin "gold"`, "f.yaml:6:21: tin voice: rate"}},
		{"every tin", "devices:\n  eth0:\n    bandwidth: 1mbit\n    isolation: hosts\n    split: equal\n    tins:\n      voice: {rate: 2mbit}\n      video: {ceil: 1kbit, rate: 2kbit}\n", []string{
			"f.yaml:4:16: eth0: isolation hosts", "f.yaml:7:7: eth0: tin voice: rate 2mbit", "f.yaml:8:7: eth0: tin video: "}},
		{"every rule", "devices:\n  eth0:\n    bandwidth: 1mbit\n    map: [dscp:EF=voice, dscp:XX=bulk, mark:=bulk]\n", []string{
			"f.yaml:4:26: rule", "f.yaml:4:40: rule"}},
		{"a default", "devices:\n  eth0: {bandwidth: 1mbit}\ndefaults:\n  tins: {gold: {rate: 1mbit}}\n", []string{`f.yaml:4:10: eth0: unknown tin "gold"`}},
		{"sum", "devices:\n  eth0:\n    bandwidth: 1gbit\n    tins: {voice: {rate: 600mbit}, video: {rate: 600mbit}}\n", []string{"f.yaml:4:5: eth0: the tins' guarantees"}},
		{"several", "metrics: x\ndevices:\n  eth0: {bandwidth: 1, split: odd}\n  eth1: {bandwidth: 0}\n", []string{
			"f.yaml:1:10: metrics address", "f.yaml:3:21: eth0: bandwidth 1bit is below the minimum", `f.yaml:3:31: `, "f.yaml:4:"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := ParseFile("f.yaml", []byte(test.text))
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("got %v, want an ErrInvalid", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("lacks %q:\n%v", want, err)
				}
			}
			if got := strings.Count(err.Error(), "\n") + 1; got != 1 && got != len(test.want) {
				t.Errorf("%d errors, want %d:\n%v", got, len(test.want), err)
			}
		})
	}
	if _, err := ReadFile("/nonexistent/cakectl.yaml"); !errors.Is(err, ErrInvalid) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// What a spec is changed to is what it is then.
func TestChangeTo(t *testing.T) {
	value := func(r rates.Rate) *rates.Value { v := rates.Absolute(r); return &v }
	from := New("eth0", rates.Absolute(rates.Gbit))
	from.Tins = []TinOverride{{Name: "bulk", Rate: value(rates.Mbit), Ceil: value(2 * rates.Mbit)}, {Name: "voice", Rate: value(rates.Mbit)}}
	to := New("eth0", rates.Absolute(2*rates.Gbit))
	to.Split, to.RTT = rates.SplitEqual, time.Millisecond
	from.Map, from.Wash = []tins.Rule{{Field: tins.DSCP, From: 46, To: 46, Tin: "bulk"}}, true
	to.Framing, to.InnerDSCP = framing.Framing{OverheadBytes: 4}, true
	to.Tins = []TinOverride{{Name: "bulk", Rate: value(3 * rates.Mbit)}, {Name: "video", Ceil: value(4 * rates.Mbit)}}
	change, err := from.ChangeTo(to)
	if err != nil {
		t.Fatal(err)
	}
	got, err := from.Apply(change)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(to.Tins, got.Tins, cmp.Comparer(func(a, b rates.Value) bool { return a == b })); diff != "" {
		t.Errorf("tins (-want +got):\n%s", diff)
	}
	if got.Bandwidth != to.Bandwidth || got.Split != to.Split || got.RTT != to.RTT ||
		got.Framing != to.Framing || len(got.Map) != 0 || got.Wash || !got.InnerDSCP {
		t.Errorf("got %+v, want %+v", got, to)
	}
	to.Preset = tins.Diffserv8
	if _, err := from.ChangeTo(to); !errors.Is(err, ErrInvalid) {
		t.Errorf("another preset: %v", err)
	}
}

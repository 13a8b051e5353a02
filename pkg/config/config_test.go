// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

func value(t *testing.T, text string) rates.Value {
	t.Helper()
	v, err := rates.ParseValue(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func pointer(t *testing.T, text string) *rates.Value {
	t.Helper()
	v := value(t, text)
	return &v
}

// spec is what `attach eth0 --bandwidth bandwidth --tin ...` makes.
func spec(t *testing.T, bandwidth string, tinFlags ...string) Spec {
	t.Helper()
	s := New("eth0", value(t, bandwidth))
	s.Tins = overrides(t, tinFlags...)
	return s
}

func overrides(t *testing.T, tinFlags ...string) []TinOverride {
	t.Helper()
	var list []TinOverride
	for _, flag := range tinFlags {
		o, err := ParseTinFlag(flag)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, o)
	}
	return list
}

// wantInvalid checks that err is an ErrInvalid that says all of parts.
func wantInvalid(t *testing.T, err error, parts ...string) {
	t.Helper()
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("error %v is not an ErrInvalid", err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

func TestParseTinFlag(t *testing.T) {
	for text, want := range map[string]TinOverride{
		"voice=rate:2gbit,ceil:50%":            {Name: "voice", Rate: pointer(t, "2gbit"), Ceil: pointer(t, "50%")},
		"voice=ceil:50%,rate:2gbit":            {Name: "voice", Rate: pointer(t, "2gbit"), Ceil: pointer(t, "50%")},
		"bulk=rate:10%":                        {Name: "bulk", Rate: pointer(t, "10%")},
		"Best-Effort=CEIL:1Gbit":               {Name: "best_effort", Ceil: pointer(t, "1gbit")},
		" Tin 3 = rate : 5mbit , ceil : NONE ": {Name: "tin_3", Rate: pointer(t, "5mbit"), CeilNone: true},
		"video=rate:default":                   {Name: "video", RateDefault: true},
		"video=rate:Default,ceil:none":         {Name: "video", RateDefault: true, CeilNone: true},
		"video=ceil:unlimited":                 {Name: "video", Ceil: pointer(t, "unlimited")},
		"mine=ceil:5mbit":                      {Name: "mine", Ceil: pointer(t, "5mbit")}, // Validate knows the preset
	} {
		got, err := ParseTinFlag(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ParseTinFlag(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParseTinFlagRefuses(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", []string{`no "="`, "NAME=rate:RATE,ceil:RATE"}},
		{"voice", []string{`"voice"`, `no "="`, "NAME=rate:RATE,ceil:RATE"}},
		{"=rate:1gbit", []string{"no name"}},
		{"voice=", []string{`nothing after "="`}},
		{"voice=2gbit", []string{`"2gbit" is not KEY:RATE`, "rate and ceil"}},
		{"voice=rate=2gbit", []string{`"rate=2gbit" is not KEY:RATE`}},
		{"voice=rate:2gbit,", []string{`"" is not KEY:RATE`}},
		{"voice=rate:2gbit,ceil", []string{`"ceil" is not KEY:RATE`}},
		{"voice=ceiling:2gbit", []string{`unknown key "ceiling"`, "rate and ceil"}},
		{"voice=:2gbit", []string{`unknown key ""`}},
		{"voice=rate:1gbit,rate:2gbit", []string{"rate is given twice"}},
		{"voice=rate:1gbit,RATE:default", []string{"rate is given twice"}},
		{"voice=rate:default,rate:default", []string{"rate is given twice"}},
		{"voice=ceil:none,ceil:1gbit", []string{"ceil is given twice"}},
		{"voice=rate:0", []string{"tin voice: rate", "above zero"}},
		{"voice=ceil:0", []string{"tin voice: ceil", "above zero"}},
		{"voice=ceil:-1mbit", []string{"tin voice: ceil", "above zero"}},
		{"voice=rate:2gbps", []string{`tin voice: rate "2gbps"`, "2gbit", "16gbit"}},
		{"voice=rate:", []string{`tin voice: rate "" is empty`, `"default"`}},
		{"voice=rate:none", []string{`tin voice: rate "none"`, `rate also takes "default"`}},
		{"voice=ceil:default", []string{`tin voice: ceil "default"`, `ceil also takes "none"`}},
		{"voice=ceil:120%", []string{"at most 100%"}},
	} {
		o, err := ParseTinFlag(c.text)
		if err == nil {
			t.Errorf("ParseTinFlag(%q) = %+v, want an error", c.text, o)
			continue
		}
		wantInvalid(t, err, c.want...)
	}
}

func TestParseRTT(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"datacentre": 100 * time.Microsecond, "lan": time.Millisecond, "metro": 10 * time.Millisecond,
		"regional": 30 * time.Millisecond, "internet": 100 * time.Millisecond, "oceanic": 300 * time.Millisecond,
		"satellite": time.Second, "interplanetary": 1000 * time.Second,
		"Internet": 100 * time.Millisecond, "20ms": 20 * time.Millisecond, "50us": 50 * time.Microsecond,
		" 1.5s ": 1500 * time.Millisecond, "10us": MinRTT, "1000s": MaxRTT,
	} {
		if got, err := ParseRTT(text); err != nil || got != want {
			t.Errorf("ParseRTT(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":      "with its unit",
		"100":   "with its unit",
		"fast":  "datacentre, lan, metro, regional, internet, oceanic, satellite, interplanetary",
		"0":     "must be from 10µs to 16m40s",
		"-5ms":  "must be from",
		"9us":   "must be from",
		"1001s": "must be from",
	} {
		_, err := ParseRTT(text)
		wantInvalid(t, err, "rtt", want)
	}
}

func TestParseNames(t *testing.T) {
	if got, err := ParsePreset("DiffServ8"); err != nil || got != tins.Diffserv8 {
		t.Errorf("ParsePreset = %q, %v", got, err)
	}
	_, err := ParsePreset("diffserv5")
	wantInvalid(t, err, "diffserv5", "besteffort, precedence, diffserv3, diffserv4, diffserv8")
	if got, err := ParseSplit("equal"); err != nil || got != rates.SplitEqual {
		t.Errorf("ParseSplit = %q, %v", got, err)
	}
	_, err = ParseSplit("fair")
	wantInvalid(t, err, "fair", "flows or equal")
	if got, err := ParseBandwidth("50%"); err != nil || got != value(t, "50%") {
		t.Errorf("ParseBandwidth = %v, %v", got, err)
	}
	_, err = ParseBandwidth("100mbps")
	wantInvalid(t, err, `bandwidth "100mbps"`, "800mbit", "100mbit")
}

func TestResolve(t *testing.T) {
	type tin = rates.TinConfig
	const none = rates.Unlimited
	for _, c := range []struct {
		name string
		spec Spec
		link rates.Rate
		want rates.Config
	}{
		{"defaults", spec(t, "1gbit"), 0, rates.Config{Bandwidth: rates.Gbit, Split: rates.SplitFlows, Tins: []tin{
			{Name: "best_effort", Rate: rates.Gbit, Ceil: none},
			{Name: "bulk", Rate: 62_500_000, Ceil: none},
			{Name: "video", Rate: 500 * rates.Mbit, Ceil: none},
			{Name: "voice", Rate: 250 * rates.Mbit, Ceil: none},
		}}},
		{"percent of the link, and of the bandwidth", spec(t, "50%", "voice=rate:20%,ceil:50%"), 2 * rates.Gbit,
			rates.Config{Bandwidth: rates.Gbit, Split: rates.SplitFlows, Tins: []tin{
				{Name: "best_effort", Rate: rates.Gbit, Ceil: none},
				{Name: "bulk", Rate: 62_500_000, Ceil: none},
				{Name: "video", Rate: 500 * rates.Mbit, Ceil: none},
				{Name: "voice", Rate: 200 * rates.Mbit, Explicit: true, Ceil: 500 * rates.Mbit},
			}}},
		{"a ceil below the threshold lowers it; one at the bandwidth or above is none",
			spec(t, "1gbit", "video=ceil:100mbit", "bulk=ceil:5gbit", "voice=ceil:1gbit"), 0,
			rates.Config{Bandwidth: rates.Gbit, Split: rates.SplitFlows, Tins: []tin{
				{Name: "best_effort", Rate: rates.Gbit, Ceil: none},
				{Name: "bulk", Rate: 62_500_000, Ceil: none},
				{Name: "video", Rate: 100 * rates.Mbit, Ceil: 100 * rates.Mbit},
				{Name: "voice", Rate: 250 * rates.Mbit, Ceil: none},
			}}},
		{"guarantees that just fit, beside the default tin's",
			spec(t, "1gbit", "voice=rate:600mbit", "bulk=rate:400mbit", "best_effort=rate:1gbit"), 0,
			rates.Config{Bandwidth: rates.Gbit, Split: rates.SplitFlows, Tins: []tin{
				{Name: "best_effort", Rate: rates.Gbit, Explicit: true, Ceil: none},
				{Name: "bulk", Rate: 400 * rates.Mbit, Explicit: true, Ceil: none},
				{Name: "video", Rate: 500 * rates.Mbit, Ceil: none},
				{Name: "voice", Rate: 600 * rates.Mbit, Explicit: true, Ceil: none},
			}}},
		{"resets in a first spec say nothing", spec(t, "1gbit", "voice=rate:default,ceil:none"), 0,
			rates.Config{Bandwidth: rates.Gbit, Split: rates.SplitFlows, Tins: []tin{
				{Name: "best_effort", Rate: rates.Gbit, Ceil: none},
				{Name: "bulk", Rate: 62_500_000, Ceil: none},
				{Name: "video", Rate: 500 * rates.Mbit, Ceil: none},
				{Name: "voice", Rate: 250 * rates.Mbit, Ceil: none},
			}}},
		{"unlimited keeps absolute settings", spec(t, "unlimited", "voice=rate:10mbit,ceil:20mbit"), 0,
			rates.Config{Bandwidth: none, Split: rates.SplitFlows, Tins: []tin{
				{Name: "best_effort", Rate: none, Ceil: none},
				{Name: "bulk", Rate: none, Ceil: none},
				{Name: "video", Rate: none, Ceil: none},
				{Name: "voice", Rate: 10 * rates.Mbit, Explicit: true, Ceil: 20 * rates.Mbit},
			}}},
		{"another preset and split", func() Spec {
			s := spec(t, "64kbit", "Tin 7=rate:8kbit")
			s.Preset, s.Split = tins.Diffserv8, rates.SplitEqual
			return s
		}(), 0, rates.Config{Bandwidth: rates.MinBandwidth, Split: rates.SplitEqual, DefaultTin: 2, Tins: []tin{
			{Name: "tin_0", Rate: 64_000, Ceil: none}, {Name: "tin_1", Rate: 56_000, Ceil: none},
			{Name: "tin_2", Rate: 49_000, Ceil: none}, {Name: "tin_3", Rate: 42_875, Ceil: none},
			{Name: "tin_4", Rate: 37_515, Ceil: none}, {Name: "tin_5", Rate: 32_825, Ceil: none},
			{Name: "tin_6", Rate: 28_721, Ceil: none}, {Name: "tin_7", Rate: 8_000, Explicit: true, Ceil: none},
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.spec.Resolve(c.link)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("Resolve = %+v, %v\nwant      %+v", got, err, c.want)
			}
		})
	}
}

func TestResolveBandwidthRange(t *testing.T) {
	for text, want := range map[string]rates.Rate{"64kbit": rates.MinBandwidth, "400gbit": rates.MaxBandwidth, "100%": 10 * rates.Gbit} {
		if cfg, err := spec(t, text).Resolve(10 * rates.Gbit); err != nil || cfg.Bandwidth != want {
			t.Errorf("bandwidth %s: %v, %v", text, cfg.Bandwidth, err)
		}
	}
}

func TestResolveRefuses(t *testing.T) {
	with := func(change func(*Spec)) Spec {
		s := spec(t, "1gbit")
		change(&s)
		return s
	}
	for _, c := range []struct {
		name string
		spec Spec
		link rates.Rate
		want []string
	}{
		{"no device", with(func(s *Spec) { s.Device = "" }), 0, []string{"no device"}},
		{"device with a slash", with(func(s *Spec) { s.Device = "../eth0" }), 0, []string{`"../eth0"`}},
		{"device that is a directory", with(func(s *Spec) { s.Device = ".." }), 0, []string{`".."`}},
		{"device with a colon", with(func(s *Spec) { s.Device = "eth0:1" }), 0, []string{`"eth0:1"`}},
		{"device with a space", with(func(s *Spec) { s.Device = "eth 0" }), 0, []string{`"eth 0"`}},
		{"device name too long", with(func(s *Spec) { s.Device = "sixteen-bytes-00" }), 0, []string{"at most 15 bytes"}},
		{"no bandwidth", with(func(s *Spec) { s.Bandwidth = rates.Value{} }), 0, []string{"no bandwidth"}},
		{"bandwidth too small", spec(t, "63999bit"), 0, []string{"63.999kbit", "below the minimum of 64kbit"}},
		{"bandwidth too large", spec(t, "400.001gbit"), 0, []string{"400.001gbit", "above the maximum of 400gbit"}},
		{"percent too small", spec(t, "1%"), rates.Mbit, []string{"1% (10kbit)", "below the minimum"}},
		{"percent too large", spec(t, "100%"), 800 * rates.Gbit, []string{"100% (800gbit)", "above the maximum"}},
		{"percent of an unknown link", spec(t, "50%"), 0, []string{"bandwidth 50%", "the link of eth0", "absolute rate"}},
		{"percent of an unlimited link", spec(t, "50%"), rates.Unlimited, []string{"bandwidth 50%", "unlimited"}},
		{"unknown preset", with(func(s *Spec) { s.Preset = "diffserv5" }), 0, []string{"diffserv5", "diffserv3, diffserv4"}},
		{"unknown split", with(func(s *Spec) { s.Split = "" }), 0, []string{"split", "flows or equal"}},
		{"rtt too short", with(func(s *Spec) { s.RTT = 0 }), 0, []string{"rtt 0s"}},
		{"metrics without port", with(func(s *Spec) { s.MetricsAddress = "localhost" }), 0, []string{`"localhost"`, "127.0.0.1:9750", "none"}},
		{"metrics with a large port", with(func(s *Spec) { s.MetricsAddress = "[::1]:65536" }), 0, []string{"65536"}},
		{"metrics with a named port", with(func(s *Spec) { s.MetricsAddress = ":http" }), 0, []string{":http"}},
		{"unknown tin", spec(t, "1gbit", "vioce=rate:1mbit"), 0, []string{"vioce", "diffserv4 has bulk, best_effort, video, voice"}},
		{"a tin twice", spec(t, "1gbit", "voice=rate:1mbit", "Voice=ceil:2mbit"), 0, []string{"tin voice is given twice"}},
		{"rate and default", with(func(s *Spec) {
			s.Tins = []TinOverride{{Name: "voice", Rate: pointer(t, "1mbit"), RateDefault: true}}
		}), 0, []string{"tin voice", "default"}},
		{"ceil and none", with(func(s *Spec) {
			s.Tins = []TinOverride{{Name: "voice", Ceil: pointer(t, "1mbit"), CeilNone: true}}
		}), 0, []string{"tin voice", "none"}},
		{"empty rate", with(func(s *Spec) { s.Tins = []TinOverride{{Name: "voice", Rate: &rates.Value{}}} }), 0, []string{"tin voice", "empty"}},
		{"empty ceil", with(func(s *Spec) { s.Tins = []TinOverride{{Name: "voice", Ceil: &rates.Value{}}} }), 0, []string{"tin voice", "empty"}},
		{"rate unlimited", spec(t, "1gbit", "voice=rate:unlimited"), 0, []string{"tin voice", "guarantee", "ceil:none"}},
		{"rate above the bandwidth", spec(t, "1gbit", "voice=rate:2gbit"), 0, []string{"tin voice", "2gbit", "above the bandwidth of 1gbit"}},
		{"default tin's rate above the bandwidth", spec(t, "1gbit", "best_effort=rate:2gbit"), 0, []string{"tin best_effort", "above the bandwidth"}},
		{"rate above its ceil", spec(t, "1gbit", "voice=rate:300mbit,ceil:20%"), 0, []string{"tin voice", "300mbit", "above its ceil of 200mbit"}},
		{"rate above its ceil, unlimited", spec(t, "unlimited", "voice=rate:3mbit,ceil:2mbit"), 0, []string{"tin voice", "above its ceil"}},
		{"ceil too small", spec(t, "1gbit", "voice=ceil:7999bit"), 0, []string{"tin voice", "7.999kbit", "below 8kbit"}},
		{"ceil too small in percent", spec(t, "1mbit", "voice=ceil:0.5%"), 0, []string{"0.5% (5kbit)", "below 8kbit"}},
		{"rate of nothing", spec(t, "64kbit", "voice=rate:0.001%"), 0, []string{"tin voice", "less than 1bit"}},
		{"percent of unlimited", spec(t, "unlimited", "voice=ceil:50%"), 0, []string{"tin voice: ceil 50%", "bandwidth is unlimited", "absolute rate"}},
		{"guarantees above the bandwidth", spec(t, "1gbit", "voice=rate:800mbit", "video=rate:30%"), 0,
			[]string{"video 300mbit, voice 800mbit", "add up to 1.1gbit", "above the bandwidth of 1gbit"}},
		{"guarantees that do not fit in 64 bits", spec(t, "1gbit", "voice=rate:18446744073709551614", "video=rate:18446744073709551614"), 0,
			[]string{"above the bandwidth of 1gbit"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := c.spec.Resolve(c.link)
			wantInvalid(t, err, c.want...)
			if !reflect.DeepEqual(cfg, rates.Config{}) {
				t.Errorf("a configuration beside the error: %+v", cfg)
			}
			if !c.spec.Bandwidth.IsPercent() && c.link == 0 {
				wantInvalid(t, c.spec.Validate(), c.want...)
			}
		})
	}
}

// With a bandwidth in percent Validate cannot know the rates, but checks all else.
func TestValidatePercent(t *testing.T) {
	if err := spec(t, "50%", "voice=rate:2gbit").Validate(); err != nil {
		t.Error(err)
	}
	wantInvalid(t, spec(t, "50%", "vioce=rate:2gbit").Validate(), "vioce")
}

func TestMetricsEnabled(t *testing.T) {
	for address, want := range map[string]bool{"": false, "none": false, "127.0.0.1:9750": true, ":0": true, "[::1]:9750": true} {
		s := spec(t, "1gbit")
		s.MetricsAddress = address
		if err := s.Validate(); err != nil || s.MetricsEnabled() != want {
			t.Errorf("metrics address %q: enabled %v, %v; want %v", address, s.MetricsEnabled(), err, want)
		}
	}
}

func TestApply(t *testing.T) {
	equal, rtt := rates.SplitEqual, 20*time.Millisecond
	base := []string{"voice=rate:200mbit,ceil:300mbit", "bulk=ceil:50%"}
	for _, c := range []struct {
		name   string
		change Change
		want   func(*Spec)
		tins   []string
	}{
		{"nothing", Change{}, nil, []string{"bulk=ceil:50%", "voice=rate:200mbit,ceil:300mbit"}},
		{"bandwidth", Change{Bandwidth: pointer(t, "2gbit")}, func(s *Spec) { s.Bandwidth = value(t, "2gbit") },
			[]string{"bulk=ceil:50%", "voice=rate:200mbit,ceil:300mbit"}},
		{"split and rtt", Change{Split: &equal, RTT: &rtt}, func(s *Spec) { s.Split, s.RTT = equal, rtt },
			[]string{"bulk=ceil:50%", "voice=rate:200mbit,ceil:300mbit"}},
		{"a ceil keeps the rate", Change{Tins: overrides(t, "voice=ceil:250mbit")}, nil,
			[]string{"bulk=ceil:50%", "voice=rate:200mbit,ceil:250mbit"}},
		{"a rate keeps the ceil", Change{Tins: overrides(t, "Voice=rate:10%")}, nil,
			[]string{"bulk=ceil:50%", "voice=rate:10%,ceil:300mbit"}},
		{"no ceil", Change{Tins: overrides(t, "voice=ceil:none")}, nil, []string{"bulk=ceil:50%", "voice=rate:200mbit"}},
		{"an unlimited ceil is none", Change{Tins: overrides(t, "voice=ceil:unlimited")}, nil, []string{"bulk=ceil:50%", "voice=rate:200mbit"}},
		{"the default rate", Change{Tins: overrides(t, "voice=rate:default")}, nil, []string{"bulk=ceil:50%", "voice=ceil:300mbit"}},
		{"back to the preset", Change{Tins: overrides(t, "voice=rate:default,ceil:none", "bulk=ceil:none")}, nil, nil},
		{"new tins, in the preset's order", Change{Tins: overrides(t, "video=rate:1mbit", "Best-Effort=ceil:900mbit")}, nil,
			[]string{"best_effort=ceil:900mbit", "bulk=ceil:50%", "video=rate:1mbit", "voice=rate:200mbit,ceil:300mbit"}},
		{"a lower bandwidth with the guarantee that it needs",
			Change{Bandwidth: pointer(t, "100mbit"), Tins: overrides(t, "voice=rate:20mbit")},
			func(s *Spec) { s.Bandwidth = value(t, "100mbit") }, []string{"bulk=ceil:50%", "voice=rate:20mbit,ceil:300mbit"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, untouched := spec(t, "1gbit", base...), spec(t, "1gbit", base...)
			want := spec(t, "1gbit", c.tins...)
			if c.want != nil {
				c.want(&want)
			}
			got, err := before.Apply(c.change)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("Apply = %+v, %v\nwant    %+v", got, err, want)
			}
			if !reflect.DeepEqual(before, untouched) {
				t.Errorf("the spec before was changed to %+v", before)
			}
			again, err := got.Apply(c.change)
			if err != nil || !reflect.DeepEqual(again, want) {
				t.Errorf("applied again: %+v, %v", again, err)
			}
		})
	}
}

func TestApplyRefuses(t *testing.T) {
	fair, short := rates.Split("fair"), time.Nanosecond
	base := spec(t, "1gbit", "voice=rate:200mbit,ceil:300mbit", "bulk=ceil:50%")
	for _, c := range []struct {
		name   string
		base   Spec
		change Change
		want   []string
	}{
		{"a bandwidth below a guarantee", base, Change{Bandwidth: pointer(t, "100mbit")}, []string{"tin voice", "200mbit", "above the bandwidth of 100mbit"}},
		{"a bandwidth out of range", base, Change{Bandwidth: pointer(t, "1tbit")}, []string{"above the maximum"}},
		{"an empty bandwidth", base, Change{Bandwidth: &rates.Value{}}, []string{"no bandwidth"}},
		{"percentages when it becomes unlimited", base, Change{Bandwidth: pointer(t, "unlimited")}, []string{"tin bulk: ceil 50%"}},
		{"a ceil below the rate that stays", base, Change{Tins: overrides(t, "voice=ceil:100mbit")}, []string{"above its ceil of 100mbit"}},
		{"a rate above the ceil that stays", base, Change{Tins: overrides(t, "voice=rate:400mbit")}, []string{"above its ceil of 300mbit"}},
		{"an unlimited rate", base, Change{Tins: overrides(t, "voice=rate:unlimited")}, []string{"guarantee"}},
		{"guarantees that do not fit any more", base, Change{Tins: overrides(t, "video=rate:900mbit")}, []string{"add up to 1.1gbit"}},
		{"an unknown tin", base, Change{Tins: overrides(t, "tin_1=rate:1mbit")}, []string{"tin_1", "diffserv4 has"}},
		{"a tin twice", base, Change{Tins: overrides(t, "voice=rate:1mbit", "voice=ceil:2mbit")}, []string{"voice is given twice"}},
		{"a tin twice in the spec before", spec(t, "1gbit", "voice=rate:1mbit", "voice=ceil:2mbit"), Change{}, []string{"voice is given twice"}},
		{"an unknown split", base, Change{Split: &fair}, []string{"fair"}},
		{"an rtt out of range", base, Change{RTT: &short}, []string{"rtt 1ns"}},
		{"an unknown preset in the spec before", Spec{Device: "eth0", Preset: "old"}, Change{}, []string{`preset "old"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.base.Apply(c.change)
			wantInvalid(t, err, c.want...)
			if !reflect.DeepEqual(got, Spec{}) {
				t.Errorf("a spec beside the error: %+v", got)
			}
		})
	}
}

func TestChangeEmpty(t *testing.T) {
	split, rtt := rates.SplitFlows, time.Second
	if !(Change{}).Empty() {
		t.Error("the zero Change is not empty")
	}
	for _, c := range []Change{{Bandwidth: pointer(t, "1gbit")}, {Tins: overrides(t, "voice=ceil:none")}, {Split: &split}, {RTT: &rtt}} {
		if c.Empty() {
			t.Errorf("%+v is empty", c)
		}
	}
}

func TestJSON(t *testing.T) {
	full := spec(t, "50%", "voice=rate:2gbit,ceil:50%", "bulk=rate:default,ceil:none")
	full.Keep, full.Replace = true, true
	const want = `{"device":"eth0","bandwidth":"50%","preset":"diffserv4","tins":[` +
		`{"name":"voice","rate":"2gbit","ceil":"50%"},{"name":"bulk","rate_default":true,"ceil_none":true}],` +
		`"split":"flows","isolation":"flows","rtt_ns":100000000,"metrics_address":"127.0.0.1:9750","keep":true,"replace":true}`
	encoded, err := json.Marshal(full)
	if err != nil || string(encoded) != want {
		t.Errorf("marshal = %s, %v\nwant      %s", encoded, err, want)
	}
	off := spec(t, "unlimited")
	off.MetricsAddress = ""
	for _, s := range []Spec{full, off, {}} {
		encoded, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Spec
		if err := json.Unmarshal(encoded, &back); err != nil || !reflect.DeepEqual(back, s) {
			t.Errorf("%s comes back as %+v, %v", encoded, back, err)
		}
	}
	split, rtt := rates.SplitEqual, time.Second
	for _, c := range []Change{{}, {Bandwidth: pointer(t, "1.5gbit"), Tins: overrides(t, "voice=rate:default,ceil:5%"), Split: &split, RTT: &rtt}} {
		encoded, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var back Change
		if err := json.Unmarshal(encoded, &back); err != nil || !reflect.DeepEqual(back, c) {
			t.Errorf("%s comes back as %+v, %v", encoded, back, err)
		}
	}
	var s Spec
	if err := json.Unmarshal([]byte(`{"bandwidth":"100mbps"}`), &s); err == nil {
		t.Error("a stored bandwidth of 100mbps is accepted")
	}
}

// Every preset resolves with its own tins, in CAKE's order.
func TestPresetsResolve(t *testing.T) {
	for _, preset := range tins.Presets() {
		s := spec(t, "100mbit")
		s.Preset = preset
		cfg, err := s.Resolve(0)
		if err != nil {
			t.Errorf("%s: %v", preset, err)
			continue
		}
		def, err := tins.Lookup(string(preset))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(cfg.Tins, def.Tins, func(c rates.TinConfig, d tins.Tin) bool { return c.Name == d.Name }) ||
			cfg.DefaultTin != def.DefaultTin {
			t.Errorf("%s: %+v", preset, cfg)
		}
	}
}

// TestApplyLine: an overhead says all about the line, the others a part of it.
func TestApplyLine(t *testing.T) {
	docsis, ptm := framing.Framing{OverIP: true, OverheadBytes: 18, MPUBytes: 64}, framing.PTM
	mpu, mask, yes := 80, uint32(0xff), true
	rules, none := []tins.Rule{{Field: tins.DSCP, From: 46, To: 46, Tin: "bulk"}}, []tins.Rule{}
	s := spec(t, "1gbit")
	for _, step := range []struct {
		name   string
		change Change
		want   func(*Spec)
	}{
		{"an overhead", Change{Framing: &docsis}, func(s *Spec) { s.Framing = docsis }},
		{"an mpu", Change{MPUBytes: &mpu}, func(s *Spec) { s.Framing.MPUBytes = 80 }},
		{"cells", Change{Cells: &ptm}, func(s *Spec) { s.Framing.Cells = framing.PTM }},
		{"rules", Change{Map: &rules}, func(s *Spec) { s.Map = rules }},
		{"the rest", Change{FwmarkMask: &mask, InnerDSCP: &yes, Wash: &yes}, func(s *Spec) { s.FwmarkMask, s.InnerDSCP, s.Wash = mask, true, true }},
		{"another overhead with an mpu", Change{Framing: &docsis, MPUBytes: &mpu}, func(s *Spec) { s.Framing = docsis; s.Framing.MPUBytes = 80 }},
		{"no rules", Change{Map: &none}, func(s *Spec) { s.Map = none }},
		{"raw", Change{Framing: &framing.Framing{}}, func(s *Spec) { s.Framing = framing.Framing{} }},
	} {
		want := s
		step.want(&want)
		got, err := s.Apply(step.change)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v\nwant %+v", step.name, got, err, want)
		}
		if step.change.Empty() {
			t.Errorf("%s: the change is empty", step.name)
		}
		encoded, err := json.Marshal(step.change)
		if err != nil {
			t.Fatal(err)
		}
		var back Change
		if err := json.Unmarshal(encoded, &back); err != nil || !reflect.DeepEqual(back, step.change) {
			t.Errorf("%s: %s comes back as %+v, %v", step.name, encoded, back, err)
		}
		s = want
	}
	far := 257
	if _, err := s.Apply(Change{MPUBytes: &far}); !errors.Is(err, ErrInvalid) {
		t.Errorf("an mpu of 257: %v", err)
	}
	rules = []tins.Rule{{Field: tins.DSCP, Tin: "tin_7"}}
	if _, err := s.Apply(Change{Map: &rules}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a rule for a tin that there is not: %v", err)
	}
}

func TestParseLine(t *testing.T) {
	if got, err := ParseOverhead("pppoe-ptm, ether-vlan", "ether-vlan"); err != nil || got != (framing.Framing{OverIP: true, OverheadBytes: 38, Cells: framing.PTM}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, parse := range []func() error{
		func() error { _, err := ParseOverhead(""); return err },
		func() error { _, err := ParseOverhead("adsl"); return err },
		func() error { _, err := ParseMPU("64b"); return err },
		func() error { _, err := ParseMPU("-1"); return err },
		func() error { _, err := ParseCells("aal5"); return err },
		func() error { _, err := ParseMap([]string{"EF=voice"}); return err },
		func() error { _, err := ParseMap([]string{"none", "dscp:EF=voice"}); return err },
		func() error { _, err := ParseFwmark("0x1ffffffff"); return err },
	} {
		if err := parse(); !errors.Is(err, ErrInvalid) {
			t.Errorf("got %v, want an ErrInvalid", err)
		}
	}
	if rules, err := ParseMap([]string{"None"}); err != nil || rules == nil || len(rules) != 0 {
		t.Errorf("no rules: %v, %v", rules, err)
	}
	for text, want := range map[string]uint32{"0xff": 0xff, "none": 0, "0": 0, "16": 16} {
		if got, err := ParseFwmark(text); err != nil || got != want {
			t.Errorf("fwmark %s: %#x, %v", text, got, err)
		}
	}
}

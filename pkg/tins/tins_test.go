// SPDX-License-Identifier: BSD-2-Clause

package tins

import (
	"slices"
	"strings"
	"testing"

	"github.com/cakectl/cakectl/pkg/rates"
)

func lookup(t *testing.T, preset Preset) Def {
	t.Helper()
	def, err := Lookup(string(preset))
	if err != nil {
		t.Fatal(err)
	}
	return def
}

// The tables are written out DSCP by DSCP, one row for each class selector, so that they do
// not share the lists that the presets are built from.
func TestDSCPToTin(t *testing.T) {
	for preset, want := range map[Preset][64]uint8{
		BestEffort: {},
		Precedence: {
			0, 0, 0, 0, 0, 0, 0, 0,
			1, 1, 1, 1, 1, 1, 1, 1,
			2, 2, 2, 2, 2, 2, 2, 2,
			3, 3, 3, 3, 3, 3, 3, 3,
			4, 4, 4, 4, 4, 4, 4, 4,
			5, 5, 5, 5, 5, 5, 5, 5,
			6, 6, 6, 6, 6, 6, 6, 6,
			7, 7, 7, 7, 7, 7, 7, 7,
		},
		Diffserv3: {
			0, 1, 0, 0, 2, 0, 0, 0, // CS0, LE, TOS1, -, TOS4
			1, 0, 0, 0, 0, 0, 0, 0, // CS1, AF1x
			0, 0, 0, 0, 0, 0, 0, 0, // CS2, AF2x
			0, 0, 0, 0, 0, 0, 0, 0, // CS3, AF3x
			0, 0, 0, 0, 0, 0, 0, 0, // CS4, AF4x
			0, 0, 0, 0, 2, 0, 2, 0, // CS5, VA, NQB, EF
			2, 0, 0, 0, 0, 0, 0, 0, // CS6
			2, 0, 0, 0, 0, 0, 0, 0, // CS7
		},
		Diffserv4: {
			0, 1, 0, 0, 2, 0, 0, 0,
			1, 0, 0, 0, 0, 0, 0, 0,
			2, 0, 2, 0, 2, 0, 2, 0,
			2, 0, 2, 0, 2, 0, 2, 0,
			3, 0, 2, 0, 2, 0, 2, 0,
			3, 0, 0, 0, 3, 0, 3, 0,
			3, 0, 0, 0, 0, 0, 0, 0,
			3, 0, 0, 0, 0, 0, 0, 0,
		},
		Diffserv8: {
			2, 0, 1, 2, 4, 2, 2, 2,
			1, 2, 1, 2, 1, 2, 1, 2,
			5, 2, 4, 2, 4, 2, 4, 2,
			3, 2, 3, 2, 3, 2, 3, 2,
			6, 2, 3, 2, 3, 2, 3, 2,
			6, 2, 2, 2, 6, 2, 6, 2,
			7, 2, 2, 2, 2, 2, 2, 2,
			7, 2, 2, 2, 2, 2, 2, 2,
		},
	} {
		def := lookup(t, preset)
		for dscp, tin := range want {
			if def.DSCPToTin[dscp] != tin {
				t.Errorf("%s: DSCP %d goes to tin %d, want %d", preset, dscp, def.DSCPToTin[dscp], tin)
			}
		}
	}
}

func TestTins(t *testing.T) {
	eight := []string{"tin_0", "tin_1", "tin_2", "tin_3", "tin_4", "tin_5", "tin_6", "tin_7"}
	inOrder := []int{0, 1, 2, 3, 4, 5, 6, 7}
	// Thresholds at 1 Gbit/s; those of eight tins are 100, 87.5, 76.56, 66.99, 58.62, 51.29, 44.88
	// and 39.27 %, rounded down to a bit at each step.
	sevenEighths := []rates.Rate{1_000_000_000, 875_000_000, 765_625_000, 669_921_875,
		586_181_640, 512_908_935, 448_795_318, 392_695_903}
	for _, c := range []struct {
		preset     Preset
		names      []string
		thresholds []rates.Rate
		defaultTin int
		display    []int
	}{
		{BestEffort, []string{"best_effort"}, []rates.Rate{rates.Gbit}, 0, []int{0}},
		{Precedence, eight, sevenEighths, 0, inOrder},
		{Diffserv3, []string{"best_effort", "bulk", "voice"},
			[]rates.Rate{rates.Gbit, 62_500_000, 250_000_000}, 0, []int{1, 0, 2}},
		{Diffserv4, []string{"best_effort", "bulk", "video", "voice"},
			[]rates.Rate{rates.Gbit, 62_500_000, 500_000_000, 250_000_000}, 0, []int{1, 0, 2, 3}},
		{Diffserv8, eight, sevenEighths, 2, inOrder},
	} {
		def := lookup(t, c.preset)
		var names []string
		var thresholds []rates.Rate
		for _, tin := range def.Tins {
			names = append(names, tin.Name)
			thresholds = append(thresholds, tin.Threshold.Of(rates.Gbit))
			if got := tin.Threshold.Of(rates.Unlimited); got != rates.Unlimited {
				t.Errorf("%s %s: threshold of unlimited is %v", c.preset, tin.Name, got)
			}
		}
		if def.Preset != c.preset {
			t.Errorf("%s calls itself %s", c.preset, def.Preset)
		}
		if !slices.Equal(names, c.names) {
			t.Errorf("%s: tins %v, want %v", c.preset, names, c.names)
		}
		if !slices.Equal(thresholds, c.thresholds) {
			t.Errorf("%s: thresholds %v, want %v", c.preset, thresholds, c.thresholds)
		}
		if def.DefaultTin != c.defaultTin || def.DefaultTin != int(def.DSCPToTin[0]) {
			t.Errorf("%s: default tin %d, DSCP 0 goes to %d, want %d", c.preset, def.DefaultTin, def.DSCPToTin[0], c.defaultTin)
		}
		if !slices.Equal(def.DisplayOrder, c.display) {
			t.Errorf("%s: display order %v, want %v", c.preset, def.DisplayOrder, c.display)
		}
	}
}

func TestLookup(t *testing.T) {
	if def := lookup(t, Default); def.Preset != Diffserv4 {
		t.Errorf("the default is %s, want diffserv4", def.Preset)
	}
	for _, preset := range Presets() {
		if def, err := Lookup(strings.ToUpper(string(preset))); err != nil || def.Preset != preset {
			t.Errorf("%s in upper case: %v, %v", preset, def.Preset, err)
		}
	}
	_, err := Lookup("diffserv5")
	if want := `unknown preset "diffserv5": want one of besteffort, precedence, diffserv3, diffserv4, diffserv8`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	// What a caller does to a definition must not reach the next one.
	lookup(t, Diffserv4).Tins[0].Name = "changed"
	if got := lookup(t, Diffserv4).Tins[0].Name; got != "best_effort" {
		t.Errorf("a definition is shared: %q", got)
	}
}

func TestTinIndex(t *testing.T) {
	for _, c := range []struct {
		preset Preset
		name   string
		want   int
	}{
		{Diffserv4, "voice", 3},
		{Diffserv4, "VOICE", 3},
		{Diffserv3, "Voice", 2},
		{Diffserv4, "best_effort", 0},
		{Diffserv4, "Best-Effort", 0},
		{Diffserv4, "best effort", 0},
		{Diffserv4, "besteffort", 0},
		{BestEffort, " BestEffort ", 0},
		{Diffserv8, "tin_7", 7},
		{Diffserv8, "Tin 0", 0},
		{Precedence, "tin3", 3},
	} {
		if got, err := lookup(t, c.preset).TinIndex(c.name); err != nil || got != c.want {
			t.Errorf("%s %q = %d, %v; want %d", c.preset, c.name, got, err, c.want)
		}
	}
	for _, c := range []struct {
		preset     Preset
		name, want string
	}{
		{Diffserv4, "vioce", `unknown tin "vioce": diffserv4 has bulk, best_effort, video, voice`},
		{Diffserv3, "Video", `unknown tin "Video": diffserv3 has bulk, best_effort, voice`},
		{BestEffort, "bulk", `unknown tin "bulk": besteffort has best_effort`},
		{Precedence, "tin_8", `unknown tin "tin_8": precedence has tin_0, tin_1, tin_2, tin_3, tin_4, tin_5, tin_6, tin_7`},
		{Diffserv4, "", `unknown tin "": diffserv4 has bulk, best_effort, video, voice`},
	} {
		if i, err := lookup(t, c.preset).TinIndex(c.name); err == nil || err.Error() != c.want {
			t.Errorf("%s %q = %d, %v; want the error %s", c.preset, c.name, i, err, c.want)
		}
	}
}

func TestCanonicalName(t *testing.T) {
	for name, want := range map[string]string{
		"Best-Effort": "best_effort", "BESTEFFORT": "best_effort", "b-ulk": "bulk", "Tin 5": "tin_5", "tin5": "tin_5",
		"My Own-Tin": "my_own_tin", "": "",
	} {
		if got := CanonicalName(name); got != want {
			t.Errorf("CanonicalName(%q) = %q, want %q", name, got, want)
		}
	}
}

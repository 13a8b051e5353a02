// SPDX-License-Identifier: BSD-2-Clause

package tins

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cakectl/cakectl/pkg/rates"
)

// Preset is the name of a set of tins.
type Preset string

// The presets, by CAKE's names.
const (
	BestEffort Preset = "besteffort"
	Precedence Preset = "precedence"
	Diffserv3  Preset = "diffserv3"
	Diffserv4  Preset = "diffserv4"
	Diffserv8  Preset = "diffserv8"

	// Default is the preset that is used when none is named.
	Default = Diffserv4
)

// MaxTins is the number of tins of the largest presets.
const MaxTins = 8

// Names of the tins, as in labels and configuration. Those of precedence and diffserv8 are tin_0 to tin_7.
const (
	TinBestEffort = "best_effort"
	TinBulk       = "bulk"
	TinVideo      = "video"
	TinVoice      = "voice"
)

// Threshold is the part of the bandwidth up to which a tin has priority: 7/8 of it, SevenEighths
// times, then shifted right. It is kept in this form because CAKE rounds down at each step.
type Threshold struct {
	SevenEighths, Shift uint8
}

// Of is the threshold at a bandwidth. That of Unlimited is Unlimited.
func (t Threshold) Of(bandwidth rates.Rate) rates.Rate {
	if bandwidth == rates.Unlimited {
		return rates.Unlimited
	}
	for range t.SevenEighths {
		bandwidth = bandwidth * 7 >> 3
	}
	return bandwidth >> t.Shift
}

// Tin is one class of traffic.
type Tin struct {
	Name      string
	Threshold Threshold
}

// Def is what a preset stands for.
type Def struct {
	Preset Preset
	// Tins are indexed by CAKE's internal index; a higher index has the higher priority.
	Tins []Tin
	// DSCPToTin is the tin index of each DSCP.
	DSCPToTin [64]uint8
	// DefaultTin is the index of the tin of unmarked traffic (DSCP 0).
	DefaultTin int
	// DisplayOrder lists the tin indices as CAKE's statistics do: lowest priority first.
	DisplayOrder []int
}

// Presets lists the names that Lookup knows.
func Presets() []Preset {
	return []Preset{BestEffort, Precedence, Diffserv3, Diffserv4, Diffserv8}
}

// Lookup gives the preset of a name; case does not matter. The error lists the valid names.
func Lookup(name string) (Def, error) {
	switch preset := Preset(strings.ToLower(name)); preset {
	case BestEffort:
		return define(preset, []Tin{{Name: TinBestEffort}}, 0, nil), nil
	case Precedence:
		def := define(preset, eightTins(), 0, nil)
		for dscp := range def.DSCPToTin {
			def.DSCPToTin[dscp] = uint8(dscp >> 3)
		}
		return def, nil
	case Diffserv3:
		return define(preset, []Tin{
			{TinBestEffort, Threshold{}},
			{TinBulk, Threshold{Shift: 4}},
			{TinVoice, Threshold{Shift: 2}},
		}, 0, map[int][]uint8{
			1: {1, 8},              // LE, CS1
			2: {4, 44, 46, 48, 56}, // TOS4, VA, EF, CS6, CS7
		}), nil
	case Diffserv4:
		return define(preset, []Tin{
			{TinBestEffort, Threshold{}},
			{TinBulk, Threshold{Shift: 4}},
			{TinVideo, Threshold{Shift: 1}},
			{TinVoice, Threshold{Shift: 2}},
		}, 0, map[int][]uint8{
			1: {1, 8},                                          // LE, CS1
			2: {4, 16, 18, 20, 22, 24, 26, 28, 30, 34, 36, 38}, // TOS4, CS2, AF2x, CS3, AF3x, AF4x
			3: {32, 40, 44, 46, 48, 56},                        // CS4, CS5, VA, EF, CS6, CS7
		}), nil
	case Diffserv8:
		return define(preset, eightTins(), 2, map[int][]uint8{
			0: {1},                          // LE
			1: {2, 8, 10, 12, 14},           // TOS1, CS1, AF1x
			3: {24, 26, 28, 30, 34, 36, 38}, // CS3, AF3x, AF4x
			4: {4, 18, 20, 22},              // TOS4, AF2x
			5: {16},                         // CS2
			6: {32, 40, 44, 46},             // CS4, CS5, VA, EF
			7: {48, 56},                     // CS6, CS7
		}), nil
	}
	names := make([]string, 0, len(Presets()))
	for _, p := range Presets() {
		names = append(names, string(p))
	}
	return Def{}, fmt.Errorf("unknown preset %q: want one of %s", name, strings.Join(names, ", "))
}

// define makes a preset in which the DSCPs listed for a tin go there and all others to rest.
func define(preset Preset, tins []Tin, rest int, dscps map[int][]uint8) Def {
	def := Def{Preset: preset, Tins: tins, DefaultTin: rest}
	for dscp := range def.DSCPToTin {
		def.DSCPToTin[dscp] = uint8(rest)
	}
	for tin, list := range dscps {
		for _, dscp := range list {
			def.DSCPToTin[dscp] = uint8(tin)
		}
	}
	for i := range tins {
		def.DisplayOrder = append(def.DisplayOrder, i)
	}
	if len(tins) > 1 && tins[1].Name == TinBulk {
		// Bulk wins over Best Effort up to its small threshold, but is shown below it.
		def.DisplayOrder[0], def.DisplayOrder[1] = 1, 0
	}
	return def
}

// eightTins are tin_0 to tin_7, each with 7/8 of the threshold of the one before.
func eightTins() []Tin {
	tins := make([]Tin, MaxTins)
	for i := range tins {
		tins[i] = Tin{fmt.Sprintf("tin_%d", i), Threshold{SevenEighths: uint8(i)}}
	}
	return tins
}

// CanonicalName gives the form of a tin's name that labels use: lower case, with underscores. Case
// does not matter in name, nor whether words are joined by "-", "_", a space or nothing. A name that
// no preset has comes back in lower case with underscores.
func CanonicalName(name string) string {
	joined := strings.NewReplacer("-", "_", " ", "_").Replace(strings.ToLower(strings.TrimSpace(name)))
	bare := strings.ReplaceAll(joined, "_", "")
	for _, known := range []string{TinBestEffort, TinBulk, TinVideo, TinVoice} {
		if bare == strings.ReplaceAll(known, "_", "") {
			return known
		}
	}
	for _, tin := range eightTins() {
		if bare == strings.ReplaceAll(tin.Name, "_", "") {
			return tin.Name
		}
	}
	return joined
}

// TinIndex finds a tin by its name, in any of the spellings that CanonicalName takes. The error
// lists the tins of the preset.
func (d Def) TinIndex(name string) (int, error) {
	canonical := CanonicalName(name)
	i := slices.IndexFunc(d.Tins, func(t Tin) bool { return t.Name == canonical })
	if i < 0 {
		return 0, fmt.Errorf("unknown tin %q: %s has %s", name, d.Preset, strings.Join(d.TinNames(), ", "))
	}
	return i, nil
}

// TinNames lists the tins in display order.
func (d Def) TinNames() []string {
	names := make([]string, 0, len(d.Tins))
	for _, i := range d.DisplayOrder {
		names = append(names, d.Tins[i].Name)
	}
	return names
}

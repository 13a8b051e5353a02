// SPDX-License-Identifier: BSD-2-Clause

package rates

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// diffserv4 is what the preset makes of a bandwidth: best effort, bulk, video, voice.
func diffserv4(bandwidth Rate) Config {
	return Config{
		Bandwidth: bandwidth,
		Split:     SplitFlows,
		Tins: []TinConfig{
			{Name: "best_effort", Rate: bandwidth, Ceil: Unlimited},
			{Name: "bulk", Rate: bandwidth >> 4, Ceil: Unlimited},
			{Name: "video", Rate: bandwidth >> 1, Ceil: Unlimited},
			{Name: "voice", Rate: bandwidth >> 2, Ceil: Unlimited},
		},
	}
}

func TestTinShares(t *testing.T) {
	const (
		bestEffort = 1 << iota
		bulk
		video
		voice
		all = 15
	)
	for _, c := range []struct {
		name   string
		adjust func(*Config)
		active int
		want   []Rate
	}{
		{"nothing active", nil, 0, []Rate{0, 0, 0, 0}},
		{"one tin has it all", nil, bestEffort, []Rate{6400 * Kbit, 0, 0, 0}},
		{"bulk alone has it all", nil, bulk, []Rate{0, 6400 * Kbit, 0, 0}},
		{"best effort takes what bulk may not", nil, bestEffort | bulk, []Rate{6000 * Kbit, 400 * Kbit, 0, 0}},
		{"all", nil, all, []Rate{1200 * Kbit, 400 * Kbit, 3200 * Kbit, 1600 * Kbit}},
		{"the rest goes in proportion to the rates: 8 to 1", nil, bulk | video,
			// 400 + 2800/9, 3200 + 2800*8/9; the odd bit goes to the higher tin
			[]Rate{0, 711_111, 5_688_889, 0}},
		{"explicit rates come first", func(c *Config) {
			c.Tins[1].Rate, c.Tins[1].Explicit = 5000*Kbit, true
		}, all, []Rate{100 * Kbit, 5000 * Kbit, 100 * Kbit, 1200 * Kbit}},
		{"explicit rates in order of priority", func(c *Config) {
			c.Tins[1].Rate, c.Tins[1].Explicit = 5000*Kbit, true
			c.Tins[3].Rate, c.Tins[3].Explicit = 4000*Kbit, true
		}, bulk | voice, []Rate{0, 2400 * Kbit, 0, 4000 * Kbit}},
		{"nobody starves", func(c *Config) {
			c.Tins[3].Rate, c.Tins[3].Explicit = 6400*Kbit, true
		}, all, []Rate{100 * Kbit, 100 * Kbit, 100 * Kbit, 6100 * Kbit}},
		{"a ceiling caps the threshold", func(c *Config) {
			c.Tins[2].Ceil = 640 * Kbit
		}, bestEffort | video, []Rate{5760 * Kbit, 0, 640 * Kbit, 0}},
		{"a ceiling below the floor", func(c *Config) {
			c.Tins[1].Ceil = 10 * Kbit
		}, bestEffort | bulk, []Rate{6390 * Kbit, 10 * Kbit, 0, 0}},
		{"only ceilings left", func(c *Config) {
			c.Tins[1].Ceil, c.Tins[2].Ceil = Mbit, 2*Mbit
		}, bulk | video, []Rate{0, Mbit, 2 * Mbit, 0}},
		{"one at its ceiling leaves the rest to the other", func(c *Config) {
			c.Tins[2].Ceil = 3300 * Kbit
		}, bulk | video, []Rate{0, 3100 * Kbit, 3300 * Kbit, 0}},
		{"no ceiling is 0 or unlimited or above the bandwidth", func(c *Config) {
			c.Tins[1].Ceil, c.Tins[3].Ceil = 0, 7*Mbit
		}, bulk | voice, []Rate{0, 1280 * Kbit, 0, 5120 * Kbit}},
		{"unlimited", func(c *Config) { c.Bandwidth = Unlimited }, bestEffort | voice, []Rate{Unlimited, 0, 0, Unlimited}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := diffserv4(6400 * Kbit)
			if c.adjust != nil {
				c.adjust(&cfg)
			}
			active := make([]bool, len(cfg.Tins))
			for i := range active {
				active[i] = c.active>>i&1 == 1
			}
			if got := TinShares(cfg, active); !slices.Equal(got, c.want) {
				t.Errorf("shares %v, want %v", got, c.want)
			}
		})
	}
}

func TestTinSharesOfShortActiveList(t *testing.T) {
	if got := TinShares(diffserv4(Mbit), []bool{true}); !slices.Equal(got, []Rate{Mbit, 0, 0, 0}) {
		t.Errorf("shares %v", got)
	}
}

func TestPlan(t *testing.T) {
	const be, bulk, voice = 0, 1, 3
	for _, c := range []struct {
		name      string
		bandwidth Rate
		split     Split
		active    []Cell
		want      []Grant
	}{
		{"nothing active", Mbit, SplitFlows, nil, nil},
		{"one queue", Mbit, SplitFlows, []Cell{{Queue: 5, Tin: be, Flows: 9}}, []Grant{{5, be, Mbit}}},
		{"by flows", Mbit, SplitFlows,
			[]Cell{{3, be, 1}, {0, be, 3}}, []Grant{{0, be, 750 * Kbit}, {3, be, 250 * Kbit}}},
		{"equally", Mbit, SplitEqual,
			[]Cell{{3, be, 1}, {0, be, 3}}, []Grant{{0, be, 500 * Kbit}, {3, be, 500 * Kbit}}},
		{"the remainder goes to the first queues", 64_001, SplitEqual,
			[]Cell{{2, be, 1}, {1, be, 1}, {0, be, 1}}, []Grant{{0, be, 21_334}, {1, be, 21_334}, {2, be, 21_333}}},
		// A queue counts in the tins that it is active in, and only there: cake_mq divides
		// every tin by all three.
		{"each tin by its own queues", 1600 * Kbit, SplitEqual,
			[]Cell{{0, voice, 1}, {0, be, 1}, {1, be, 1}, {2, be, 8}, {2, bulk, 2}},
			[]Grant{{0, be, 366_667}, {1, be, 366_667}, {2, be, 366_666}, {2, bulk, 100 * Kbit}, {0, voice, 400 * Kbit}}},
		{"unlimited", Unlimited, SplitFlows,
			[]Cell{{1, voice, 4}, {0, be, 1}}, []Grant{{0, be, Unlimited}, {1, voice, Unlimited}}},
		{"cells that are not active", Mbit, SplitFlows,
			[]Cell{{0, be, 0}, {1, -1, 1}, {2, 4, 1}, {3, be, 1}}, []Grant{{3, be, Mbit}}},
		{"400 gbit and as many flows as there can be", 400 * Gbit, SplitFlows,
			[]Cell{{0, be, 1 << 20}, {1, be, 3 << 20}, {2, be, 1<<32 - 1}},
			[]Grant{{0, be, 97_560_976}, {1, be, 292_682_927}, {2, be, 399_609_756_097}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := diffserv4(c.bandwidth)
			cfg.Split = c.split
			before := slices.Clone(c.active)
			if got := Plan(cfg, c.active); !slices.Equal(got, c.want) {
				t.Errorf("grants %v, want %v", got, c.want)
			}
			if !slices.Equal(c.active, before) {
				t.Errorf("the input was changed to %v", c.active)
			}
		})
	}
}

func TestParseSplit(t *testing.T) {
	for _, want := range []Split{SplitFlows, SplitEqual} {
		if got, err := ParseSplit(string(want)); err != nil || got != want {
			t.Errorf("ParseSplit(%q) = %q, %v", want, got, err)
		}
	}
	if _, err := ParseSplit("fair"); err == nil {
		t.Error(`"fair" is accepted`)
	}
}

// configGen draws configurations of 1 to 8 tins: thresholds, explicit rates and ceilings of any size.
func configGen() *rapid.Generator[Config] {
	return rapid.Custom(func(t *rapid.T) Config {
		cfg := Config{
			Bandwidth: Rate(rapid.Uint64Range(uint64(MinBandwidth), uint64(MaxBandwidth)).Draw(t, "bandwidth")),
			Split:     rapid.SampledFrom([]Split{SplitFlows, SplitEqual}).Draw(t, "split"),
		}
		upTo := func(most Rate) *rapid.Generator[Rate] {
			return rapid.Custom(func(t *rapid.T) Rate { return Rate(rapid.Uint64Range(1, uint64(most)).Draw(t, "rate")) })
		}
		for range rapid.IntRange(1, 8).Draw(t, "tins") {
			cfg.Tins = append(cfg.Tins, TinConfig{
				Rate:     upTo(cfg.Bandwidth).Draw(t, "threshold"),
				Explicit: rapid.Bool().Draw(t, "explicit"),
				Ceil:     rapid.OneOf(rapid.Just(Unlimited), upTo(2*cfg.Bandwidth)).Draw(t, "ceil"),
			})
		}
		cfg.DefaultTin = rapid.IntRange(0, len(cfg.Tins)-1).Draw(t, "default")
		return cfg
	})
}

// cellsGen draws the active cells of up to 1,024 queues, each at most once: a few that shrink
// well, or a share of all of them from a seed.
func cellsGen(tins int) *rapid.Generator[[]Cell] {
	flows := rapid.OneOf(rapid.Uint32Range(1, 4), rapid.Uint32Range(1, 1<<20))
	few := rapid.Custom(func(t *rapid.T) []Cell {
		cell := rapid.Custom(func(t *rapid.T) Cell {
			return Cell{
				Queue: rapid.IntRange(0, 1023).Draw(t, "queue"),
				Tin:   rapid.IntRange(0, tins-1).Draw(t, "tin"),
				Flows: flows.Draw(t, "flows"),
			}
		})
		return rapid.SliceOfNDistinct(cell, 0, 16, func(c Cell) Cell { c.Flows = 0; return c }).Draw(t, "cells")
	})
	many := rapid.Custom(func(t *rapid.T) []Cell {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		queues := rapid.SampledFrom([]int{1, 2, 8, 64, 1024}).Draw(t, "queues")
		percentActive := rapid.SampledFrom([]int{3, 50, 100}).Draw(t, "percentActive")
		most := flows.Draw(t, "most")
		var cells []Cell
		for queue := range queues {
			for tin := range tins {
				if random.IntN(100) < percentActive {
					cells = append(cells, Cell{Queue: queue, Tin: tin, Flows: 1 + random.Uint32N(most)})
				}
			}
		}
		return cells
	})
	return rapid.OneOf(few, many)
}

// The shares add up to the bandwidth, or to what the ceilings leave of it; no ceiling is
// exceeded, nobody starves, and an explicit rate is met as far as those above it leave room.
func TestTinSharesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := configGen().Draw(t, "config")
		active := rapid.SliceOfN(rapid.Bool(), len(cfg.Tins), len(cfg.Tins)).Draw(t, "active")
		shares := TinShares(cfg, active)
		var sum, ceilings, explicit, floors Rate
		floor := cfg.Bandwidth / 64
		for i, tin := range cfg.Tins {
			ceil := min(tin.Ceil, cfg.Bandwidth)
			switch {
			case !active[i] && shares[i] != 0:
				t.Fatalf("idle tin %d has %v", i, shares[i])
			case !active[i]:
				continue
			case shares[i] > ceil:
				t.Fatalf("tin %d has %v, above its ceiling of %v", i, shares[i], ceil)
			case shares[i] < min(ceil, floor):
				t.Fatalf("tin %d starves with %v", i, shares[i])
			}
			sum += shares[i]
			ceilings += ceil
			floors += floor
			if tin.Explicit {
				explicit += min(tin.Rate, ceil)
			}
		}
		if want := min(cfg.Bandwidth, ceilings); sum != want {
			t.Fatalf("shares %v add up to %v, want %v", shares, sum, want)
		}
		if explicit+floors <= cfg.Bandwidth {
			for i, tin := range cfg.Tins {
				if active[i] && tin.Explicit && shares[i] < min(tin.Rate, tin.Ceil) {
					t.Fatalf("tin %d is guaranteed %v and has %v", i, tin.Rate, shares[i])
				}
			}
		}
	})
}

func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := configGen().Draw(t, "config")
		cells := cellsGen(len(cfg.Tins)).Draw(t, "cells")
		grants := Plan(cfg, cells)

		if len(grants) != len(cells) {
			t.Fatalf("%d grants for %d cells", len(grants), len(cells))
		}
		order := func(a, b Grant) int {
			if a.Tin != b.Tin {
				return a.Tin - b.Tin
			}
			return a.Queue - b.Queue
		}
		if !slices.IsSortedFunc(grants, order) {
			t.Fatal("the grants are not sorted by tin and queue")
		}

		active := make([]bool, len(cfg.Tins))
		flows := map[[2]int]uint32{}
		for _, c := range cells {
			active[c.Tin] = true
			flows[[2]int{c.Queue, c.Tin}] = c.Flows
		}
		var sum, ceilings Rate
		byTin := make([]Rate, len(cfg.Tins))
		for _, g := range grants {
			if flows[[2]int{g.Queue, g.Tin}] == 0 {
				t.Fatalf("a grant for the idle queue %d, tin %d", g.Queue, g.Tin)
			}
			byTin[g.Tin] += g.Rate
			sum += g.Rate
		}
		if shares := TinShares(cfg, active); !slices.Equal(byTin, shares) {
			t.Fatalf("the grants of the tins add up to %v, their shares are %v", byTin, shares)
		}
		for i, tin := range cfg.Tins {
			if byTin[i] > tin.Ceil {
				t.Fatalf("tin %d has %v, above its ceiling of %v", i, byTin[i], tin.Ceil)
			}
			if active[i] {
				ceilings += min(tin.Ceil, cfg.Bandwidth)
			}
		}
		if sum > cfg.Bandwidth {
			t.Fatalf("the plan adds up to %v of %v", sum, cfg.Bandwidth)
		}
		if float64(sum) < 0.999*float64(min(cfg.Bandwidth, ceilings)) {
			t.Fatalf("the plan adds up to only %v of %v", sum, min(cfg.Bandwidth, ceilings))
		}

		// Within a tin the grants are the exact quotas but for one bit.
		totals, counts := make([]float64, len(cfg.Tins)), make([]float64, len(cfg.Tins))
		for _, c := range cells {
			totals[c.Tin] += float64(c.Flows)
			counts[c.Tin]++
		}
		for _, g := range grants {
			quota := float64(byTin[g.Tin]) / counts[g.Tin]
			if cfg.Split == SplitFlows {
				quota = float64(byTin[g.Tin]) * float64(flows[[2]int{g.Queue, g.Tin}]) / totals[g.Tin]
			}
			if off := float64(g.Rate) - quota; off >= 1.001 || off <= -1.001 {
				t.Fatalf("queue %d, tin %d has %v, its quota is %f", g.Queue, g.Tin, g.Rate, quota)
			}
		}

		shuffled := rapid.Permutation(cells).Draw(t, "shuffled")
		if again := Plan(cfg, shuffled); !slices.Equal(again, grants) {
			t.Fatal("the plan depends on the order of the cells")
		}
	})
}

// More flows on a queue never give it less, when the others stay as they are.
func TestPlanIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := configGen().Draw(t, "config")
		cells := cellsGen(len(cfg.Tins)).Filter(func(c []Cell) bool { return len(c) > 0 }).Draw(t, "cells")
		grown := rapid.IntRange(0, len(cells)-1).Draw(t, "grown")
		rate := func() Rate {
			grants := Plan(cfg, cells)
			i := slices.IndexFunc(grants, func(g Grant) bool {
				return g.Queue == cells[grown].Queue && g.Tin == cells[grown].Tin
			})
			return grants[i].Rate
		}
		before := rate()
		cells[grown].Flows += rapid.OneOf(rapid.Uint32Range(1, 3), rapid.Uint32Range(1, 1<<20)).Draw(t, "more")
		if after := rate(); after < before {
			t.Fatalf("with more flows the grant went from %v to %v", before, after)
		}
	})
}

// A Planner that has been used plans as a new one.
func TestPlannerReuse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var planner Planner
		for range rapid.IntRange(1, 4).Draw(t, "plans") {
			cfg := configGen().Draw(t, "config")
			cells := cellsGen(len(cfg.Tins)).Draw(t, "cells")
			if got, want := planner.Plan(cfg, cells), Plan(cfg, cells); !slices.Equal(got, want) {
				t.Fatalf("grants %v, want %v", got, want)
			}
		}
	})
}

// busyCells are 64 queues active in all four tins, listed queue by queue.
func busyCells() []Cell {
	var cells []Cell
	for queue := range 64 {
		for tin := range 4 {
			cells = append(cells, Cell{Queue: queue, Tin: tin, Flows: uint32(1 + (queue*7+tin*3)%13)})
		}
	}
	return cells
}

func TestPlannerDoesNotAllocate(t *testing.T) {
	var planner Planner
	cfg, cells := diffserv4(10*Gbit), busyCells()
	planner.Plan(cfg, cells)
	if n := testing.AllocsPerRun(10, func() { planner.Plan(cfg, cells) }); n != 0 {
		t.Errorf("a plan made %v allocations in used buffers", n)
	}
}

func BenchmarkPlan(b *testing.B) {
	var planner Planner
	cfg, cells := diffserv4(10*Gbit), busyCells()
	b.ReportAllocs()
	for b.Loop() {
		planner.Plan(cfg, cells)
	}
}

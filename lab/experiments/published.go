// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cakectl/cakectl/lab/shaper"
)

// Figure is a published result that one of an experiment's measures can be put beside.
type Figure struct {
	Words     string
	Published string
	Measure   string
}

// PublishedTable is a line for each published figure of the experiments that were run, below one of names:
// what was published, and the medians of the best of the others and of cakectl, at each rate.
func PublishedTable(groups []Group) [][]string {
	lines := [][]string{{"", "published", "best of the others here", shaper.Ours + " here"}}
	for i, g := range groups {
		if slices.ContainsFunc(groups[:i], func(earlier Group) bool { return earlier.Experiment.Name == g.Experiment.Name }) {
			continue
		}
		for _, f := range g.Experiment.Figures {
			lines = append(lines, f.line(groups, g.Experiment))
		}
	}
	return lines
}

func (f Figure) line(groups []Group, e Experiment) []string {
	var rivals, own []string
	for _, g := range groups {
		if g.Experiment.Name != e.Name {
			continue
		}
		i := slices.IndexFunc(e.Measures, func(m Measure) bool { return m.Name == f.Measure })
		rival, ours := "broken", "broken"
		if best, ok := g.Best(e.Measures[i]); ok {
			rival = Number(best.Value) + " (" + best.Peer + ")"
		}
		if value, ok := g.Median(shaper.Ours, f.Measure); ok {
			ours = Number(value)
		}
		rivals, own = append(rivals, rival), append(own, ours)
	}
	return []string{f.Words, cmp.Or(f.Published, "–"), strings.Join(rivals, " / "), strings.Join(own, " / ")}
}

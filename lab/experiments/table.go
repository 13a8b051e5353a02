// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/cakectl/cakectl/lab/shaper"
	"github.com/cakectl/cakectl/lab/stats"
	"github.com/cakectl/cakectl/pkg/rates"
)

// idleEnough is the share of idle time, in percent, below which the CPUs may have been the limit.
const idleEnough = 5

// Group are the rows that make one table: an experiment at one rate with one number of queues.
type Group struct {
	Experiment Experiment
	Rate       rates.Rate
	Queues     int
	Rows       []Row
}

// Groups sorts rows into tables, in the order in which these first occur.
func Groups(rows []Row) ([]Group, error) {
	var groups []Group
	for _, row := range rows {
		i := slices.IndexFunc(groups, func(g Group) bool {
			return g.Experiment.Name == row.Experiment && g.Rate == row.Rate && g.Queues == row.Queues
		})
		if i < 0 {
			experiment, err := Lookup(row.Experiment)
			if err != nil {
				return nil, err
			}
			groups = append(groups, Group{Experiment: experiment, Rate: row.Rate, Queues: row.Queues})
			i = len(groups) - 1
		}
		groups[i].Rows = append(groups[i].Rows, row)
	}
	return groups, nil
}

// Peers are the shapers, in the order of their first runs.
func (g Group) Peers() []string {
	var peers []string
	for _, r := range g.Rows {
		if r.Repeat == 0 && !slices.Contains(peers, r.Peer) {
			peers = append(peers, r.Peer)
		}
	}
	return peers
}

// Good are the rows of a shaper that are not broken.
func (g Group) Good(peer string) []Row {
	return slices.DeleteFunc(slices.Clone(g.Rows), func(r Row) bool { return r.Peer != peer || r.Error != "" })
}

// Median is that of a measure over a shaper's rows; there is none where all are broken.
func (g Group) Median(peer, measure string) (float64, bool) {
	values := valuesOf(g.Good(peer), measure)
	if len(values) == 0 {
		return 0, false
	}
	return stats.Median(values), true
}

// aheadMark is on what cakectl is behind a shaper in.
const aheadMark = " *"

// Table is a line for each shaper below one of names, with the median of each measure and, where there
// are several runs, its smallest and largest value. Where a shaper is ahead of cakectl, cakectl's value
// has a mark.
func (g Group) Table() [][]string {
	leads := g.Leads()
	lines := [][]string{{"shaper"}}
	for _, measure := range g.Experiment.Measures {
		lines[0] = append(lines[0], measure.Header())
	}
	// To find out what packets cost, the CPU is always busy.
	idle := !g.Experiment.CountsInstructions()
	if idle {
		lines[0] = append(lines[0], "idle %")
	}
	for _, peer := range g.Peers() {
		line := []string{peer}
		good := g.Good(peer)
		for _, measure := range g.Experiment.Measures {
			cell := measure.cell(good)
			if peer == shaper.Ours && slices.ContainsFunc(leads, func(l Lead) bool { return l.Measure.Name == measure.Name }) {
				cell += aheadMark
			}
			line = append(line, cell)
		}
		if idle {
			line = append(line, idleCell(good))
		}
		lines = append(lines, line)
	}
	return lines
}

// Broken says which runs are, and why.
func (g Group) Broken() (notes []string) {
	for _, r := range g.Rows {
		if r.Error != "" {
			notes = append(notes, fmt.Sprintf("%s, run %d is broken: %s", r.Peer, r.Repeat+1, strings.ReplaceAll(r.Error, "\n", " / ")))
		}
	}
	return notes
}

// Table writes a Markdown table for each experiment, rate and number of queues.
func Table(w io.Writer, rows []Row) error {
	groups, err := Groups(rows)
	if err != nil {
		return err
	}
	for _, g := range groups {
		text := fmt.Sprintf("### %s: %s\n%v, %d queues\n\n", g.Experiment.Name, g.Experiment.About, g.Rate, g.Queues)
		if g.Experiment.Published != "" {
			text += "Published: " + g.Experiment.Published + "\n\n"
		}
		if g.Experiment.Remark != "" {
			text += g.Experiment.Remark + "\n\n"
		}
		text += Markdown(g.Table()) + "\n"
		for _, e := range Explain(g.Leads()) {
			text += "\\* " + e.String() + "\n\n"
		}
		for _, note := range g.Broken() {
			text += "**Broken** " + note + "\n\n"
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	return nil
}

// Header is the name of the measure, with its unit.
func (m Measure) Header() string {
	if m.Unit == "" {
		return m.Name
	}
	return m.Name + " " + m.Unit
}

// cell is the median of a measure, with its spread.
func (m Measure) cell(rows []Row) string {
	values := valuesOf(rows, m.Name)
	if len(values) == 0 {
		return "broken"
	}
	text := Number(stats.Median(values))
	if len(values) > 1 {
		text += fmt.Sprintf(" (%s–%s)", Number(values[0]), Number(values[len(values)-1]))
	}
	return text
}

// valuesOf are those of one measure, sorted.
func valuesOf(rows []Row, measure string) (values []float64) {
	for _, r := range rows {
		values = append(values, r.Values[measure])
	}
	slices.Sort(values)
	return values
}

func idleCell(rows []Row) string {
	if len(rows) == 0 {
		return "broken"
	}
	var idle []float64
	for _, r := range rows {
		idle = append(idle, r.Idle)
	}
	slices.Sort(idle)
	text := fmt.Sprintf("%.0f", stats.Median(idle))
	if idle[0] < idleEnough {
		text += " (CPU-limited)"
	}
	return text
}

// Number gives four significant digits, and no more than three decimals.
func Number(x float64) string {
	decimals := 3
	if x != 0 {
		decimals = min(max(3-int(math.Floor(math.Log10(math.Abs(x)))), 0), 3)
	}
	return fmt.Sprintf("%.*f", decimals, x)
}

// Markdown makes a table of lines, the first of which are names. It aligns the columns, so that the source can be read as well.
func Markdown(lines [][]string) string {
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	var text strings.Builder
	for n, line := range lines {
		for i, cell := range line {
			fmt.Fprintf(&text, "| %s%s ", cell, strings.Repeat(" ", widths[i]-len([]rune(cell))))
		}
		text.WriteString("|\n")
		if n == 0 {
			for _, width := range widths {
				text.WriteString("|" + strings.Repeat("-", width+2))
			}
			text.WriteString("|\n")
		}
	}
	return text.String()
}

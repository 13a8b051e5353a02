// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/cakectl/cakectl/pkg/rates"
)

// idleEnough is the share of idle time, in percent, below which the CPUs may have been the limit.
const idleEnough = 5

// group are the rows that make one table.
type group struct {
	experiment string
	rate       rates.Rate
	queues     int
}

// Table writes a Markdown table for each experiment, rate and number of queues, in the order in which
// they first occur: a line for each shaper with the median of each measure and, where there are
// several runs, its smallest and largest value.
func Table(w io.Writer, rows []Row) error {
	var groups []group
	byGroup := map[group][]Row{}
	for _, row := range rows {
		g := group{row.Experiment, row.Rate, row.Queues}
		if _, ok := byGroup[g]; !ok {
			groups = append(groups, g)
		}
		byGroup[g] = append(byGroup[g], row)
	}
	for _, g := range groups {
		if err := writeGroup(w, g, byGroup[g]); err != nil {
			return err
		}
	}
	return nil
}

func writeGroup(w io.Writer, g group, rows []Row) error {
	experiment, err := Lookup(g.experiment)
	if err != nil {
		return err
	}
	lines := [][]string{{"shaper"}}
	for _, measure := range experiment.Measures {
		lines[0] = append(lines[0], measure.header())
	}
	// To find out what packets cost, the CPU is always busy.
	idle := experiment.Cost == nil
	if idle {
		lines[0] = append(lines[0], "idle %")
	}
	var notes []string
	for _, peer := range peersOf(rows) {
		line := []string{peer}
		good := slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.Peer != peer || r.Error != "" })
		for _, r := range rows {
			if r.Peer == peer && r.Error != "" {
				notes = append(notes, fmt.Sprintf("%s, run %d is broken: %s", peer, r.Repeat+1, r.Error))
			}
		}
		for _, measure := range experiment.Measures {
			line = append(line, measure.cell(good))
		}
		if idle {
			line = append(line, idleCell(good))
		}
		lines = append(lines, line)
	}
	text := fmt.Sprintf("### %s: %s\n%v, %d queues\n\n%s\n", experiment.Name, experiment.About, g.rate, g.queues, markdown(lines))
	for _, note := range notes {
		text += "**Broken** " + strings.ReplaceAll(note, "\n", " / ") + "\n\n"
	}
	_, err = io.WriteString(w, text)
	return err
}

func peersOf(rows []Row) []string {
	var peers []string
	for _, r := range rows {
		if r.Repeat == 0 && !slices.Contains(peers, r.Peer) {
			peers = append(peers, r.Peer)
		}
	}
	return peers
}

func (m Measure) header() string {
	if m.Unit == "" {
		return m.Name
	}
	return m.Name + " " + m.Unit
}

// cell is the median of a measure, with its spread.
func (m Measure) cell(rows []Row) string {
	var values []float64
	for _, r := range rows {
		values = append(values, r.Values[m.Name])
	}
	if len(values) == 0 {
		return "broken"
	}
	slices.Sort(values)
	text := number(median(values))
	if len(values) > 1 {
		text += fmt.Sprintf(" (%s–%s)", number(values[0]), number(values[len(values)-1]))
	}
	return text
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
	text := fmt.Sprintf("%.0f", median(idle))
	if idle[0] < idleEnough {
		text += " (CPU-limited)"
	}
	return text
}

// median expects sorted values.
func median(values []float64) float64 {
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// number gives four significant digits, and no more than three decimals.
func number(x float64) string {
	decimals := 3
	if x != 0 {
		decimals = min(max(3-int(math.Floor(math.Log10(math.Abs(x)))), 0), 3)
	}
	return fmt.Sprintf("%.*f", decimals, x)
}

// markdown aligns the columns, so that the source can be read as well.
func markdown(lines [][]string) string {
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

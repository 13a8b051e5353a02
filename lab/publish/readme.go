// SPDX-License-Identifier: BSD-2-Clause

package publish

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cakectl/cakectl/lab/experiments"
	"github.com/cakectl/cakectl/lab/shaper"
)

// What the README's table stands between.
const (
	readmeBegin = "<!-- lab: begin, written by go run ./lab -from FILE -readme README.md -->\n"
	readmeEnd   = "<!-- lab: end -->\n"
)

// aheadMark is on what another of the table's shapers is better in.
const aheadMark = "*"

// readmePeers are the columns of the table.
var readmePeers = []string{"htb+fq_codel", "cake", "cake_mq", "edt", "cakectl"}

// readmeRows are the lines of the table.
var readmeRows = []struct{ words, experiment, measure string }{
	{"one TCP flow: goodput, % of what headers leave", "tcp1", "goodput"},
	{"32 TCP flows: goodput", "tcp32", "goodput"},
	{"32 TCP flows: Jain's index", "tcp32", "Jain"},
	{"32 TCP flows: ping p99, ms", "tcp32", "ping p99"},
	{"32 TCP flows: highest 10 ms window, x", "tcp32", "10ms max"},
	{"32 TCP flows: highest 100 ms window, x", "tcp32", "100ms max"},
	{"500 TCP flows: Jain's index", "tcp500", "Jain"},
	{"8 TCP flows with ATM framing, 2 / 10 Mbit/s: goodput", "slow8", "goodput"},
	{"8 flows on one queue, 1 on another: the one, x fair", "uneven", "one"},
	{"1 bulk flow and 31 trickles: total, %", "trickle31", "total"},
	{"16 UDP senders at 4x: loss, %", "udp16x4", "udp loss"},
	{"16 UDP senders at 4x: spread, %", "udp16x4", "spread"},
	{"4 TCP beside UDP at 2x: least TCP, of its fair share", "tcp4udp2x", "least tcp"},
	{"the same through a router", "forwardudp", "least tcp"},
	{"8 TCP flows through a router: their RTT, ms", "forward8", "tcp RTT"},
	{"the same with ECN: segments sent again", "forward8ecn", "tcp resent"},
	{"4 CUBIC and 4 BBR through a router: Jain's index", "cubicbbr", "Jain"},
	{"call beside Bulk and Best Effort: Bulk, %", "call", "bulk"},
	{"the call: delay p99, ms", "call", "call p99"},
	{"4 tins, both ways (RRUL): total, %", "rrul", "total"},
	{"rate halved under load: held after, ms", "step", "down held"},
	{"rate put back: held after, ms", "step", "up held"},
	{"instructions a packet above mq and fq", "cost", "free above fq"},
	{"the same for a packet that is forwarded", "forwardcost", "forwarded above fq"},
}

// UpdateReadme replaces the table in a README.
func UpdateReadme(file string, r experiments.Results) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	table, err := readmeTable(r)
	if err != nil {
		return err
	}
	before, rest, begun := strings.Cut(string(text), readmeBegin)
	_, after, ended := strings.Cut(rest, readmeEnd)
	if !begun || !ended {
		return fmt.Errorf("update the table of %s: it has no place for one, between %q and %q", file, readmeBegin, readmeEnd)
	}
	return os.WriteFile(file, []byte(before+readmeBegin+"\n"+table+"\n"+readmeEnd+after), 0o644)
}

// readmeTable has a line for each measure that the results have.
func readmeTable(r experiments.Results) (string, error) {
	groups, err := experiments.Groups(r.Rows)
	if err != nil {
		return "", err
	}
	peers := slices.DeleteFunc(slices.Clone(readmePeers), func(name string) bool {
		return !slices.ContainsFunc(r.Rows, func(row experiments.Row) bool { return row.Peer == name })
	})
	lines := [][]string{append([]string{""}, peers...)}
	for _, row := range readmeRows {
		line := []string{row.words}
		for _, peer := range peers {
			line = append(line, readmeCell(groups, row.experiment, peer, row.measure))
		}
		if strings.Join(line[1:], "") != "" {
			lines = append(lines, line)
		}
	}
	var rates []string
	for _, rate := range r.Plan.Rates {
		rates = append(rates, rate.String())
	}
	intro := fmt.Sprintf("Side by side in VMs (Linux %s), `%s` over %d queues where nothing else is said, %v measured after %v, at the receiver; %s. "+
		"\"x\" is a multiple of the bandwidth (or of a fair share), windows count from the first packet on, \"*\" tells that a shaper beside cakectl is ahead.\n\n",
		r.Kernel, strings.Join(rates, " / "), r.Plan.Queues[0], r.Plan.Duration, r.Plan.Warmup, medianOf(r.Plan.Repeat))
	text := intro + experiments.Markdown(lines) + "\n"
	if published := experiments.PublishedTable(groups); len(published) > 1 {
		text += "What others published of such set-ups, and the same here:\n\n" + experiments.Markdown(published) + "\n"
	}
	return text + "    " + strings.Join(measuring(r.Command), " ") + "\n", nil
}

func medianOf(runs int) string {
	if runs == 1 {
		return "one run"
	}
	return fmt.Sprintf("medians of up to %d runs", runs)
}

// measuring is a command of the lab without the files that it writes: what is measured does not
// depend on them.
func measuring(command []string) []string {
	var kept []string
	for i := 0; i < len(command); i++ {
		switch command[i] {
		case "-json", "-report", "-readme":
			i++
		default:
			kept = append(kept, command[i])
		}
	}
	return kept
}

// readmeCell is a median at each rate, with the first number of queues.
func readmeCell(groups []experiments.Group, experiment, peer, measure string) string {
	var cells []string
	queues := 0
	for _, g := range groups {
		if g.Experiment.Name != experiment || queues != 0 && g.Queues != queues {
			continue
		}
		queues = g.Queues
		value, ok := g.Median(peer, measure)
		switch {
		case ok && peer == shaper.Ours && behind(g, measure):
			cells = append(cells, experiments.Number(value)+aheadMark)
		case ok:
			cells = append(cells, experiments.Number(value))
		case slices.Contains(g.Peers(), peer):
			cells = append(cells, "broken")
		}
	}
	return strings.Join(cells, " / ")
}

// behind tells whether one of the table's shapers is ahead of cakectl in a measure.
func behind(g experiments.Group, measure string) bool {
	return slices.ContainsFunc(g.Leads(), func(l experiments.Lead) bool {
		return l.Measure.Name == measure && slices.ContainsFunc(l.Ahead, func(s experiments.Standing) bool { return slices.Contains(readmePeers, s.Peer) })
	})
}

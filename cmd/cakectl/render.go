// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/rates"
)

// bits writes a rate as users give it.
func bits(b api.BitsPerSec) string { return rates.Rate(b).String() }

// shapedTo says in a line what a device is shaped to.
func shapedTo(s api.Status) string {
	text := bits(s.Bandwidth)
	if line := s.Framing.String(); line != "" {
		text += " (" + line + ")"
	}
	text += ", " + s.Diffserv
	if len(s.Tins) > 1 {
		text += ", split by " + s.Split
	}
	if s.Isolation != "" && s.Isolation != string(config.IsolateFlows) {
		text += ", isolation " + s.Isolation
	}
	if s.WholeGSO {
		text += ", whole GSO"
	}
	if s.Attach == "" { // not attached
		return text
	}
	return fmt.Sprintf("%s, %s by %s under %s", text, count(s.Queues.Total, "transmit queue"), s.Attach, cmp.Or(s.RootQdisc, "no qdisc"))
}

// classes says in a line what decides about tins beside the preset; "" is nothing.
func classes(c api.Classes) string {
	var parts []string
	for _, rule := range c.Map {
		parts = append(parts, rule.String())
	}
	if c.FwmarkMask != 0 {
		parts = append(parts, fmt.Sprintf("fwmark %#x", c.FwmarkMask))
	}
	if c.InnerDSCP {
		parts = append(parts, "inner DSCP")
	}
	if c.Wash {
		parts = append(parts, "wash")
	}
	return strings.Join(parts, ", ")
}

// tinRates says in a line what each tin is given.
func tinRates(s api.Status) string {
	parts := make([]string, 0, len(s.Tins))
	if rates.Rate(s.Bandwidth) == rates.Unlimited { // where nothing is scarce, nothing is guaranteed
		for _, tin := range s.Tins {
			if tin.Ceil < s.Bandwidth {
				parts = append(parts, tin.Name+" at most "+bits(tin.Ceil))
			}
		}
		return cmp.Or(strings.Join(parts, ", "), "no tin has a limit")
	}
	for _, tin := range s.Tins {
		part := tin.Name + " " + bits(tin.Rate)
		if tin.Rate >= s.Bandwidth && len(s.Tins) > 1 { // its threshold is no bound
			part = tin.Name + " the rest"
		}
		if tin.Ceil < s.Bandwidth {
			part += " (at most " + bits(tin.Ceil) + ")"
		}
		parts = append(parts, part)
	}
	return "guaranteed " + strings.Join(parts, ", ")
}

// count writes a number of things.
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}

// printStatuses shows devices in a line each.
func printStatuses(w io.Writer, statuses []api.Status) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "DEVICE\tBANDWIDTH\tTINS\tHOOK\tQUEUES\tACTIVE\tFLOWS\tDAEMON\tENFORCING")
	for _, s := range statuses {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n",
			s.Device, bits(s.Bandwidth), s.Diffserv, s.Attach, s.Queues.Total, s.Queues.Active, flows(s), daemonPID(s), enforcing(s))
	}
	return table.Flush()
}

func flows(s api.Status) int {
	sum := 0
	for _, tin := range s.Tins {
		sum += tin.ActiveFlows
	}
	return sum
}

func daemonPID(s api.Status) string {
	if s.Daemon == 0 {
		return "none"
	}
	return strconv.Itoa(s.Daemon)
}

func enforcing(s api.Status) string {
	if s.Enforcing {
		return "yes"
	}
	return "NO: " + s.Reason
}

// printStatus shows one device, with the tins as columns as tc(8) shows those of cake.
func printStatus(w io.Writer, s api.Status) error {
	var out strings.Builder
	fmt.Fprintf(&out, "%s: %s\n", s.Device, shapedTo(s))
	fmt.Fprintf(&out, "enforcing: %s\n", enforcing(s))
	if classes := classes(s.Classes); classes != "" {
		fmt.Fprintf(&out, "classes: %s\n", classes)
	}
	fmt.Fprintf(&out, "active: %s, %s\n", count(s.Queues.Active, "queue"), count(flows(s), "flow"))
	c := s.Controller
	fmt.Fprintf(&out, "controller: %s; %s, %s (%d without a change), %s",
		controllerProcess(s), count(int(c.Events), "event"), count(int(c.Recomputes), "recompute"), c.UnchangedRecomputes, count(int(c.RateWrites), "rate write"))
	if c.EventsLost > 0 {
		fmt.Fprintf(&out, ", %s lost", count(int(c.EventsLost), "event"))
	}
	if c.LastChange != nil {
		fmt.Fprintf(&out, "; last change %s", c.LastChange.Local().Format(time.DateTime))
	}
	out.WriteString("\n")
	if c.Stale {
		fmt.Fprintf(&out, "controller does not answer: %s unanswered, for %.0f s; the data path holds the bandwidth by itself\n", count(c.UnansweredEvents, "event"), c.UnansweredSeconds)
	}
	if s.Drift != nil && s.Drift.LastDetected != nil {
		fmt.Fprintf(&out, "changed by others: %s, %d repaired; last at %s: %s\n", count(int(s.Drift.Detected), "time"), s.Drift.Repaired, s.Drift.LastDetected.Local().Format(time.DateTime), s.Drift.Last)
	}
	for _, reason := range slices.Sorted(maps.Keys(s.Bypassed)) {
		if packets := s.Bypassed[reason]; packets > 0 {
			fmt.Fprintf(&out, "passed unshaped: %s (%s)\n", count(int(packets), "packet"), reason)
		}
	}
	if matched, mismatched := s.Foresight.Totals(); matched+mismatched > 0 {
		fmt.Fprintf(&out, "queues foreseen: %s of %s checked\n", percent(matched, matched+mismatched), count(int(matched+mismatched), "packet"))
	}
	if len(s.Tins) > 0 {
		out.WriteString("\n")
		printTins(&out, s.Tins)
		printEffective(&out, s.Tins)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func controllerProcess(s api.Status) string {
	if s.Daemon == 0 {
		return "no process (rates stay as they are)"
	}
	if s.Controller.State == api.ControllerStopped {
		return fmt.Sprintf("process %d, stopped (rates stay as they are)", s.Daemon)
	}
	return fmt.Sprintf("process %d", s.Daemon)
}

// printTins writes a column for each tin.
func printTins(w io.Writer, tins []api.Tin) {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	type row struct {
		name  string
		value func(api.Tin) string
	}
	rows := []row{
		{"", func(t api.Tin) string { return t.Name }},
		{"rate", func(t api.Tin) string { return bits(t.Rate) }},
		{"ceil", func(t api.Tin) string { return bits(t.Ceil) }},
		{"active queues", func(t api.Tin) string { return strconv.Itoa(t.ActiveQueues) }},
		{"flows", func(t api.Tin) string { return strconv.Itoa(t.ActiveFlows) }},
		{"sent bytes", func(t api.Tin) string { return number(t.SentBytes) }},
		{"packets", func(t api.Tin) string { return number(t.SentPackets) }},
		{"delayed", func(t api.Tin) string { return number(t.DelayedPackets) }},
		{"ecn marked", func(t api.Tin) string { return number(t.ECNMarked) }},
	}
	for _, reason := range dropReasons(tins) {
		rows = append(rows, row{"drop " + reason, func(t api.Tin) string { return number(t.DroppedPackets[reason]) }})
	}
	rows = append(rows,
		row{"sojourn p50", func(t api.Tin) string { return sojourn(t, t.Sojourn.P50) }},
		row{"sojourn p99", func(t api.Tin) string { return sojourn(t, t.Sojourn.P99) }},
	)
	width := func(t api.Tin) int {
		widest := 0
		for _, row := range rows {
			widest = max(widest, len(row.value(t)))
		}
		return widest
	}
	for _, row := range rows {
		fmt.Fprintf(w, "%-*s", firstColumn, row.name)
		for _, tin := range tins {
			fmt.Fprintf(w, "  %*s", width(tin), row.value(tin))
		}
		fmt.Fprintln(w)
	}
}

// firstColumn is the width of the names at the left.
const firstColumn = 13

func dropReasons(tins []api.Tin) []string {
	reasons := map[string]bool{}
	for _, tin := range tins {
		for reason := range tin.DroppedPackets {
			reasons[reason] = true
		}
	}
	return slices.Sorted(maps.Keys(reasons))
}

// sojourn writes a quantile of all that a tin has sent.
func sojourn(t api.Tin, seconds float64) string {
	if t.SentPackets == 0 {
		return "-"
	}
	return upperBound(seconds)
}

// upperBound writes the bound of a bucket twice as wide as the one before, for the quantile that falls into
// it: two digits are as much as it says.
func upperBound(seconds float64) string {
	switch {
	case seconds >= 1:
		return "<=" + twoDigits(seconds) + "s"
	case seconds >= 1e-3:
		return "<=" + twoDigits(seconds*1e3) + "ms"
	default:
		return "<=" + twoDigits(seconds*1e6) + "us"
	}
}

func twoDigits(x float64) string {
	if x < 9.95 {
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 0, 64)
}

// printEffective lists the effective rates, with queues of the same rate together.
func printEffective(w io.Writer, tins []api.Tin) {
	first := true
	for _, tin := range tins {
		queuesOf := map[api.BitsPerSec][]int{}
		for _, queue := range tin.Queues {
			if queue.EffectiveRate > 0 {
				queuesOf[queue.EffectiveRate] = append(queuesOf[queue.EffectiveRate], queue.Queue)
			}
		}
		if len(queuesOf) == 0 {
			continue
		}
		if first {
			fmt.Fprintln(w, "\neffective rates")
			first = false
		}
		byQueue := func(a, b api.BitsPerSec) int { return cmp.Compare(queuesOf[a][0], queuesOf[b][0]) }
		var parts []string
		for _, rate := range slices.SortedFunc(maps.Keys(queuesOf), byQueue) {
			thing := "queue "
			if len(queuesOf[rate]) > 1 {
				thing = "queues "
			}
			parts = append(parts, thing+ranges(queuesOf[rate])+" "+bits(rate))
		}
		fmt.Fprintf(w, "%-*s  %s\n", firstColumn, tin.Name, strings.Join(parts, ", "))
	}
}

// percent writes a share, and 100% only where it is all.
func percent(part, whole uint64) string {
	share := 100 * float64(part) / float64(whole)
	if part < whole {
		share = min(share, 99.99)
	}
	return strconv.FormatFloat(share, 'g', 4, 64) + "%"
}

// ranges writes ascending numbers as "0-3,5".
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		part := strconv.Itoa(numbers[i])
		if last > i {
			part += "-" + strconv.Itoa(numbers[last])
		}
		parts = append(parts, part)
		i = last + 1
	}
	return strings.Join(parts, ",")
}

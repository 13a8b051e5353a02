// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/daemon"
)

const topInterval = time.Second

func (a *app) topCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "top [DEV]",
		Short: "Watch what the tins and queues of a device send, or of all of them",
		Long: `Show every second what each tin sends, against its rate, and with a device what each of
its transmit queues sends. q or Ctrl-C ends it. Where the output is no terminal it shows
one second and ends.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return oneDevice(cmd, args)
		},
		ValidArgsFunction: a.completeAttached,
		RunE: func(cmd *cobra.Command, args []string) error {
			t := &top{app: a}
			if len(args) > 0 {
				t.device = args[0]
			}
			return t.run(cmd.Context())
		},
	}
}

// top is the view while it runs.
type top struct {
	app    *app
	device string // "" is all

	before, after     []api.Status
	beforeAt, afterAt time.Time
}

func (t *top) run(ctx context.Context) error {
	if err := t.read(ctx); err != nil {
		return err
	}
	if !isTerminal(t.app.stdout) || !term.IsTerminal(int(os.Stdin.Fd())) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(topInterval):
		}
		if err := t.read(ctx); err != nil {
			return err
		}
		_, err := io.WriteString(t.app.stdout, t.screen())
		return err
	}
	return t.watch(ctx)
}

// read takes another sample.
func (t *top) read(ctx context.Context) error {
	devices := []string{t.device}
	if t.device == "" {
		var err error
		if devices, err = t.app.devices(ctx); err != nil {
			return err
		}
	}
	var statuses []api.Status
	for _, device := range devices {
		status, err := t.app.readStatus(ctx, device)
		switch {
		case t.device == "" && daemon.KindOf(err) == api.KindNotAttached: // detached since it was listed
		case err != nil:
			return mustAttached(device, err)
		default:
			statuses = append(statuses, status)
		}
	}
	t.before, t.beforeAt = t.after, t.afterAt
	t.after, t.afterAt = statuses, time.Now()
	return nil
}

// What a terminal understands (ECMA-48, and xterm's second screen).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearToEnd  = "\x1b[J"
	endOfLine   = "\x1b[K\r\n" // the terminal is raw
)

// watch redraws the view until a key or a signal ends it.
func (t *top) watch(ctx context.Context) error {
	input := int(os.Stdin.Fd())
	was, err := term.MakeRaw(input)
	if err != nil {
		return fmt.Errorf("take the terminal: %w", err)
	}
	defer term.Restore(input, was)
	fmt.Fprint(t.app.stdout, enterScreen)
	defer fmt.Fprint(t.app.stdout, leaveScreen)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for key := make([]byte, 1); ; {
			if _, err := os.Stdin.Read(key); err != nil || key[0] == 'q' || key[0] == 'C'-'@' {
				return
			}
		}
	}()
	ticker := time.NewTicker(topInterval)
	defer ticker.Stop()
	for {
		t.draw()
		select {
		case <-ctx.Done():
			return nil
		case <-ended:
			return nil
		case <-ticker.C:
		}
		if err := t.read(ctx); err != nil {
			return err
		}
	}
}

// draw writes what fits the terminal, over what is there.
func (t *top) draw() {
	lines := strings.Split(strings.TrimSuffix(t.screen(), "\n"), "\n")
	if width, height, err := term.GetSize(int(os.Stdin.Fd())); err == nil && width > 0 && height > 0 {
		lines = lines[:min(len(lines), max(height-1, 1))]
		for i, line := range lines {
			lines[i] = line[:min(len(line), width)]
		}
	}
	fmt.Fprint(t.app.stdout, home+strings.Join(lines, endOfLine)+endOfLine+clearToEnd)
}

// screen is the view as text.
func (t *top) screen() string {
	var out bytes.Buffer
	devices := count(len(t.after), "device")
	if len(t.after) == 0 {
		devices = "no device is attached"
	}
	fmt.Fprintf(&out, "%s  %s\n", t.afterAt.Format(time.TimeOnly), devices)
	for _, after := range t.after {
		i := slices.IndexFunc(t.before, func(s api.Status) bool { return s.Device == after.Device })
		before := after // a device that is new has sent nothing yet
		if i >= 0 {
			before = t.before[i]
		}
		seconds := t.afterAt.Sub(t.beforeAt).Seconds()
		fmt.Fprintf(&out, "\n%s: %s\n", after.Device, shapedTo(after))
		if !after.Enforcing {
			fmt.Fprintf(&out, "NOT ENFORCING: %s\n", after.Reason)
		}
		if len(after.Tins) == 0 {
			continue // not attached
		}
		topTins(&out, before, after, seconds)
		if t.device != "" {
			topQueues(&out, before, after, seconds)
		}
	}
	// The tables pad their last columns too.
	var trimmed strings.Builder
	for line := range strings.Lines(out.String()) {
		trimmed.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return trimmed.String()
}

// topTins writes a line for each tin, and one for all.
func topTins(w io.Writer, before, after api.Status, seconds float64) {
	if len(before.Tins) != len(after.Tins) {
		before = after // attached anew
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	defer table.Flush()
	fmt.Fprintln(table, "tin\tsends\trate\tceil\tqueues\tflows\tpackets/s\tdelayed/s\tmarked/s\tdropped/s\tp99\t")
	var sent uint64
	perSecond := func(before, after uint64) float64 { return float64(after-before) / seconds }
	for i, tin := range after.Tins {
		was := before.Tins[i]
		sent += tin.SentBytes - was.SentBytes
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%s\t\n", tin.Name,
			roundRate(8*perSecond(was.SentBytes, tin.SentBytes)), bits(tin.Rate), bits(tin.Ceil), tin.ActiveQueues, tin.ActiveFlows,
			perSecond(was.SentPackets, tin.SentPackets), perSecond(was.DelayedPackets, tin.DelayedPackets),
			perSecond(was.ECNMarked, tin.ECNMarked), perSecond(dropsOf(was), dropsOf(tin)), sojournBetween(was, tin))
	}
	fmt.Fprintf(table, "all\t%s\t%s\t\t%d\t%d\t\t\t\t\t\t\n", roundRate(8*float64(sent)/seconds), bits(after.Bandwidth), after.Queues.Active, flows(after))
}

// sojournBetween is the 99th percentile of the packets that were sent from one status to another.
func sojournBetween(before, after api.Tin) string {
	buckets := after.Sojourn.Buckets
	if len(buckets) == 0 || len(buckets) != len(before.Sojourn.Buckets) {
		return "-"
	}
	sent := func(bucket int) uint64 {
		return buckets[bucket].Cumulative - before.Sojourn.Buckets[bucket].Cumulative
	}
	last := len(buckets) - 1
	if sent(last) == 0 {
		return "-"
	}
	rank := (99*sent(last) + 99) / 100
	for bucket := range last {
		if sent(bucket) >= rank {
			return upperBound(float64(buckets[bucket].LE))
		}
	}
	return ">" + strings.TrimPrefix(upperBound(float64(buckets[max(last-1, 0)].LE)), "<=")
}

// topQueues writes a line for each transmit queue that sent something or is active.
func topQueues(w io.Writer, before, after api.Status, seconds float64) {
	effective := map[int][]string{}
	for _, tin := range after.Tins {
		for _, queue := range tin.Queues {
			if queue.EffectiveRate > 0 {
				effective[queue.Queue] = append(effective[queue.Queue], tin.Name+" "+bits(queue.EffectiveRate))
			}
		}
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	defer table.Flush()
	fmt.Fprintln(table, "\nqueue\tsends\teffective rates")
	for queue, counters := range after.Queues.Counters {
		var sent uint64
		if queue < len(before.Queues.Counters) {
			sent = counters.Bytes - before.Queues.Counters[queue].Bytes
		}
		if sent > 0 || len(effective[queue]) > 0 {
			fmt.Fprintf(table, "%d\t%s\t%s\n", queue, roundRate(8*float64(sent)/seconds), strings.Join(effective[queue], ", "))
		}
	}
}

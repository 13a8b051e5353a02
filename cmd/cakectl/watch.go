// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/rates"
)

// isTerminal tells whether w is a terminal.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

const (
	watchInterval = time.Second
	// headerEvery is the number of lines after which the columns are named again.
	headerEvery = 20
)

// watch prints a line a second of what the device does, until ctx ends.
func (f *foreground) watch(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	var before api.Status
	var beforeTime time.Time
	for lines := 0; ; {
		now := time.Now()
		status, err := f.device.Status(ctx)
		switch {
		case err != nil:
			f.app.say("%s: %s", f.name, oneLine(err.Error()))
		case !beforeTime.IsZero():
			if lines%headerEvery == 0 {
				f.app.say("%s", watchHeader(status))
			}
			lines++
			f.app.say("%s", watchLine(before, status, now, now.Sub(beforeTime)))
			fallthrough
		default:
			before, beforeTime = status, now
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// minColumn is the width of a rate such as "12.34mbit", and a little more.
const minColumn = 10

func column(tin api.Tin) int { return max(len(tin.Name), minColumn) }

func watchHeader(s api.Status) string {
	var line strings.Builder
	line.WriteString("time    ")
	for _, tin := range s.Tins {
		fmt.Fprintf(&line, "  %*s", column(tin), tin.Name)
	}
	line.WriteString("  queues  flows  recomputes  writes  drops")
	return line.String()
}

// watchLine says what happened from one status to another, elapsed apart.
func watchLine(before, after api.Status, at time.Time, elapsed time.Duration) string {
	var line strings.Builder
	line.WriteString(at.Format(time.TimeOnly))
	for i, tin := range after.Tins {
		sent := tin.SentBytes
		if i < len(before.Tins) {
			sent -= before.Tins[i].SentBytes
		}
		fmt.Fprintf(&line, "  %*s", column(tin), roundRate(float64(sent)*8/elapsed.Seconds()))
	}
	fmt.Fprintf(&line, "  %6d  %5d  %10d  %6d  %5d", after.Queues.Active, flows(after),
		after.Controller.Recomputes-before.Controller.Recomputes,
		after.Controller.RateWrites-before.Controller.RateWrites,
		drops(after)-drops(before))
	if !after.Enforcing {
		line.WriteString("  NOT ENFORCING: " + after.Reason)
	}
	return line.String()
}

func drops(s api.Status) uint64 {
	var sum uint64
	for _, tin := range s.Tins {
		sum += dropsOf(tin)
	}
	return sum
}

func dropsOf(tin api.Tin) uint64 {
	var sum uint64
	for _, packets := range tin.DroppedPackets {
		sum += packets
	}
	return sum
}

// roundRate writes a measured rate with four digits, and none as "-".
func roundRate(bitsPerSecond float64) string {
	if bitsPerSecond < 1 {
		return "-"
	}
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(bitsPerSecond, 'g', 4, 64), 64)
	if err != nil {
		rounded = bitsPerSecond
	}
	return rates.Rate(rounded).String()
}

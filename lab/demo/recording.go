// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"
)

// recording is what a stage measured.
type recording struct {
	Kernel string `json:"kernel"`
	// Tins are those of the device, lowest priority first.
	Tins []tinSeries `json:"tins"`
	// Interval is that of the tins' rates.
	Interval time.Duration `json:"interval_ns"`
	// Changes are what was done under way.
	Changes []change `json:"changes"`
	Checks  []check  `json:"checks"`
}

// tinSeries is the throughput of a tin.
type tinSeries struct {
	Name string `json:"name"`
	// Rates are averages over consecutive intervals, in bits per second of frames.
	Rates []float64 `json:"rates_bits_per_second"`
}

// change is what a command changed.
type change struct {
	// At is when it was in force, from the start of the traffic.
	At    time.Duration `json:"at_ns"`
	Label string        `json:"label"`
	// Bandwidth is that of the device from then on, in bits per second.
	Bandwidth float64 `json:"bandwidth_bits_per_second"`
}

// check is one measurement and what it has to be.
type check struct {
	What string `json:"what"`
	Want string `json:"want"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
}

func (r recording) write(file string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// summarize prints all checks and returns how many failed.
func (r recording) summarize(w io.Writer) (failed int) {
	fmt.Fprintf(w, "\nSummary (Linux %s)\n", r.Kernel)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "  what\thas to be\tmeasured\t")
	for _, c := range r.Checks {
		verdict := "ok"
		if !c.OK {
			verdict = "FAILED"
			failed++
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", c.What, c.Want, c.Got, verdict)
	}
	_ = table.Flush() // as with all output: a reader that is gone misses the rest
	fmt.Fprintln(w)
	return failed
}

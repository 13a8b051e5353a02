// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cakectl/cakectl/lab/experiments"
)

func TestParse(t *testing.T) {
	o, err := parse([]string{"-exp", "tcp1,call", "-peers", "cake, htb", "-rates", "40mbit,0.2gbit", "-queues", "8,32", "-repeat", "2"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(o.plan.Runs()), 2*2*2*2*2; got != want {
		t.Errorf("%d runs, want %d", got, want)
	}
	if o.plan.Rates[1] != 200e6 || o.plan.Queues[1] != 32 {
		t.Errorf("plan %+v", o.plan)
	}
	all, err := parse([]string{"-exp", "all"}, io.Discard)
	if err != nil || len(all.plan.Experiments) != len(experiments.All()) {
		t.Errorf("all experiments are %v (%v)", all.plan.Experiments, err)
	}
	for args, want := range map[string]string{
		"-exp nothing":   "no experiment",
		"-peers nothing": "no shaper",
		"-rates 40mbps":  "-rates",
		"-rates 50%":     "-rates",
		"-queues 0":      "-queues",
		"-queues x":      "-queues",
		"stray":          "stray",
		"-nothing":       "nothing",
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}

// The guest's output comes in pieces, and not all of it is rows.
func TestRowReader(t *testing.T) {
	var rows []string
	var other strings.Builder
	r := &rowReader{emit: func(row experiments.Row) { rows = append(rows, row.Peer) }, other: &other}
	for _, piece := range []string{`{"peer":`, `"one"}`, "\nwarning: {\n", `{"peer":"two"}` + "\n" + `{"peer":"three"}` + "\n"} {
		fmt.Fprint(r, piece)
	}
	if got := strings.Join(rows, " "); got != "one two three" {
		t.Errorf("rows %q", got)
	}
	if got := other.String(); got != "warning: {\n" {
		t.Errorf("other output %q", got)
	}
}

// Whatever is broken or missing makes the run fail, and is in the table as such.
func TestOutputFails(t *testing.T) {
	o, err := parse([]string{"-exp", "bulk", "-peers", "cake,htb"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	row := func(peer, failure string) experiments.Row {
		r := experiments.Row{Run: experiments.Run{Experiment: "bulk", Peer: peer, Rate: 40e6, Queues: 8}, Error: failure}
		if failure == "" {
			r.Values = map[string]float64{"goodput": 99}
		}
		return r
	}
	for _, test := range []struct {
		rows []experiments.Row
		want string
	}{
		{[]experiments.Row{row("cake", ""), row("htb", "")}, ""},
		{[]experiments.Row{row("cake", ""), row("htb", "iperf3 died")}, "1 of 2 runs are broken"},
		{[]experiments.Row{row("cake", "")}, "1 of 2 runs are broken"},
		{nil, "2 of 2 runs are broken"},
	} {
		results := experiments.Results{Plan: o.plan, Rows: test.rows}
		results.Sort()
		var text strings.Builder
		err := output{}.write(results, &text)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%d rows: %v, want %q", len(test.rows), err, test.want)
		}
		if test.want != "" && !strings.Contains(text.String(), "**Broken** htb") {
			t.Errorf("%d rows: the table does not say that htb is broken:\n%s", len(test.rows), text.String())
		}
	}
}

// A VM that gives no result in time is taken for hung: each of its runs is broken, and says why.
func TestHungVM(t *testing.T) {
	var stdout, stderr strings.Builder
	// Which leaves it 100 ms.
	err := run(t.Context(), []string{"-exp", "tcp1", "-peers", "htb,cake", "-duration", "1s", "-warmup", "0s", "-patience", "-900ms"}, &stdout, &stderr)
	if err == nil || !strings.Contains(err.Error(), "2 of 2 runs are broken") {
		t.Errorf("run = %v", err)
	}
	if n := strings.Count(stdout.String(), "is broken: the VM hangs"); n != 2 {
		t.Errorf("%d runs are said to be broken by a hanging VM, want 2:\n%s", n, stdout.String())
	}
}

func TestProgress(t *testing.T) {
	for done, want := range map[int]string{1: "1/4 after 1m0s, 3m0s to go:", 4: "4/4 after 1m0s:"} {
		if got := progress(done, 4, time.Minute); got != want {
			t.Errorf("progress = %q, want %q", got, want)
		}
	}
}

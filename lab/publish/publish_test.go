// SPDX-License-Identifier: BSD-2-Clause

package publish

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cakectl/cakectl/lab/experiments"
	"github.com/cakectl/cakectl/lab/shaper"
	"github.com/cakectl/cakectl/pkg/rates"
)

// results are those of two experiments and two shapers, one of which is broken.
func results() experiments.Results {
	r := experiments.Results{
		Command: []string{"go", "run", "./lab"}, Kernel: "7.3", Time: time.Unix(0, 0).UTC(),
		Plan: experiments.Plan{
			Experiments: []string{"tcp32", "step"}, Peers: []string{"htb", "cakectl"}, Rates: []rates.Rate{40e6},
			Queues: []int{8}, Repeat: 1, Duration: time.Second,
		},
	}
	for _, run := range r.Plan.Runs() {
		row := experiments.Row{Run: run}
		if run.Peer == "htb" {
			row.Error = "the kernel has no <htb>"
			r.Rows = append(r.Rows, row)
			continue
		}
		row.Values = map[string]float64{"goodput": 99.5, "down held": 12}
		row.Flows = map[string][]uint64{"tcp": {100, 90, 110}, "udp": {1}}
		row.Rates = map[string][]float64{"tcp": {40e6, 20e6, 20e6}, "udp": {1e6, 1e6, 1e6}}
		row.Delays = map[string][]float64{"ping": make([]float64, 101)}
		for i := range 101 {
			row.Delays["ping"][i] = float64(i) / 10
		}
		r.Rows = append(r.Rows, row)
	}
	return r
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, results()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2 of 4 runs are broken", "htb, run 1 is broken: the kernel has no &lt;htb&gt;", ">broken<", ">99.50<",
		`id="tcp32"`, "Delay beside the load", "What each flow got", "Throughput over time", "Jain 0.993",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, not := range []string{"<?xml", "<!DOCTYPE svg", "http-equiv", "<script", "<link"} {
		if strings.Contains(string(text), not) {
			t.Errorf("the page has %q", not)
		}
	}
	for _, name := range []string{"tcp32-40mbit-8q-delay", "tcp32-40mbit-8q-fairness", "step-40mbit-8q-time"} {
		for _, kind := range []string{".svg", ".png"} {
			if info, err := os.Stat(filepath.Join(dir, plotsDir, name+kind)); err != nil || info.Size() == 0 {
				t.Errorf("%s%s: %v", name, kind, err)
			}
		}
	}
	again, err := experiments.ReadResults(filepath.Join(dir, resultsFile))
	if err != nil || len(again.Rows) != 4 {
		t.Errorf("%d rows read back, %v", len(again.Rows), err)
	}
}

func TestUpdateReadme(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(file, []byte("before\n"+readmeBegin+"old\n"+readmeEnd+"after\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time changes nothing
		if err := UpdateReadme(file, results()); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(text); !strings.HasPrefix(got, "before\n") || !strings.HasSuffix(got, readmeEnd+"after\n") || strings.Contains(got, "old") ||
			strings.Count(got, "32 TCP flows: goodput") != 1 || !strings.Contains(got, "| 99.50") {
			t.Errorf("README:\n%s", got)
		}
	}
	if err := os.WriteFile(file, []byte("nothing here\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := UpdateReadme(file, results()); err == nil {
		t.Error("a README without a place for the table was updated")
	}
}

// Lines of two shapers can be told apart.
func TestLooksDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, peer := range shaper.Peers() {
		l := lookOfPeer(peer.Name)
		key := fmt.Sprintf("%v %T", l.dashes, l.glyph)
		if seen[key] != "" {
			t.Errorf("%s and %s look the same", peer.Name, seen[key])
		}
		seen[key] = peer.Name
	}
}

func TestParts(t *testing.T) {
	for text, want := range map[string]cell{
		"1.062": {"1.062", ""}, "1.062 *": {"1.062 *", ""}, "1.062 (1.05–1.07) *": {"1.062 *", "1.05–1.07"},
		"3 (CPU-limited)": {"3", "CPU-limited"}, "broken": {"broken", ""}, "0.056 (cake) / 0.1 (htb)": {"0.056 (cake) / 0.1 (htb)", ""},
	} {
		if got := parts(text); got != want {
			t.Errorf("parts(%q) = %q, want %q", text, got, want)
		}
	}
}

// Every line of the README's table is there in some experiment.
func TestReadmeRowsExist(t *testing.T) {
	for _, row := range readmeRows {
		e, err := experiments.Lookup(row.experiment)
		if err != nil {
			t.Error(err)
			continue
		}
		found := false
		for _, m := range e.Measures {
			found = found || m.Name == row.measure
		}
		if !found {
			t.Errorf("%s has no %s", row.experiment, row.measure)
		}
	}
}

func TestMeasuring(t *testing.T) {
	got := measuring([]string{"go", "run", "./lab", "-exp", "tcp1", "-json", "results.json", "-brief", "-report", "dir"})
	if want := []string{"go", "run", "./lab", "-exp", "tcp1", "-brief"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

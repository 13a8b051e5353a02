// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cakectl/cakectl/pkg/api"
)

// sample is a recording of two seconds.
func sample() recording {
	rates := func(bitsPerSecond float64) []float64 { return slices.Repeat([]float64{bitsPerSecond}, 20) }
	return recording{
		Kernel:   "7.3.4",
		Interval: binInterval,
		Tins:     []tinSeries{{"bulk", rates(5 * mbit)}, {"best_effort", rates(45 * mbit)}, {"voice", rates(0)}},
		Changes: []change{
			{Bandwidth: 100 * mbit},
			{At: time.Second, Label: "--bandwidth 50mbit", Bandwidth: 50 * mbit},
		},
		Checks: []check{
			{What: "rate", Want: "50 within 5 %", Got: "50", OK: true},
			{What: "order", Want: "0", Got: "3"},
		},
	}
}

func TestPicture(t *testing.T) {
	dir := t.TempDir()
	another := filepath.Join(dir, "another.svg")
	files, err := sample().draw(filepath.Join(dir, "pictures"), another)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{filepath.Join(dir, "pictures", "demo.svg"), filepath.Join(dir, "pictures", "demo.png"), another}; !slices.Equal(files, want) {
		t.Errorf("drew %v, want %v", files, want)
	}
	svg, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for decoder := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", files[0], err)
		}
		if data, ok := token.(xml.CharData); ok {
			words = append(words, strings.TrimSpace(string(data)))
		}
	}
	for _, want := range []string{"bulk", "best effort", "voice", "bandwidth, all tins", "--bandwidth 50mbit", "Mbit/s", "seconds"} {
		if !slices.Contains(words, want) {
			t.Errorf("the SVG does not say %q", want)
		}
	}
	file, err := os.Open(files[1])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	image, err := png.DecodeConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	if width := int(pictureWidth.Points() / 72 * pngDPI); image.Width != width {
		t.Errorf("the PNG is %d pixels wide, want %d", image.Width, width)
	}
}

func TestPictureOfNothing(t *testing.T) {
	if _, err := (recording{}).draw(t.TempDir(), ""); err == nil {
		t.Error("an empty recording was drawn")
	}
	uneven := sample()
	uneven.Tins[1].Rates = uneven.Tins[1].Rates[1:]
	if _, err := uneven.draw(t.TempDir(), ""); err == nil {
		t.Error("tins of different lengths were drawn")
	}
}

func TestBandwidthSteps(t *testing.T) {
	var got [][2]float64
	for _, point := range sample().bandwidthSteps(2) {
		got = append(got, [2]float64{point.X, point.Y})
	}
	want := [][2]float64{{0, 100}, {1, 100}, {1, 50}, {2, 50}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestSpread(t *testing.T) {
	ends := []labelled{{label: "c", y: 50}, {label: "a", y: 0}, {label: "b", y: 1}, {label: "d", y: 51}}
	var got []labelled
	for _, end := range spread(ends, 5) {
		got = append(got, labelled{label: end.label, y: end.y})
	}
	want := []labelled{{label: "a", y: 0}, {label: "b", y: 5}, {label: "c", y: 50}, {label: "d", y: 55}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(labelled{}, style{})); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}

func TestRecordingSurvivesItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), recordingFile)
	if err := sample().write(file); err != nil {
		t.Fatal(err)
	}
	got, err := readRecording(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), got); diff != "" {
		t.Errorf("recording (-written +read):\n%s", diff)
	}
}

func TestSummary(t *testing.T) {
	var out strings.Builder
	if failed := sample().summarize(&out); failed != 1 {
		t.Errorf("%d checks failed, want 1", failed)
	}
	for _, want := range []string{"50 within 5 %  50        ok\n", "0              3         FAILED\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the summary has no %q:\n%s", want, out.String())
		}
	}
}

// cells is a status in which bulk has these effective rates by queue.
func cells(rates map[int]api.BitsPerSec) api.Status {
	tin := api.Tin{Name: "bulk"}
	for queue, rate := range rates {
		tin.Queues = append(tin.Queues, api.TinQueue{Queue: queue, EffectiveRate: rate, Active: true})
	}
	return api.Status{Tins: []api.Tin{{Name: "voice", Queues: []api.TinQueue{{Queue: 1, EffectiveRate: 7}}}, tin}}
}

func TestChangedCells(t *testing.T) {
	before := cells(map[int]api.BitsPerSec{0: 10, 1: 20, 2: 30, 3: 0})
	for name, test := range map[string]struct {
		after map[int]api.BitsPerSec
		want  int
	}{
		"nothing":      {map[int]api.BitsPerSec{0: 10, 1: 20, 2: 30}, 0},
		"another rate": {map[int]api.BitsPerSec{0: 10, 1: 21, 2: 30}, 1},
		"no rate":      {map[int]api.BitsPerSec{0: 10, 1: 0, 2: 30}, 1},
		"gone":         {map[int]api.BitsPerSec{0: 10}, 2},
		"new":          {map[int]api.BitsPerSec{0: 10, 1: 20, 2: 30, 3: 5, 9: 5}, 2},
	} {
		if got := changedCells(before, cells(test.after)); got != test.want {
			t.Errorf("%s: %d cells changed, want %d", name, got, test.want)
		}
	}
}

func TestPlannedRate(t *testing.T) {
	status := cells(map[int]api.BitsPerSec{0: 10, 5: 32})
	for tin, want := range map[string]float64{"bulk": 42, "voice": 7, "video": 0} {
		if got := plannedRate(status, tin); got != want {
			t.Errorf("%s is planned %v, want %v", tin, got, want)
		}
	}
}

func TestNetstat(t *testing.T) {
	const text = "TcpExt: SyncookiesSent TCPOFOQueue Other\nTcpExt: 1 23 456\nIpExt: TCPOFOQueue\nIpExt: 9\n"
	if got, err := netstat(text, "TcpExt:", "TCPOFOQueue"); err != nil || got != 23 {
		t.Errorf("TCPOFOQueue = %d, %v; want 23", got, err)
	}
	for _, name := range []string{"Missing", "TcpExt"} {
		if _, err := netstat(text, "TcpExt:", name); err == nil {
			t.Errorf("found %s", name)
		}
	}
	if _, err := netstat("TcpExt: A B\nTcpExt: 1\n", "TcpExt:", "B"); err == nil {
		t.Error("found a value that is missing")
	}
}

// The classes of the meter are the loads, each with its DSCP.
func TestMeterClasses(t *testing.T) {
	classes := meterClasses()
	for i, l := range loads {
		if int(classes[l.dscp]) != i {
			t.Errorf("DSCP %d of %s is class %d, want %d", l.dscp, l.tin, classes[l.dscp], i)
		}
	}
	if loads[bulk].tin != "bulk" || loads[bestEffort].tin != "best_effort" {
		t.Error("the indices of loads are of other tins")
	}
	if last := int(classes[63]); last < len(loads) {
		t.Errorf("traffic of nobody's is class %d, that of %s", last, loads[last].tin)
	}
}

// A stage mounts file systems over those of the machine: it must not do so in the machine's own
// mount namespace.
func TestStageNeedsOwnMounts(t *testing.T) {
	if err := runStage(t.Context(), "cakectl", filepath.Join(t.TempDir(), recordingFile), io.Discard); !errors.Is(err, errNoOwnMounts) {
		t.Errorf("the stage began in this mount namespace: %v", err)
	}
}

// The VM lane's kernels have sch_fq, so that the demo would run natively there.
func TestVMNothingLacks(t *testing.T) {
	if os.Getenv("CAKECTL_VM") == "" {
		t.Skip("for the VM lane: sch_fq is not everywhere")
	}
	if reason := lacking(); reason != "" {
		t.Errorf("the demo would not run natively: %s", reason)
	}
	entries, err := os.ReadDir("/run/netns")
	if err != nil || len(entries) > 0 {
		t.Errorf("finding that out left namespaces: %v, %v", entries, err)
	}
}

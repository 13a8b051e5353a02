// SPDX-License-Identifier: BSD-2-Clause

package metrics

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/rates"
)

var update = flag.Bool("update", false, "write docs/METRICS.md and the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// devices is a source that answers with what it holds.
type devices struct {
	statuses []api.Status
	err      error
}

func (d *devices) Statuses(context.Context) ([]api.Status, error) { return d.statuses, d.err }

// busy is a device with something to show in every metric.
func busy() api.Status {
	bps := func(r rates.Rate) api.BitsPerSec { return api.BitsPerSec(r) }
	sojourn := func(fast, all uint64, sum float64) api.Sojourn {
		return api.Sojourn{Sum: sum, Buckets: []api.SojournBucket{
			{LE: 1.024e-6, Cumulative: fast}, {LE: 2.048e-6, Cumulative: fast + 1},
			{LE: api.Seconds(math.Inf(1)), Cumulative: all},
		}}
	}
	return api.Status{
		Device: "eth0", Enforcing: true, Attach: "tcx", RootQdisc: "mq",
		Bandwidth: bps(200 * rates.Mbit), Diffserv: "diffserv4", Split: "flows",
		Queues: api.Queues{Total: 2, Active: 1, Counters: []api.QueueCounters{{}, {Bytes: 3_028_000, Packets: 2000}}},
		Tins: []api.Tin{{
			Name: "best_effort", Rate: bps(200 * rates.Mbit), Ceil: bps(rates.Unlimited),
			ActiveQueues: 1, ActiveFlows: 32, SentBytes: 3_028_000, SentPackets: 2000, DelayedPackets: 1999,
			DroppedPackets: map[string]uint64{"horizon": 3}, DroppedBytes: map[string]uint64{"horizon": 4542},
			Sojourn: sojourn(10, 2000, 1.5),
			Queues:  []api.TinQueue{{Queue: 1, EffectiveRate: bps(200 * rates.Mbit), Active: true, ActiveFlows: 32}, {Queue: 0, Active: true, ActiveFlows: 1}},
		}, {
			Name: "bulk", Rate: bps(12_500_000), Ceil: bps(20 * rates.Mbit),
			DroppedPackets: map[string]uint64{"horizon": 0}, DroppedBytes: map[string]uint64{"horizon": 0},
			Sojourn: sojourn(0, 1, 1e-3),
		}},
		Foresight: api.Foresight{Matched: map[string]uint64{"hash": 90, "xps": 9}, Mismatched: map[string]uint64{"xps": 1}},
		Controller: api.Controller{
			Events: 7, Recomputes: 6, RateWrites: 5, UnchangedRecomputes: 4,
			RecomputesByTrigger: map[string]uint64{"active": 3, "flows": 0, "idle": 1, "set": 1, "start": 1},
			UnansweredEvents:    2, UnansweredSeconds: 1.5, Stale: true,
		},
		Drift: &api.Drift{Policy: "repair", Detected: 3, Repaired: 2},
	}
}

// broken is a device that is attached and does not enforce, and is unlimited.
func broken() api.Status {
	return api.Status{
		Device: "eth1", Reason: "the root qdisc is pfifo", Attach: "clsact", RootQdisc: "pfifo",
		Bandwidth: api.BitsPerSec(rates.Unlimited), Queues: api.Queues{Total: 1},
	}
}

func newCollector(source Source, log *slog.Logger) *Collector {
	return New(source, Build{Version: "1.2.3", Revision: "abc", GoVersion: "go1.26"}, log)
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// scrape gets /metrics over HTTP.
func scrape(t *testing.T, c *Collector) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- c.Serve(ctx, listener) }()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	response, err := client.Get("http://" + listener.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s\n%s", response.Status, text)
	}
	return string(text)
}

// checkFile compares with a file, or writes it with -update.
func checkFile(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not up to date (-it +should); if the change is meant: go test ./pkg/metrics -update\n%s", path, diff)
	}
}

func TestScrape(t *testing.T) {
	c := newCollector(&devices{statuses: []api.Status{busy(), broken()}}, discard())
	r := c.Recorder("eth0")
	r.Reacted(40 * time.Microsecond)
	r.Reacted(3 * time.Millisecond)
	r.Reacted(time.Second)
	r.Changed(SourceCLI, ResultOK)
	r.Changed(SourceAPI, ResultInvalid)
	checkFile(t, "testdata/scrape.txt", scrape(t, c))
}

// The pedantic registry checks what is collected against what is described; the linter checks names
// and units.
func TestLint(t *testing.T) {
	c := newCollector(&devices{statuses: []api.Status{busy(), broken()}}, discard())
	c.Recorder("eth0")
	problems, err := testutil.CollectAndLint(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Every metric that is documented has a series when there is something to show.
func TestEveryMetricIsCollected(t *testing.T) {
	c := newCollector(&devices{statuses: []api.Status{busy()}}, discard())
	c.Recorder("eth0")
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, family := range families {
		got[family.GetName()] = strings.ToLower(family.GetType().String())
	}
	want := map[string]string{}
	for _, d := range definitions() {
		want[d.name] = string(d.kind)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-defined +collected):\n%s", diff)
	}
}

func TestDevicesThatCannotBeReadAreCounted(t *testing.T) {
	var log bytes.Buffer
	source := &devices{statuses: []api.Status{broken()}, err: errors.New("eth0: no such map")}
	c := newCollector(source, slog.New(slog.NewTextHandler(&log, nil)))
	for scrapes := 1; scrapes <= 2; scrapes++ {
		text := scrape(t, c)
		for _, want := range []string{
			fmt.Sprintf("\ncakectl_scrape_errors_total %d\n", scrapes),
			"\ncakectl_interface_enforcing{device=\"eth1\"} 0\n",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("scrape %d lacks %q:\n%s", scrapes, want, text)
			}
		}
	}
	if !strings.Contains(log.String(), "eth0: no such map") {
		t.Errorf("the error is not in the log: %s", &log)
	}
	source.err = nil
	if text := scrape(t, c); !strings.Contains(text, "\ncakectl_scrape_errors_total 2\n") {
		t.Error("a good scrape is counted as an error")
	}
}

// The kernel takes any bytes but a few for a name; a label has to be UTF-8.
func TestStrangeDeviceNames(t *testing.T) {
	strange := busy()
	strange.Device = "e\xfft\"h"
	c := newCollector(&devices{statuses: []api.Status{strange}}, discard())
	c.Recorder(strange.Device).Reacted(time.Millisecond)
	if text := scrape(t, c); !strings.Contains(text, `cakectl_tx_queues{device="e`+"\uFFFD"+`t\"h"} 2`) {
		t.Errorf("got:\n%s", text)
	}
}

func TestServeEndsWhenTheListenerFails(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	if err := newCollector(&devices{}, discard()).Serve(t.Context(), listener); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want net.ErrClosed", err)
	}
}

func TestDocumentation(t *testing.T) {
	var doc strings.Builder
	doc.WriteString(`# Metrics

` + "`cakectl attach` and `cakectl serve` serve these under `/metrics` (default `127.0.0.1:9750`, `--metrics`)." + `
Rates are in bytes per second, times in seconds. Packets are GSO segments: what leaves the NIC, not what the
stack hands down. Counters start when the device is attached and go on when a new process adopts it; those
said to be of the process start with it.

This page is written by ` + "`go test ./pkg/metrics -update`" + `.

| metric | type | labels | meaning |
|---|---|---|---|
`)
	for _, d := range definitions() {
		labels := ""
		if len(d.labels) > 0 {
			labels = "`" + strings.Join(d.labels, "` `") + "`"
		}
		fmt.Fprintf(&doc, "| `%s` | %s | %s | %s |\n", d.name, d.kind, labels, d.help)
	}
	checkFile(t, "../../docs/METRICS.md", doc.String())
}

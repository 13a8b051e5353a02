// SPDX-License-Identifier: BSD-2-Clause

package metrics

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/rates"
)

// scrapeTimeout bounds how long the source may take; Prometheus waits 10 s by default.
const scrapeTimeout = 8 * time.Second

// reactionBuckets are the bounds of cakectl_controller_reaction_seconds.
func reactionBuckets() []float64 {
	return []float64{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3}
}

// Source knows the devices.
type Source interface {
	// Statuses returns the state of every attached device. With an error come those that could
	// be read all the same.
	Statuses(ctx context.Context) ([]api.Status, error)
}

// Build says which cakectl this is.
type Build struct {
	Version, Revision, GoVersion string
}

// Collector makes all metrics. It is a [prometheus.Collector].
type Collector struct {
	source Source
	build  Build
	log    *slog.Logger

	descs map[string]*prometheus.Desc
	kinds map[string]prometheus.ValueType

	reaction     *prometheus.HistogramVec
	rateChanges  *prometheus.CounterVec
	reloaded     prometheus.Gauge
	scrapeErrors prometheus.Counter
}

var _ prometheus.Collector = (*Collector)(nil)

// New makes a Collector for the devices of a source.
func New(source Source, build Build, log *slog.Logger) *Collector {
	c := &Collector{
		source: source,
		build:  build,
		log:    log,
		descs:  map[string]*prometheus.Desc{},
		kinds:  map[string]prometheus.ValueType{},
	}
	for _, d := range definitions() {
		switch d.name {
		case "cakectl_controller_reaction_seconds":
			c.reaction = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.name, Help: d.help, Buckets: reactionBuckets()}, d.labels)
		case "cakectl_rate_changes_total":
			c.rateChanges = prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.name, Help: d.help}, d.labels)
		case "cakectl_config_last_reload_successful":
			c.reloaded = prometheus.NewGauge(prometheus.GaugeOpts{Name: d.name, Help: d.help})
			c.reloaded.Set(1)
		case "cakectl_scrape_errors_total":
			c.scrapeErrors = prometheus.NewCounter(prometheus.CounterOpts{Name: d.name, Help: d.help})
		default:
			c.descs[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, nil)
			c.kinds[d.name] = prometheus.GaugeValue
			if d.kind == counter {
				c.kinds[d.name] = prometheus.CounterValue
			}
		}
	}
	return c
}

// Describe sends all descriptors.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		ch <- desc
	}
	c.reaction.Describe(ch)
	c.rateChanges.Describe(ch)
	c.reloaded.Describe(ch)
	c.scrapeErrors.Describe(ch)
}

// Collect reads the devices and sends their metrics. A device that cannot be read is left out, and
// counted in cakectl_scrape_errors_total, which therefore goes last.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	s := series{c, ch}
	s.send("cakectl_build_info", 1, c.build.Version, c.build.Revision, c.build.GoVersion)
	statuses, err := c.source.Statuses(ctx)
	if err != nil {
		c.scrapeErrors.Inc()
		c.log.Warn("scrape failed", "err", err)
	}
	for _, status := range statuses {
		s.device(status)
	}
	c.reaction.Collect(ch)
	c.rateChanges.Collect(ch)
	c.reloaded.Collect(ch)
	c.scrapeErrors.Collect(ch)
}

// Reloaded notes whether the configuration file could be read again.
func (c *Collector) Reloaded(successful bool) {
	if successful {
		c.reloaded.Set(1)
	} else {
		c.reloaded.Set(0)
	}
}

// series sends the metrics of one scrape.
type series struct {
	*Collector
	ch chan<- prometheus.Metric
}

func (s series) send(name string, value float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(s.descs[name], s.kinds[name], value, labels...)
}

func (s series) device(status api.Status) {
	device := label(status.Device)
	enforcing := 0.0
	if status.Enforcing {
		enforcing = 1
	}
	s.send("cakectl_interface_info", 1, device, status.Attach, status.RootQdisc)
	s.send("cakectl_interface_enforcing", enforcing, device)
	s.send("cakectl_bandwidth_limit_bytes_per_second", bytesPerSecond(status.Bandwidth), device)
	s.send("cakectl_tx_queues", float64(status.Queues.Total), device)
	for queue, counters := range status.Queues.Counters {
		s.send("cakectl_queue_bytes_total", float64(counters.Bytes), device, strconv.Itoa(queue))
		s.send("cakectl_queue_packets_total", float64(counters.Packets), device, strconv.Itoa(queue))
	}
	matched, mismatched := status.Foresight.Totals()
	s.send("cakectl_queue_foreseen_packets_total", float64(matched), device, "match")
	s.send("cakectl_queue_foreseen_packets_total", float64(mismatched), device, "mismatch")
	for _, tin := range status.Tins {
		s.tin(device, tin)
	}
	controller := status.Controller
	s.send("cakectl_controller_events_total", float64(controller.Events), device)
	s.send("cakectl_controller_rate_writes_total", float64(controller.RateWrites), device)
	s.send("cakectl_controller_unchanged_recomputes_total", float64(controller.UnchangedRecomputes), device)
	s.send("cakectl_controller_unanswered_seconds", controller.UnansweredSeconds, device)
	if drift := status.Drift; drift != nil {
		s.send("cakectl_drift_detected_total", float64(drift.Detected), device)
		s.send("cakectl_drift_repaired_total", float64(drift.Repaired), device)
	}
	for _, trigger := range slices.Sorted(maps.Keys(controller.RecomputesByTrigger)) {
		s.send("cakectl_controller_recomputes_total", float64(controller.RecomputesByTrigger[trigger]), device, trigger)
	}
}

func (s series) tin(device string, tin api.Tin) {
	s.send("cakectl_active_tx_queues", float64(tin.ActiveQueues), device, tin.Name)
	s.send("cakectl_active_flows", float64(tin.ActiveFlows), device, tin.Name)
	s.send("cakectl_tin_guaranteed_bytes_per_second", bytesPerSecond(tin.Rate), device, tin.Name)
	s.send("cakectl_tin_ceiling_bytes_per_second", bytesPerSecond(tin.Ceil), device, tin.Name)
	s.send("cakectl_tin_bytes_total", float64(tin.SentBytes), device, tin.Name)
	s.send("cakectl_tin_packets_total", float64(tin.SentPackets), device, tin.Name)
	s.send("cakectl_tin_delayed_packets_total", float64(tin.DelayedPackets), device, tin.Name)
	s.send("cakectl_tin_ecn_marked_packets_total", float64(tin.ECNMarked), device, tin.Name)
	for reason, packets := range tin.DroppedPackets {
		s.send("cakectl_tin_dropped_packets_total", float64(packets), device, tin.Name, reason)
	}
	for reason, bytes := range tin.DroppedBytes {
		s.send("cakectl_tin_dropped_bytes_total", float64(bytes), device, tin.Name, reason)
	}
	for _, queue := range tin.Queues {
		if queue.EffectiveRate == 0 {
			continue // active, and not in the plan yet
		}
		s.send("cakectl_queue_effective_bytes_per_second", bytesPerSecond(queue.EffectiveRate), device, strconv.Itoa(queue.Queue), tin.Name)
	}
	s.sojourn(device, tin)
}

func (s series) sojourn(device string, tin api.Tin) {
	var count uint64
	buckets := make(map[float64]uint64, len(tin.Sojourn.Buckets))
	for _, bucket := range tin.Sojourn.Buckets {
		count = bucket.Cumulative
		if le := float64(bucket.LE); !math.IsInf(le, 1) { // Prometheus adds that one itself
			buckets[le] = bucket.Cumulative
		}
	}
	s.ch <- prometheus.MustNewConstHistogram(s.descs["cakectl_tin_sojourn_seconds"], count, tin.Sojourn.Sum, buckets, device, tin.Name)
}

func bytesPerSecond(b api.BitsPerSec) float64 { return rates.Rate(b).BytesPerSecond() }

// label makes a device's name one that a label can have: the kernel takes any bytes for it.
func label(device string) string { return strings.ToValidUTF8(device, "\uFFFD") }

// ChangeSource says where a change of the configuration came from.
type ChangeSource string

// The sources of changes: the flags of the daemon's own command line, its socket, and the file that it
// serves.
const (
	SourceCLI  ChangeSource = "cli"
	SourceAPI  ChangeSource = "api"
	SourceFile ChangeSource = "file"
)

// ChangeResult says what became of a change of the configuration.
type ChangeResult string

// The results of changes.
const (
	ResultOK      ChangeResult = "ok"
	ResultInvalid ChangeResult = "invalid"
	ResultFailed  ChangeResult = "failed"
)

// Recorder counts what happens to one device in this process.
type Recorder struct {
	reaction prometheus.Observer
	changes  *prometheus.CounterVec
}

// Recorder makes the recorder of a device. Its series are there, at zero, from then on.
func (c *Collector) Recorder(device string) *Recorder {
	device = label(device)
	r := &Recorder{
		reaction: c.reaction.WithLabelValues(device),
		changes:  c.rateChanges.MustCurryWith(prometheus.Labels{"device": device}),
	}
	for _, source := range []ChangeSource{SourceCLI, SourceAPI, SourceFile} {
		for _, result := range []ChangeResult{ResultOK, ResultInvalid, ResultFailed} {
			r.changes.WithLabelValues(string(source), string(result))
		}
	}
	return r
}

// Reacted records the time from an event to the rates that it led to.
func (r *Recorder) Reacted(took time.Duration) { r.reaction.Observe(took.Seconds()) }

// Changed counts a change of the configuration.
func (r *Recorder) Changed(source ChangeSource, result ChangeResult) {
	r.changes.WithLabelValues(string(source), string(result)).Inc()
}

// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cakectl/cakectl/lab/meter"
	"github.com/cakectl/cakectl/lab/traffic"
)

// Of each full TCP segment, this many bytes of its frame are payload: an MTU of 1500 less IPv4 and
// TCP headers with timestamps, in a frame with an Ethernet header.
const tcpPayloadShare = (1500. - 20 - 32) / fullFrame

// Measure is one number of a result.
type Measure struct {
	Name string
	// Unit is "" for a plain number, "%" or "ms".
	Unit string
	// Value computes it in that unit.
	Value func(*outcome) (float64, error)
}

// outcome is what a run leaves to be measured. Times are those of [meter.Now].
type outcome struct {
	bandwidth float64 // bits per second
	start     time.Duration
	// begin and end are the measured time, after the warm-up.
	begin, end time.Duration
	series     *meter.Series
	tcp        map[string]flowCounts // bytes of payload delivered from begin to end
	udpWindow  map[string]flowCounts // packets delivered from begin to end
	udp        map[string]traffic.UDPResult
	ping       map[string]traffic.PingResult
}

type flowCounts []uint64

func (c flowCounts) minus(earlier flowCounts) flowCounts {
	difference := slices.Clone(c)
	for i := range difference {
		difference[i] -= earlier[i]
	}
	return difference
}

func (c flowCounts) total() float64 {
	sum := uint64(0)
	for _, n := range c {
		sum += n
	}
	return float64(sum)
}

func (o *outcome) seconds() float64 { return (o.end - o.begin).Seconds() }

// total is what arrives, as a share of the bandwidth.
func total() Measure {
	return Measure{"total", "%", func(o *outcome) (float64, error) {
		return 100 * o.series.Rate(o.begin, o.end) / o.bandwidth, nil
	}}
}

// goodput is TCP payload delivered, as a share of what headers leave of the bandwidth.
func goodput(load string) Measure {
	return Measure{"goodput", "%", func(o *outcome) (float64, error) {
		return 100 * o.tcp[load].total() * 8 / o.seconds() / (o.bandwidth * tcpPayloadShare), nil
	}}
}

// jain is Jain's fairness index over the flows of a load: 1 when all get the same, 1/n when one gets
// everything.
func jain(load string) Measure {
	return Measure{"Jain", "", func(o *outcome) (float64, error) {
		counts, ok := o.tcp[load]
		if !ok {
			counts = o.udpWindow[load]
		}
		return jainIndex(counts), nil
	}}
}

func jainIndex(counts flowCounts) float64 {
	sum, squares := 0., 0.
	for _, n := range counts {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum * sum / (float64(len(counts)) * squares)
}

// spread is the difference between the flows of a load that got most and least, as a share of the
// mean.
func spread(load string) Measure {
	return Measure{"spread", "%", func(o *outcome) (float64, error) {
		counts := o.udpWindow[load]
		mean := counts.total() / float64(len(counts))
		return 100 * float64(slices.Max(counts)-slices.Min(counts)) / mean, nil
	}}
}

// loss is the share of a UDP load's packets that never arrived, of all that the sockets took.
func loss(load string) Measure {
	return Measure{load + " loss", "%", func(o *outcome) (float64, error) {
		return 100 * o.udp[load].Lost(), nil
	}}
}

// reordered counts the packets of a UDP load that arrived after later ones of their flow.
func reordered(load string) Measure {
	return Measure{load + " reordered", "", func(o *outcome) (float64, error) {
		return float64(o.udp[load].Reordered), nil
	}}
}

// pingTime is a quantile of the round-trip times; 1 is the maximum.
func pingTime(load string, q float64) Measure {
	return Measure{load + " " + quantileName(q), "ms", func(o *outcome) (float64, error) {
		r := o.ping[load]
		if len(r.RTTs) == 0 {
			return 0, fmt.Errorf("none of %d pings was answered", r.Sent)
		}
		return milliseconds(quantile(r.RTTs, q)), nil
	}}
}

func quantileName(q float64) string {
	if q == 1 {
		return "max"
	}
	return fmt.Sprintf("p%g", 100*q)
}

// quantile is the smallest of the values that at least a share q of them are not above.
func quantile(values []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Which of all windows to report.
type windowStatistic struct {
	name string
	of   func(meter.Windows) float64
}

var (
	maximum = windowStatistic{"max", func(w meter.Windows) float64 { return w.Max }}
	max99   = windowStatistic{"p99", func(w meter.Windows) float64 { return w.P99 }}
)

// window is the rate in windows of a length, from the very first packet on, as a multiple of the
// bandwidth.
func window(length time.Duration, statistic windowStatistic) Measure {
	return Measure{fmt.Sprintf("%v %s", length, statistic.name), "x", func(o *outcome) (float64, error) {
		first, ok := o.series.First(o.start)
		if !ok {
			return 0, fmt.Errorf("nothing arrived")
		}
		return statistic.of(o.series.Windows(first, o.end, length)) / o.bandwidth, nil
	}}
}

// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"fmt"
	"slices"
	"time"

	"github.com/cakectl/cakectl/lab/meter"
	"github.com/cakectl/cakectl/lab/shaper"
	"github.com/cakectl/cakectl/lab/stats"
	"github.com/cakectl/cakectl/lab/traffic"
)

// Of each full TCP segment, this many bytes of its frame are payload: an MTU of 1500 less IPv4 and
// TCP headers with timestamps, in a frame with an Ethernet header.
const tcpPayloadShare = (1500. - 20 - 32) / fullFrame

// Measure is one number of a result.
type Measure struct {
	Name string
	// Unit is "" for a plain number.
	Unit string
	// Aim says which values are good; nil where more is as good as less.
	Aim Aim
	// Value computes it in that unit.
	Value func(*outcome) (float64, error)
}

// unjudged is the measure where more is as good as less.
func (m Measure) unjudged() Measure {
	m.Aim = nil
	return m
}

// outcome is what a run leaves to be measured. Times are those of [meter.Now].
type outcome struct {
	bandwidth float64 // bits per second
	loads     []Load
	start     time.Duration
	// begin and end are the measured time, after the warm-up.
	begin, end time.Duration
	// acting and acted are when each action began, and when it was done.
	acting, acted []time.Duration
	notes         []note // at each action
	// series is what arrived at the receiver, seriesBack at the sender.
	series, seriesBack *meter.Series
	// flows is what each flow delivered from begin to end: bytes of payload of TCP, packets of UDP.
	flows map[string]flowCounts
	tcp   map[string]traffic.TCPSignals
	udp   map[string]traffic.UDPResult
	iperf map[string]traffic.IperfResult
	ping  map[string]traffic.PingResult
	cost  costs

	forwarding forwardingCosts
	// byteQueueLimits are those of the NIC's transmit queues at the end.
	byteQueueLimits []uint64
}

// note is what was so far when an action was done.
type note struct {
	flows map[string]flowCounts
	work  shaper.Work
}

// arrived is where a load was counted, and its class there.
func (o *outcome) arrived(load string) (*meter.Series, int) {
	named := func(l Load) bool { return l.Name == load }
	if i := slices.IndexFunc(oneWay(o.loads, true), named); i >= 0 {
		return o.seriesBack, int(classOf(i))
	}
	return o.series, int(classOf(slices.IndexFunc(oneWay(o.loads, false), named)))
}

// check refuses an outcome in which a load carried nothing: whatever the numbers would be, the load
// was not there.
func (o *outcome) check() error {
	for _, load := range o.loads {
		if load.Ping != nil {
			continue
		}
		series, class := o.arrived(load.Name)
		if series.Bytes(o.begin, o.end, class) == 0 {
			return fmt.Errorf("load %s: nothing arrived in the measured time", load.Name)
		}
	}
	return nil
}

type flowCounts []uint64

// minus needs the earlier counts of the same flows, or none.
func (c flowCounts) minus(earlier flowCounts) flowCounts {
	difference := slices.Clone(c)
	for i := range earlier {
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
	return Measure{"total", "%", near(100), func(o *outcome) (float64, error) {
		return 100 * o.series.Rate(o.begin, o.end) / o.bandwidth, nil
	}}
}

// goodput is TCP payload delivered, as a share of what headers leave of the bandwidth.
func goodput(load string) Measure {
	return Measure{"goodput", "%", near(100), func(o *outcome) (float64, error) {
		return 100 * o.flows[load].total() * 8 / o.seconds() / (o.bandwidth * tcpPayloadShare), nil
	}}
}

// jain is Jain's fairness index over the flows of a load: 1 when all get the same, 1/n when one gets
// everything.
func jain(loads ...string) Measure {
	return Measure{"Jain", "", most, func(o *outcome) (float64, error) {
		var flows flowCounts
		for _, load := range loads {
			flows = append(flows, o.flows[load]...)
		}
		return stats.Jain(flows), nil
	}}
}

// timesFair is what the flows of a load got on average, as a multiple of an equal share of what so many
// flows got together.
func timesFair(load string, others ...string) Measure {
	return Measure{load, "x fair", near(1), func(o *outcome) (float64, error) {
		own := o.flows[load]
		total, flows := own.total(), len(own)
		for _, other := range others {
			total += o.flows[other].total()
			flows += len(o.flows[other])
		}
		return own.total() / float64(len(own)) / (total / float64(flows)), nil
	}}
}

// totalBack is what arrives at the sender, as a share of the bandwidth.
func totalBack() Measure {
	return Measure{"total back", "%", near(100), func(o *outcome) (float64, error) {
		return 100 * o.seriesBack.Rate(o.begin, o.end) / o.bandwidth, nil
	}}
}

// marked is how many segments of a TCP load arrived with a mark of congestion, resent how many were
// sent again, since the start.
func marked(load string) Measure {
	return Measure{load + " marked", "", nil, func(o *outcome) (float64, error) {
		return float64(o.tcp[load].Marked), nil
	}}
}

func resent(load string) Measure {
	return Measure{load + " resent", "", least, func(o *outcome) (float64, error) {
		return float64(o.tcp[load].Retransmits), nil
	}}
}

// roundTrip is the median of the round-trip times that the flows of a TCP load see at the end: the
// delay of those who fill the queue.
func roundTrip(load string) Measure {
	return Measure{load + " RTT", "ms", least, func(o *outcome) (float64, error) {
		return milliseconds(stats.Quantile(o.tcp[load].RTTs, 0.5)), nil
	}}
}

// byteQueueLimit is the highest of the NIC's transmit queues, which is how much the driver may hold.
func byteQueueLimit() Measure {
	return Measure{"BQL", "KB", least, func(o *outcome) (float64, error) {
		if len(o.byteQueueLimits) == 0 {
			return 0, fmt.Errorf("the NIC has no byte-queue limits")
		}
		return float64(slices.Max(o.byteQueueLimits)) / 1000, nil
	}}
}

// spread is the difference between the flows of a load that got most and least, as a share of the
// mean.
func spread(load string) Measure {
	return Measure{"spread", "%", least, func(o *outcome) (float64, error) {
		counts := o.flows[load]
		mean := counts.total() / float64(len(counts))
		return 100 * float64(slices.Max(counts)-slices.Min(counts)) / mean, nil
	}}
}

// loss is the share of a UDP load's packets that never arrived, of all that the sockets took.
func loss(load string) Measure {
	return Measure{load + " loss", "%", least, func(o *outcome) (float64, error) {
		return 100 * o.udp[load].Lost(), nil
	}}
}

// reordered counts the packets of a UDP load that arrived after later ones of their flow.
func reordered(load string) Measure {
	return Measure{load + " reordered", "", least, func(o *outcome) (float64, error) {
		return float64(o.udp[load].Reordered), nil
	}}
}

// retransmits counts the segments that iperf3 says TCP sent again.
func retransmits(load string) Measure {
	return Measure{"retransmits", "", least, func(o *outcome) (float64, error) {
		return float64(o.iperf[load].Retransmits), nil
	}}
}

// share is what arrives of a load, in frames, as a share of the bandwidth.
func share(load string, aim Aim) Measure {
	return Measure{load, "%", aim, func(o *outcome) (float64, error) {
		series, class := o.arrived(load)
		return 100 * series.Rate(o.begin, o.end, class) / o.bandwidth, nil
	}}
}

// leastOfFair is what the TCP flow that got least got, as a multiple of an equal share of the
// bandwidth among so many flows.
func leastOfFair(load string, flows int) Measure {
	return Measure{"least " + load, "x fair", near(1), func(o *outcome) (float64, error) {
		least := float64(slices.Min(o.flows[load]))
		return least * 8 / o.seconds() / (o.bandwidth * tcpPayloadShare / float64(flows)), nil
	}}
}

// delay is a quantile of the one-way delays of a UDP load; 1 is the maximum.
func delay(load string, q float64) Measure {
	return Measure{load + " " + quantileName(q), "ms", least, func(o *outcome) (float64, error) {
		delays := o.udp[load].Delays
		if len(delays) == 0 {
			return 0, fmt.Errorf("no packet of %s arrived", load)
		}
		return milliseconds(stats.Quantile(delays, q)), nil
	}}
}

// totalFrom is what arrives in a part of the measured time (shares of it), as a share of the
// bandwidth.
func totalFrom(name string, from, to float64) Measure {
	return Measure{name, "%", near(100), func(o *outcome) (float64, error) {
		length := float64(o.end - o.begin)
		begin, end := o.begin+time.Duration(from*length), o.begin+time.Duration(to*length)
		return 100 * o.series.Rate(begin, end) / o.bandwidth, nil
	}}
}

// worstFrom is the highest rate of any window of a length in a part of the measured time, as a
// multiple of the bandwidth.
func worstFrom(name string, length time.Duration, from, to float64) Measure {
	return Measure{name, "x", notAbove(1), func(o *outcome) (float64, error) {
		whole := float64(o.end - o.begin)
		begin, end := o.begin+time.Duration(from*whole), o.begin+time.Duration(to*whole)
		return o.series.Windows(begin, end, length).Max / o.bandwidth, nil
	}}
}

// How close a rate has to be to count as held, and over what time it is averaged.
const (
	heldWithin = 0.05
	heldWindow = 50 * time.Millisecond
)

// held is how long after an action its rate (a multiple of the experiment's) was reached for good:
// from when on every window of 50 ms, until the next action begins, is within 5 % of it.
func held(name string, action int, timesBandwidth float64) Measure {
	return Measure{name, "ms", least, func(o *outcome) (float64, error) {
		from, to := o.acted[action], o.end
		if action+1 < len(o.acting) {
			to = o.acting[action+1]
		}
		since := o.series.HeldSince(from, to, heldWindow, timesBandwidth*o.bandwidth, heldWithin)
		return milliseconds(since - from), nil
	}}
}

// after is the rate in the first 100 ms after an action, as a multiple of the action's rate.
func after(name string, action int, timesBandwidth float64) Measure {
	return Measure{name, "x", near(1), func(o *outcome) (float64, error) {
		t := o.acted[action]
		return o.series.Rate(t, t+100*time.Millisecond) / (timesBandwidth * o.bandwidth), nil
	}}
}

// pingTime is a quantile of the round-trip times; 1 is the maximum.
func pingTime(load string, q float64) Measure {
	return Measure{load + " " + quantileName(q), "ms", least, func(o *outcome) (float64, error) {
		r := o.ping[load]
		if len(r.RTTs) == 0 {
			return 0, fmt.Errorf("none of %d pings was answered", r.Sent)
		}
		return milliseconds(stats.Quantile(r.RTTs, q)), nil
	}}
}

func quantileName(q float64) string {
	if q == 1 {
		return "max"
	}
	return fmt.Sprintf("p%g", 100*q)
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
	return Measure{fmt.Sprintf("%v %s", length, statistic.name), "x", notAbove(1), func(o *outcome) (float64, error) {
		first, ok := o.series.First(o.start)
		if !ok {
			return 0, fmt.Errorf("nothing arrived")
		}
		return statistic.of(o.series.Windows(first, o.end, length)) / o.bandwidth, nil
	}}
}

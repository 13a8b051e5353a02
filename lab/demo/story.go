// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cakectl/cakectl/lab/meter"
	"github.com/cakectl/cakectl/lab/stats"
	"github.com/cakectl/cakectl/lab/topo"
	"github.com/cakectl/cakectl/lab/traffic"
	"github.com/cakectl/cakectl/pkg/api"
)

// Rates of the story, in bits per second.
const (
	mbit = 1e6

	bandwidth     = 100 * mbit
	lowBandwidth  = 50 * mbit
	bulkGuarantee = 30 * mbit
	bulkCeil      = 5 * mbit
)

// How long its parts take.
const (
	warmup       = time.Second
	steady       = 3 * time.Second
	afterChange  = 3 * time.Second
	settling     = 500 * time.Millisecond // before a tin's new rate is measured
	quiet        = 4 * time.Second
	pingInterval = 10 * time.Millisecond
	// binInterval is that of the picture.
	binInterval = 100 * time.Millisecond
)

// What counts as held, and what is demanded beyond that.
const (
	within     = 0.05
	window     = 100 * time.Millisecond
	changeTime = 100 * time.Millisecond
	raiseTime  = 250 * time.Millisecond
	// Open connections keep the super-packets of the rate before, which leave in one lump each.
	loweredWithin = 0.25
	pingLimit     = 5 * time.Millisecond
	fairnessLimit = 0.95
)

// load is the traffic of one tin. One of tcp and calls is the number of its flows.
type load struct {
	tin        string
	dscp       uint8
	tcp, calls int
}

// loads are in the order of the meter's classes and of the tins.
var loads = []load{
	{tin: "bulk", dscp: 8, tcp: 8},         // CS1
	{tin: "best_effort", dscp: 0, tcp: 16}, // CS0
	{tin: "video", dscp: 34, tcp: 8},       // AF41
	{tin: "voice", dscp: 46, calls: 4},     // EF
}

// Indices of loads.
const (
	bulk       = 0
	bestEffort = 1
)

// A call is a stream of small packets: 50 a second each way, as by G.711.
const (
	callFrameBytes = 214
	callRate       = 50 * 8 * callFrameBytes
)

func (l load) flows() string {
	if l.calls > 0 {
		return fmt.Sprintf("%d calls", l.calls)
	}
	return fmt.Sprintf("%d TCP", l.tcp)
}

func meterClasses() meter.Classifier {
	var classes meter.Classifier
	for i := range classes {
		classes[i] = meter.Classes - 1
	}
	for i, l := range loads {
		classes[l.dscp] = uint8(i)
	}
	return classes
}

// story is the demo under way.
type story struct {
	*stage
	tcp   map[string]*traffic.TCP
	calls *traffic.UDP
	// begin and end are those of the traffic.
	begin, end time.Duration
	result     recording
}

// tell plays all of it.
func tell(ctx context.Context, s *stage) (r recording, err error) {
	p := &story{stage: s, tcp: map[string]*traffic.TCP{}}
	p.result.Kernel = kernelRelease()
	defer func() { err = errors.Join(err, p.stopTCP()) }()
	p.heading("0. The device as it is: one end of a veth pair with %d queues, in a network namespace", queues)
	found, err := p.describeDevice(ctx)
	if err != nil {
		return r, err
	}
	for _, step := range []func(context.Context) error{p.shape, p.changeBandwidth, p.changeTin, p.idle, p.metrics, p.stopTraffic} {
		if err := step(ctx); err != nil {
			return r, err
		}
	}
	if err := p.record(); err != nil {
		return r, err
	}
	return p.result, p.detach(ctx, found)
}

func (p *story) heading(format string, args ...any) { fmt.Fprintf(p.out, "\n"+format+"\n", args...) }

// gap separates what belongs to one step.
func (p *story) gap() { fmt.Fprintln(p.out) }

func (p *story) check(ok bool, what, want, got string) {
	p.result.Checks = append(p.result.Checks, check{What: what, Want: want, Got: got, OK: ok})
}

// checkRate checks that a rate is about another one.
func (p *story) checkRate(what string, got, want float64) {
	p.checkBetween(what, got, want*(1-within), want*(1+within))
}

// checkHighest checks that the highest rate of any window is no more than a part above the rate.
func (p *story) checkHighest(got, rate, above float64) {
	p.check(got <= rate*(1+above), fmt.Sprintf("highest window of %v", window), "at most "+megabits(rate*(1+above)), megabits(got))
}

func (p *story) checkBetween(what string, got, least, most float64) {
	p.check(least <= got && got <= most, what, fmt.Sprintf("%.1f to %s", least/mbit, megabits(most)), megabits(got))
}

func megabits(bitsPerSecond float64) string {
	return fmt.Sprintf("%.1f Mbit/s", bitsPerSecond/mbit)
}

func milliseconds(d time.Duration) string {
	value := float64(d) / float64(time.Millisecond)
	if value < 10 {
		return fmt.Sprintf("%.2f ms", value)
	}
	return fmt.Sprintf("%.0f ms", value)
}

// describeDevice shows the device's qdiscs, and returns all that tc and ip say about it.
func (p *story) describeDevice(ctx context.Context) (string, error) {
	all, err := p.run(ctx, "tc", "qdisc", "show", "dev", device)
	if err != nil {
		return "", err
	}
	p.show(all)
	for _, command := range [][]string{
		{"tc", "filter", "show", "dev", device, "ingress"},
		{"tc", "filter", "show", "dev", device, "egress"},
		{"ip", "-details", "link", "show", "dev", device},
	} {
		text, err := p.runQuietly(ctx, command...)
		if err != nil {
			return "", err
		}
		all += text
	}
	return all, nil
}

// shape is the attach, and what it does to traffic.
func (p *story) shape(ctx context.Context) error {
	p.heading("1. Shape it to 100 Mbit/s, with the tins of diffserv4")
	if err := p.attach(ctx, "cakectl", "attach", device, "--bandwidth", "100mbit", "--diffserv", "diffserv4"); err != nil {
		return err
	}
	p.begin = meter.Now()
	p.result.Changes = append(p.result.Changes, change{Bandwidth: bandwidth})
	tcpFlows, calls := 0, 0
	for _, l := range loads {
		if err := p.startLoad(ctx, l); err != nil {
			return err
		}
		tcpFlows, calls = tcpFlows+l.tcp, calls+l.calls
	}
	p.gap()
	p.say("%d TCP flows send as fast as they can, %d calls beside them; measuring for %v ...", tcpFlows, calls, steady)
	if err := sleep(ctx, warmup); err != nil {
		return err
	}
	ping, err := traffic.StartPing(ctx, p.pair.Sender, topo.SenderAddress, p.pair.ReceiverAddresses, traffic.PingConfig{Interval: pingInterval})
	if err != nil {
		return err
	}
	fair := p.tcp[loads[bestEffort].tin]
	before, err := fair.Received()
	if err != nil {
		return err
	}
	from := meter.Now()
	if err := sleep(ctx, steady); err != nil {
		return err
	}
	to := meter.Now()
	after, err := fair.Received()
	if err != nil {
		return err
	}
	pings, err := ping.Stop(ctx)
	if err != nil {
		return err
	}
	if len(pings.RTTs) == 0 {
		return fmt.Errorf("none of %d pings was answered", pings.Sent)
	}
	series, err := p.meter.Read()
	if err != nil {
		return err
	}
	total, err := p.showRates(ctx, series, from, to)
	if err != nil {
		return err
	}
	for i := range after {
		after[i] -= before[i]
	}
	jain := stats.Jain(after)
	p50, p99 := stats.Quantile(pings.RTTs, 0.5), stats.Quantile(pings.RTTs, 0.99)
	p.say("The %d best-effort flows have equal parts: Jain's index %.3f", len(after), jain)
	p.say("Ping beside them, %d times: half within %s, 99 %% within %s", pings.Sent, milliseconds(p50), milliseconds(p99))
	p.checkRate(fmt.Sprintf("rate under %d TCP flows", tcpFlows), total, bandwidth)
	p.checkHighest(series.Windows(from, to, window).Max, bandwidth, within)
	p.check(jain >= fairnessLimit, "Jain's index, best effort", fmt.Sprintf("at least %v", fairnessLimit), fmt.Sprintf("%.3f", jain))
	p.check(p99 <= pingLimit, "ping under load, p99", "at most "+milliseconds(pingLimit), milliseconds(p99))
	return nil
}

func (p *story) startLoad(ctx context.Context, l load) (err error) {
	sender, receiver, address := p.pair.Sender, p.pair.Receiver, p.pair.ReceiverAddresses[0]
	if l.calls > 0 {
		p.calls, err = traffic.StartUDP(ctx, sender, receiver, address, traffic.UDPConfig{
			Flows: l.calls, DSCP: l.dscp, FrameBytes: callFrameBytes, RateBitsPerSecond: callRate, Delays: true,
		})
		return err
	}
	tcp, err := traffic.StartTCP(ctx, sender, receiver, address, traffic.TCPConfig{Flows: l.tcp, DSCP: l.dscp})
	if err == nil {
		p.tcp[l.tin] = tcp
	}
	return err
}

// showRates prints what arrived of each tin, and returns the sum.
func (p *story) showRates(ctx context.Context, series *meter.Series, from, to time.Duration) (total float64, err error) {
	status, err := p.daemon.Status(ctx)
	if err != nil {
		return 0, err
	}
	const row = "%-12s %8s %14s %16s"
	p.say(row, "tin", "flows", "planned", "at the receiver")
	planned := 0.
	for i, l := range loads {
		plan := plannedRate(status, l.tin)
		planned += plan
		p.say(row, l.tin, l.flows(), megabits(plan), megabits(series.Rate(from, to, i)))
	}
	total = series.Rate(from, to)
	p.say(row, "all", "", megabits(planned), megabits(total))
	return total, nil
}

// plannedRate is what the controller gives a tin on all queues together.
func plannedRate(status api.Status, tin string) (sum float64) {
	for _, t := range status.Tins {
		if t.Name != tin {
			continue
		}
		for _, queue := range t.Queues {
			sum += float64(queue.EffectiveRate)
		}
	}
	return sum
}

// changeBandwidth halves the rate and puts it back.
func (p *story) changeBandwidth(ctx context.Context) error {
	p.heading("2. Change the bandwidth while traffic flows")
	before, err := p.troubles(ctx)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		text string
		rate float64
	}{{"50mbit", lowBandwidth}, {"100mbit", bandwidth}} {
		begin, end, err := p.set(ctx, step.rate, "--bandwidth", step.text)
		if err != nil {
			return err
		}
		if err := p.judgeRate(step.text, step.rate, begin, end); err != nil {
			return err
		}
	}
	after, err := p.troubles(ctx)
	if err != nil {
		return err
	}
	dropped, disordered := after.dropped-before.dropped, after.disordered-before.disordered
	p.say("Meanwhile: %d packets dropped, %d TCP segments out of order at the receiver", dropped, disordered)
	p.check(dropped == 0 && disordered == 0, "packets lost or out of order", "0", fmt.Sprint(dropped+disordered))
	return nil
}

// judgeRate tells how soon a new rate was reached, and how it was kept until now. The command that
// set it ran from begin to end.
func (p *story) judgeRate(what string, rate float64, begin, end time.Duration) error {
	series, err := p.meter.Read()
	if err != nil {
		return err
	}
	now := meter.Now()
	reached, ok := series.ReachedAt(begin, now, window, rate, within)
	if !ok {
		p.say("At the receiver: never the new rate, but %s on average", megabits(series.Rate(end, now)))
		p.check(false, what+" reached", "at most "+milliseconds(changeTime)+" later", "never")
		return nil
	}
	// What was booked at the old rate leaves at its old times.
	settled := max(reached, end+changeTime)
	mean, highest := series.Rate(reached, now), series.Windows(settled, now, window).Max
	p.say("At the receiver: the new rate from %s after the command began (it ran for %s)", milliseconds(reached-begin), milliseconds(end-begin))
	p.say("From then on %s, and %s in the highest window of %s that began %s later", megabits(mean), megabits(highest), window, milliseconds(changeTime))
	allowed, lump := changeTime, loweredWithin
	if series.Rate(begin-window, begin) < rate {
		// A flow sends anew when its packets leave, and those are booked at the old spacing.
		allowed, lump = raiseTime, within
	}
	p.check(reached-end <= allowed, what+" reached", "at most "+milliseconds(allowed)+" later", milliseconds(max(reached-end, 0)))
	p.checkRate("rate from then on", mean, rate)
	p.checkHighest(highest, rate, lump)
	return nil
}

// set changes something by the command, compares the cells that it says it wrote with those that
// changed, and lets the change work. It returns when the command was entered and when it was done.
func (p *story) set(ctx context.Context, bandwidth float64, args ...string) (begin, end time.Duration, err error) {
	before, err := p.daemon.Status(ctx)
	if err != nil {
		return 0, 0, err
	}
	begin = meter.Now()
	output, err := p.run(ctx, append([]string{"cakectl", "set", device}, args...)...)
	if err != nil {
		return 0, 0, err
	}
	end = meter.Now()
	p.show(output)
	after, err := p.daemon.Status(ctx)
	if err != nil {
		return 0, 0, err
	}
	p.result.Changes = append(p.result.Changes, change{At: end - p.begin, Label: strings.Join(args, " "), Bandwidth: bandwidth})
	changed := uint64(changedCells(before, after))
	writes := after.Controller.RateWrites - before.Controller.RateWrites
	got := fmt.Sprint(writes)
	recomputes := after.Controller.Recomputes - before.Controller.Recomputes
	if recomputes > 1 {
		// The flows changed as well in that moment, and some cells may have been written more than once.
		got += fmt.Sprintf(" in %d recomputes", recomputes)
	}
	p.check(writes == changed || writes > changed && recomputes > 1, "rates written by "+args[1], fmt.Sprintf("the %d that changed", changed), got)
	return begin, end, sleep(ctx, afterChange)
}

// changedCells counts the (queue, tin)s whose effective rate differs.
func changedCells(before, after api.Status) (changed int) {
	type cell struct {
		tin   string
		queue int
	}
	rates := func(s api.Status) map[cell]api.BitsPerSec {
		cells := map[cell]api.BitsPerSec{}
		for _, tin := range s.Tins {
			for _, queue := range tin.Queues {
				if queue.EffectiveRate != 0 {
					cells[cell{tin.Name, queue.Queue}] = queue.EffectiveRate
				}
			}
		}
		return cells
	}
	was, is := rates(before), rates(after)
	for key, rate := range is {
		if was[key] != rate {
			changed++
		}
	}
	for key := range was {
		if _, there := is[key]; !there {
			changed++
		}
	}
	return changed
}

// changeTin changes what a tin may have, and what it is guaranteed.
func (p *story) changeTin(ctx context.Context) error {
	p.heading("3. Change one tin while traffic flows")
	for _, step := range []struct {
		setting     string
		least, most float64
	}{
		{"bulk=rate:30mbit", bulkGuarantee * (1 - within), bulkGuarantee * (1 + within)},
		// A cap is not a promise: what counts is that it is not exceeded.
		{"bulk=rate:default,ceil:5mbit", bulkCeil * (1 - 2*within), bulkCeil * (1 + within)},
	} {
		from := meter.Now() - afterChange + settling
		to := meter.Now()
		if _, _, err := p.set(ctx, bandwidth, "--tin", step.setting); err != nil {
			return err
		}
		series, err := p.meter.Read()
		if err != nil {
			return err
		}
		now := meter.Now()
		before, after := series.Rate(from, to, bulk), series.Rate(now-afterChange+settling, now, bulk)
		total := series.Rate(now-afterChange+settling, now)
		p.say("Bulk at the receiver: %s before, %s now; all tins together %s", megabits(before), megabits(after), megabits(total))
		p.checkBetween("bulk after "+step.setting, after, step.least, step.most)
		p.checkRate("all tins then", total, bandwidth)
	}
	return nil
}

// idle shows that under steady load there is nothing to do.
func (p *story) idle(ctx context.Context) error {
	p.heading("4. What the kernel says, and what the controller does under steady load")
	output, err := p.run(ctx, "cakectl", "status", device)
	if err != nil {
		return err
	}
	p.show(output)
	before, err := p.daemon.Status(ctx)
	if err != nil {
		return err
	}
	p.gap()
	p.say("Watching the controller for %v ...", quiet)
	if err := sleep(ctx, quiet); err != nil {
		return err
	}
	after, err := p.daemon.Status(ctx)
	if err != nil {
		return err
	}
	events := after.Controller.Events - before.Controller.Events
	recomputes := after.Controller.Recomputes - before.Controller.Recomputes
	writes := after.Controller.RateWrites - before.Controller.RateWrites
	got := fmt.Sprintf("%d, %d, %d", events, recomputes, writes)
	p.say("In these %v: %d events, %d recomputes, %d rates written", quiet, events, recomputes, writes)
	p.check(got == "0, 0, 0", fmt.Sprintf("events, recomputes, writes in %v", quiet), "0, 0, 0", got)
	return nil
}

// metricsURL is where attach serves them unless told otherwise.
const metricsURL = "http://127.0.0.1:9750/metrics"

// metricsExcerpt are the metrics to show.
var metricsExcerpt = []string{
	"cakectl_interface_enforcing", "cakectl_bandwidth_limit_bytes_per_second", "cakectl_active_tx_queues",
	"cakectl_tin_ceiling_bytes_per_second", "cakectl_tin_bytes_total", "cakectl_controller_rate_writes_total",
}

func (p *story) metrics(ctx context.Context) error {
	p.heading("5. Metrics for Prometheus")
	text, err := p.get(ctx, metricsURL)
	if err != nil {
		return err
	}
	samples := 0
	var excerpt []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		samples++
		name, _, _ := strings.Cut(line, "{")
		for _, wanted := range metricsExcerpt {
			if name == wanted {
				excerpt = append(excerpt, strings.TrimSpace(line))
			}
		}
	}
	p.say("%s has %d samples, among them:", metricsURL, samples)
	for _, line := range excerpt {
		p.say("%s", line)
	}
	p.check(len(excerpt) > len(metricsExcerpt), "metrics served", "those above", fmt.Sprintf("%d samples", samples))
	return nil
}

// stopTraffic ends it, and tells what became of the calls' packets.
func (p *story) stopTraffic(ctx context.Context) error {
	p.end = meter.Now()
	if err := p.stopTCP(); err != nil {
		return err
	}
	calls, err := p.calls.Stop(ctx)
	if err != nil {
		return err
	}
	var sent, received uint64
	for i := range calls.Sent {
		sent, received = sent+calls.Sent[i], received+calls.Received[i]
	}
	if received == 0 {
		return errors.New("no packet of the calls arrived")
	}
	p.gap()
	p.say("Of the calls' %d packets, through all this: %d lost, %d out of order, 99 %% within %s",
		sent, sent-received, calls.Reordered, milliseconds(stats.Quantile(calls.Delays, 0.99)))
	p.check(sent == received && calls.Reordered == 0, "calls' packets lost, out of order", "0, 0", fmt.Sprintf("%d, %d", sent-received, calls.Reordered))
	return nil
}

func (p *story) stopTCP() error {
	var errs []error
	for _, tcp := range p.tcp {
		errs = append(errs, tcp.Stop())
	}
	clear(p.tcp)
	return errors.Join(errs...)
}

// record keeps what the picture shows.
func (p *story) record() error {
	series, err := p.meter.Read()
	if err != nil {
		return err
	}
	p.result.Interval = binInterval
	for i, l := range loads {
		p.result.Tins = append(p.result.Tins, tinSeries{Name: l.tin, Rates: series.Rates(p.begin, p.end, binInterval, i)})
	}
	return nil
}

// detach ends the shaping and compares the device with what was found.
func (p *story) detach(ctx context.Context, found string) error {
	p.heading("6. Detach: Ctrl-C")
	if err := p.interrupt(); err != nil {
		return err
	}
	left, err := p.describeDevice(ctx)
	if err != nil {
		return err
	}
	same := "the same"
	if left != found {
		same = "different"
		p.say("Before:")
		p.show(found)
		p.say("Now:")
		p.show(left)
	}
	p.say("All that tc qdisc, tc filter and ip -details link show of %s: %s as before", device, same)
	p.check(left == found, "the device after detach", "as it was found", same)
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

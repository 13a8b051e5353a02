// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/lab/meter"
	"github.com/cakectl/cakectl/lab/shaper"
	"github.com/cakectl/cakectl/lab/stats"
	"github.com/cakectl/cakectl/lab/topo"
	"github.com/cakectl/cakectl/lab/traffic"
	"github.com/cakectl/cakectl/pkg/rates"
)

// settle is added to each run's length for setting up, draining and taking down, which a busy host can
// make slow where the guest's clock follows its own.
const settle = time.Minute

// rateInterval is the interval of Row.Rates.
const rateInterval = 50 * time.Millisecond

// runOne fills in what a run measured.
func (p Plan) runOne(ctx context.Context, e Experiment, row *Row) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.Warmup+p.Duration+settle)
	defer cancel()
	peer, err := shaper.Lookup(row.Peer)
	if err != nil {
		return err
	}
	prefix := fmt.Sprintf("lab%d", os.Getpid())
	if e.Cost != nil {
		return p.runCost(ctx, e, prefix, row)
	}
	if e.Forwarding != nil {
		return p.runForwarding(ctx, e, prefix, row)
	}
	pair, err := e.Network.make(prefix, row.Queues)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pair.Close()) }()
	t := &trial{plan: p, experiment: e, row: row, pair: pair}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.prepare(ctx, peer, prefix); err != nil {
		return err
	}
	o, err := t.run(ctx)
	if err != nil {
		return err
	}
	return row.measure(e, o)
}

// measure fills in the values.
func (r *Row) measure(e Experiment, o *outcome) error {
	r.Values = map[string]float64{}
	for _, measure := range e.Measures {
		value, err := measure.Value(o)
		if err == nil && (math.IsNaN(value) || math.IsInf(value, 0)) {
			err = fmt.Errorf("no number (%v)", value)
		}
		if err != nil {
			return fmt.Errorf("measure %s: %w", measure.Name, err)
		}
		r.Values[measure.Name] = value
	}
	return nil
}

// oneWay are the loads that go to the sender, or those that go to the receiver.
func oneWay(loads []Load, back bool) []Load {
	return slices.DeleteFunc(slices.Clone(loads), func(l Load) bool { return l.Back != back })
}

// classOf is the meter's class of the load with an index among those that go the same way.
func classOf(load int) uint8 { return uint8(min(load, meter.Classes-1)) }

// classifier gives each load, of those that go one way, the class of its index; loads with equal DSCPs
// share the first one's.
func classifier(loads []Load) meter.Classifier {
	var classes meter.Classifier
	for i, load := range slices.Backward(loads) {
		classes[load.dscp()] = classOf(i)
	}
	return classes
}

func (l Load) dscp() uint8 {
	switch {
	case l.TCP != nil:
		return l.TCP.DSCP
	case l.Short != nil:
		return l.Short.DSCP
	case l.UDP != nil:
		return l.UDP.DSCP
	case l.Ping != nil:
		return l.Ping.DSCP
	default:
		return bestEffort
	}
}

// trial is one run under way.
type trial struct {
	plan       Plan
	experiment Experiment
	row        *Row
	pair       *topo.Pair
	// shaped are the ports that are shaped: that to the receiver, and that to the sender if the
	// experiment shapes both.
	shaped []shaper.Shaped
	// meter counts at the receiver, meterBack at the sender if there is something to count.
	meter, meterBack *meter.Meter
	closers          []func() error

	tcp           map[string]*traffic.TCP
	udp           map[string]*traffic.UDP
	iperf         map[string]*traffic.Iperf
	ping          map[string]*traffic.Ping
	short         map[string]*traffic.Short
	ended         map[string]flowCounts // of TCP that ended under way
	acting, acted []time.Duration
	notes         []note
}

// prepare puts shapers and meters on the network.
func (t *trial) prepare(ctx context.Context, peer shaper.Peer, prefix string) error {
	ports := []topo.Port{t.pair.Up}
	if t.experiment.BothWays {
		ports = append(ports, t.pair.Down)
	}
	for _, port := range ports {
		stateDir, err := os.MkdirTemp("", prefix+"-")
		if err != nil {
			return err
		}
		t.closers = append(t.closers, func() error { return os.RemoveAll(stateDir) })
		shaped, err := peer.Attach(ctx, shaper.Target{
			Port: port, Rate: t.row.Rate, Diffserv: t.plan.Diffserv, Framing: t.experiment.Framing,
			Cakectl: t.plan.Cakectl, StateDir: stateDir,
		})
		if err != nil {
			return err
		}
		t.closers = append(t.closers, shaped.Close)
		t.shaped = append(t.shaped, shaped)
	}
	if t.experiment.Steered {
		if err := t.pair.Up.SteerByMark(); err != nil {
			return err
		}
	}
	if t.experiment.ECN {
		for _, end := range []*topo.Namespace{t.pair.Sender, t.pair.Receiver} {
			err := end.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_ecn", []byte("1"), 0) })
			if err != nil {
				return fmt.Errorf("switch ECN on: %w", err)
			}
		}
	}
	var err error
	if t.meter, err = t.attachMeter(t.pair.Receiver, topo.ReceiverDevice, false); err != nil {
		return err
	}
	if len(oneWay(t.experiment.Loads, true)) > 0 {
		t.meterBack, err = t.attachMeter(t.pair.Sender, topo.SenderDevice, true)
	}
	return err
}

// attachMeter counts the loads that go one way, where they arrive.
func (t *trial) attachMeter(end *topo.Namespace, name string, back bool) (m *meter.Meter, err error) {
	err = end.Do(func() error {
		device, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		m, err = meter.Attach(device, classifier(oneWay(t.experiment.Loads, back)))
		return err
	})
	if err == nil {
		t.closers = append(t.closers, func() error { return end.Do(m.Close) })
	}
	return m, err
}

// close takes away what prepare put there.
func (t *trial) close() error {
	var errs []error
	for _, f := range slices.Backward(t.closers) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// run applies loads and actions, and returns what came of them.
func (t *trial) run(ctx context.Context) (*outcome, error) {
	t.tcp, t.udp = map[string]*traffic.TCP{}, map[string]*traffic.UDP{}
	t.iperf, t.ping = map[string]*traffic.Iperf{}, map[string]*traffic.Ping{}
	t.short, t.ended = map[string]*traffic.Short{}, map[string]flowCounts{}
	o := &outcome{
		bandwidth: float64(t.row.Rate) * t.experiment.Framing.Share(fullFrame),
		loads:     t.experiment.Loads,
		start:     meter.Now(),
		flows:     map[string]flowCounts{},
		tcp:       map[string]traffic.TCPSignals{},
		udp:       map[string]traffic.UDPResult{},
		iperf:     map[string]traffic.IperfResult{},
		ping:      map[string]traffic.PingResult{},
	}
	err := t.apply(ctx, o)
	err = errors.Join(err, t.stop(ctx, o), checkReceiver(t.pair))
	if err != nil {
		return nil, err
	}
	o.acting, o.acted, o.notes = t.acting, t.acted, t.notes
	if o.series, err = t.meter.Read(); err != nil {
		return nil, err
	}
	if t.meterBack != nil {
		if o.seriesBack, err = t.meterBack.Read(); err != nil {
			return nil, err
		}
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	t.describe(o)
	return o, nil
}

// apply brings the experiment to the end of its measured time.
func (t *trial) apply(ctx context.Context, o *outcome) error {
	for i, load := range t.experiment.Loads {
		if load.At > 0 {
			continue
		}
		if err := t.start(ctx, i); err != nil {
			return err
		}
	}
	if err := sleep(ctx, t.plan.Warmup); err != nil {
		return err
	}
	before, err := t.counts()
	if err != nil {
		return err
	}
	cpuBefore, err := readCPU()
	if err != nil {
		return err
	}
	o.begin = meter.Now()
	if err := t.act(ctx); err != nil {
		return err
	}
	o.end = meter.Now()
	cpuAfter, err := readCPU()
	if err != nil {
		return err
	}
	t.row.Idle = cpuAfter.idleSince(cpuBefore)
	after, err := t.counts()
	if err != nil {
		return err
	}
	for name, counts := range after {
		o.flows[name] = counts.minus(before[name])
	}
	for name, tcp := range t.tcp {
		if o.tcp[name], err = tcp.Signals(); err != nil {
			return named(name, err)
		}
	}
	if t.experiment.Network == Virtio {
		if o.byteQueueLimits, err = t.pair.Up.ByteQueueLimits(); err != nil {
			return err
		}
	}
	if t.plan.Details {
		for _, shaped := range t.shaped {
			details, err := shaped.Details(ctx)
			if err != nil {
				return err
			}
			t.row.Details += details
		}
	}
	return nil
}

// start starts the load with an index.
func (t *trial) start(ctx context.Context, index int) (err error) {
	load, pair := t.experiment.Loads[index], t.pair
	from, to, address := pair.Sender, pair.Receiver, pair.ReceiverAddresses[0]
	if load.Back {
		from, to, address = pair.Receiver, pair.Sender, topo.SenderAddress
	}
	switch {
	case load.TCP != nil:
		t.tcp[load.Name], err = traffic.StartTCP(ctx, from, to, address, *load.TCP)
	case load.Short != nil:
		t.short[load.Name], err = traffic.StartShort(ctx, from, to, address, *load.Short)
	case load.UDP != nil:
		t.udp[load.Name], err = traffic.StartUDP(ctx, from, to, address, load.UDP.config(float64(t.row.Rate)))
	case load.Iperf != nil:
		t.iperf[load.Name], err = traffic.StartIperf(ctx, from.Name, to.Name, address,
			traffic.IperfConfig{Flows: load.Iperf.Flows, Duration: t.plan.Duration, Omit: t.plan.Warmup})
	case load.Ping != nil:
		t.ping[load.Name], err = traffic.StartPing(ctx, pair.Sender, topo.SenderAddress, pair.ReceiverAddresses, *load.Ping)
	}
	if err != nil {
		delete(t.tcp, load.Name)
		delete(t.short, load.Name)
		delete(t.udp, load.Name)
		delete(t.iperf, load.Name)
		delete(t.ping, load.Name)
		return fmt.Errorf("load %s: %w", load.Name, err)
	}
	return nil
}

// counts are what each flow has delivered so far, by load.
func (t *trial) counts() (map[string]flowCounts, error) {
	counts := maps.Clone(t.ended)
	for name, tcp := range t.tcp {
		received, err := tcp.Received()
		if err != nil {
			return nil, named(name, err)
		}
		counts[name] = received
	}
	for name, udp := range t.udp {
		counts[name] = udp.Received()
	}
	return counts, nil
}

// stop ends the loads. TCP goes first: it would take the bandwidth that the others' last packets need.
func (t *trial) stop(ctx context.Context, o *outcome) error {
	var errs []error
	for name, iperf := range t.iperf {
		result, err := iperf.Wait()
		o.iperf[name], o.flows[name] = result, result.Received
		errs = append(errs, named(name, err))
	}
	for name, tcp := range t.tcp {
		errs = append(errs, named(name, tcp.Stop()))
	}
	for name, short := range t.short {
		errs = append(errs, named(name, short.Stop()))
	}
	for _, udp := range t.udp {
		udp.StopSending()
	}
	for name, udp := range t.udp {
		result, err := udp.Stop(ctx)
		o.udp[name] = result
		errs = append(errs, named(name, err))
	}
	for name, ping := range t.ping {
		result, err := ping.Stop(ctx)
		o.ping[name] = result
		errs = append(errs, named(name, err))
	}
	return errors.Join(errs...)
}

func named(load string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("load %s: %w", load, err)
}

// act does what the experiment has planned for the measured time, and returns when that is over.
func (t *trial) act(ctx context.Context) error {
	type event struct {
		at time.Duration
		do func() error
	}
	at := func(share float64) time.Duration { return time.Duration(share * float64(t.plan.Duration)) }
	var events []event
	for i, load := range t.experiment.Loads {
		if load.At > 0 {
			events = append(events, event{at(load.At), func() error { return t.start(ctx, i) }})
		}
		if load.Until > 0 {
			events = append(events, event{at(load.Until), func() error { return t.endTCP(load.Name) }})
		}
	}
	for _, action := range t.experiment.Actions {
		events = append(events, event{at(action.At) + action.Later, func() error { return t.do(ctx, action) }})
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	begin := time.Now()
	for _, event := range events {
		if err := sleep(ctx, event.at-time.Since(begin)); err != nil {
			return err
		}
		if err := event.do(); err != nil {
			return err
		}
	}
	return sleep(ctx, t.plan.Duration-time.Since(begin))
}

// endTCP ends a load of TCP under way and keeps what it delivered.
func (t *trial) endTCP(load string) (err error) {
	if t.ended[load], err = t.tcp[load].Received(); err != nil {
		return named(load, err)
	}
	err = t.tcp[load].Stop()
	delete(t.tcp, load)
	return named(load, err)
}

func (t *trial) do(ctx context.Context, action Action) (err error) {
	var note note
	if note.flows, err = t.counts(); err != nil {
		return err
	}
	t.acting = append(t.acting, meter.Now())
	for _, shaped := range t.shaped {
		if action.TimesBandwidth > 0 {
			if err := shaped.SetRate(ctx, rates.Rate(action.TimesBandwidth*float64(t.row.Rate))); err != nil {
				return err
			}
		}
		if action.Kill {
			if err := shaped.Kill(); err != nil {
				return err
			}
		}
		if process, ok := shaped.(shaper.Process); ok && action.Signal != 0 {
			if err := process.Signal(action.Signal); err != nil {
				return err
			}
		}
		if worker, ok := shaped.(shaper.Worker); ok && action.Work {
			if note.work, err = worker.Work(ctx); err != nil {
				return err
			}
		}
	}
	t.notes = append(t.notes, note)
	t.acted = append(t.acted, meter.Now())
	return nil
}

// describe keeps what plots need.
func (t *trial) describe(o *outcome) {
	t.row.Flows, t.row.Rates, t.row.Delays = map[string][]uint64{}, map[string][]float64{}, map[string][]float64{}
	for _, load := range t.experiment.Loads {
		if counts, ok := o.flows[load.Name]; ok {
			t.row.Flows[load.Name] = counts
		}
		if load.Ping == nil {
			series, class := o.arrived(load.Name)
			t.row.Rates[load.Name] = series.Rates(o.start, o.end, rateInterval, class)
		}
		delays := o.ping[load.Name].RTTs
		if load.UDP != nil {
			delays = o.udp[load.Name].Delays
		}
		if len(delays) == 0 {
			continue
		}
		for percent := range 101 {
			t.row.Delays[load.Name] = append(t.row.Delays[load.Name], milliseconds(stats.Quantile(delays, float64(percent)/100)))
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/lab/meter"
	"github.com/cakectl/cakectl/lab/shaper"
	"github.com/cakectl/cakectl/lab/topo"
	"github.com/cakectl/cakectl/lab/traffic"
	"github.com/cakectl/cakectl/pkg/rates"
)

// Plan is what to run.
type Plan struct {
	Experiments []string      `json:"experiments"`
	Peers       []string      `json:"peers"`
	Rates       []rates.Rate  `json:"rates"`
	Queues      []int         `json:"queues"`
	Repeat      int           `json:"repeat"`
	Duration    time.Duration `json:"duration_ns"`
	Warmup      time.Duration `json:"warmup_ns"`
	Diffserv    string        `json:"diffserv"`
}

// Row is the result of one run.
type Row struct {
	Experiment string     `json:"experiment"`
	Peer       string     `json:"peer"`
	Rate       rates.Rate `json:"rate_bits_per_second"`
	Queues     int        `json:"queues"`
	Repeat     int        `json:"repeat"`
	// Values are the measures by name.
	Values map[string]float64 `json:"values,omitempty"`
	// Idle is the share of the measured time in which the CPUs had nothing to do, in percent: where
	// there was none, they may have been the limit.
	Idle float64 `json:"idle_percent"`
	// Error says what went wrong; then there are no values.
	Error string `json:"error,omitempty"`
}

// settle is added to each run's length for setting up, draining and taking down.
const settle = 20 * time.Second

// Check looks every name up and says which is wrong.
func (p Plan) Check() error {
	for _, name := range p.Experiments {
		if _, err := Lookup(name); err != nil {
			return err
		}
	}
	for _, name := range p.Peers {
		if _, err := shaper.Lookup(name); err != nil {
			return err
		}
	}
	if p.Repeat < 1 || p.Duration < time.Second || p.Warmup+p.Duration > meter.Span/2 {
		return fmt.Errorf("%d repetitions of %v: at least one of 1s and at most %v", p.Repeat, p.Duration, meter.Span/2)
	}
	return nil
}

// Runs is how many rows the plan makes.
func (p Plan) Runs() int {
	return len(p.Experiments) * len(p.Peers) * len(p.Rates) * len(p.Queues) * p.Repeat
}

// Run runs everything and hands each result to emit as soon as it is there.
func (p Plan) Run(ctx context.Context, emit func(Row)) error {
	if err := p.Check(); err != nil {
		return err
	}
	for _, name := range p.Experiments {
		experiment, err := Lookup(name)
		if err != nil {
			return err
		}
		for _, rate := range p.Rates {
			for _, queues := range p.Queues {
				for repeat := range p.Repeat {
					for i := range p.Peers {
						// Each repetition begins with another peer: none is always the one after a boot.
						peer := p.Peers[(i+repeat)%len(p.Peers)]
						row := Row{Experiment: name, Peer: peer, Rate: rate, Queues: queues, Repeat: repeat}
						if err := p.runOne(ctx, experiment, &row); err != nil {
							row.Error, row.Values = err.Error(), nil
						}
						emit(row)
						if ctx.Err() != nil {
							return ctx.Err()
						}
					}
				}
			}
		}
	}
	return nil
}

// runOne fills in what a run measured.
func (p Plan) runOne(ctx context.Context, e Experiment, row *Row) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.Warmup+p.Duration+settle)
	defer cancel()
	peer, err := shaper.Lookup(row.Peer)
	if err != nil {
		return err
	}
	prefix := fmt.Sprintf("lab%d", os.Getpid())
	pair, err := topo.NewPair(prefix, row.Queues)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pair.Close()) }()
	stateDir, err := os.MkdirTemp("", prefix+"-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stateDir)) }()
	shaped, err := peer.Attach(ctx, shaper.Target{Pair: pair, Rate: row.Rate, Diffserv: p.Diffserv, StateDir: stateDir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shaped.Close()) }()

	var m *meter.Meter
	err = pair.Receiver.Do(func() error {
		device, err := netlink.LinkByName(topo.ReceiverDevice)
		if err != nil {
			return err
		}
		m, err = meter.Attach(device, classifier(e.Loads))
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pair.Receiver.Do(m.Close)) }()

	o, idle, err := p.load(ctx, e, row.Rate, pair, shaped, m)
	if err != nil {
		return err
	}
	row.Idle = idle
	row.Values = map[string]float64{}
	for _, measure := range e.Measures {
		value, err := measure.Value(o)
		if err == nil && (math.IsNaN(value) || math.IsInf(value, 0)) {
			err = fmt.Errorf("no number (%v)", value)
		}
		if err != nil {
			return fmt.Errorf("measure %s: %w", measure.Name, err)
		}
		row.Values[measure.Name] = value
	}
	return nil
}

// classOf is the meter's class of the load with an index.
func classOf(load int) uint8 { return uint8(min(load, meter.Classes-1)) }

// classifier gives each load the class of its index; loads with equal DSCPs share the first one's.
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
	case l.UDP != nil:
		return l.UDP.DSCP
	default:
		return l.Ping.DSCP
	}
}

// running are the loads under way, by name.
type running struct {
	tcp  map[string]*traffic.TCP
	udp  map[string]*traffic.UDP
	ping map[string]*traffic.Ping
}

// load applies the loads and the actions, and returns what came of them and how idle the CPUs were.
func (p Plan) load(ctx context.Context, e Experiment, rate rates.Rate, pair *topo.Pair, shaped shaper.Shaped, m *meter.Meter) (_ *outcome, idle float64, err error) {
	o := &outcome{
		bandwidth: float64(rate),
		start:     meter.Now(),
		tcp:       map[string]flowCounts{},
		udpWindow: map[string]flowCounts{},
		udp:       map[string]traffic.UDPResult{},
		ping:      map[string]traffic.PingResult{},
	}
	loads := &running{map[string]*traffic.TCP{}, map[string]*traffic.UDP{}, map[string]*traffic.Ping{}}
	err = loads.start(ctx, e, float64(rate), pair)
	if err == nil {
		err = sleep(ctx, p.Warmup)
	}
	if err != nil {
		return nil, 0, errors.Join(err, loads.stop(ctx, o))
	}

	tcp, udp := loads.counts()
	cpuBefore, err := readCPU()
	o.begin = meter.Now()
	if err == nil {
		err = p.act(ctx, e.Actions, rate, shaped)
	}
	o.end = meter.Now()
	cpuAfter, cpuErr := readCPU()
	tcpAfter, udpAfter := loads.counts()
	for name := range tcp {
		o.tcp[name] = tcpAfter[name].minus(tcp[name])
	}
	for name := range udp {
		o.udpWindow[name] = udpAfter[name].minus(udp[name])
	}
	err = errors.Join(err, cpuErr, loads.stop(ctx, o), checkReceiver(pair))
	if err != nil {
		return nil, 0, err
	}
	o.series, err = m.Read()
	return o, cpuAfter.idleSince(cpuBefore), err
}

func (r *running) start(ctx context.Context, e Experiment, bandwidth float64, pair *topo.Pair) error {
	address := pair.ReceiverAddresses[0]
	for _, load := range e.Loads {
		var err error
		switch {
		case load.TCP != nil:
			var t *traffic.TCP
			if t, err = traffic.StartTCP(ctx, pair.Sender, pair.Receiver, address, *load.TCP); err == nil {
				r.tcp[load.Name] = t
			}
		case load.UDP != nil:
			var u *traffic.UDP
			if u, err = traffic.StartUDP(ctx, pair.Sender, pair.Receiver, address, load.UDP.config(bandwidth)); err == nil {
				r.udp[load.Name] = u
			}
		case load.Ping != nil:
			var g *traffic.Ping
			if g, err = traffic.StartPing(ctx, pair.Sender, topo.SenderAddress, pair.ReceiverAddresses, *load.Ping); err == nil {
				r.ping[load.Name] = g
			}
		}
		if err != nil {
			return fmt.Errorf("load %s: %w", load.Name, err)
		}
	}
	return nil
}

// counts are what has been delivered so far.
func (r *running) counts() (tcp, udp map[string]flowCounts) {
	tcp, udp = map[string]flowCounts{}, map[string]flowCounts{}
	for name, t := range r.tcp {
		tcp[name] = t.Received()
	}
	for name, u := range r.udp {
		udp[name] = u.Received()
	}
	return tcp, udp
}

// stop ends the loads. TCP goes first: it would take the bandwidth that the others' last packets need.
func (r *running) stop(ctx context.Context, o *outcome) error {
	var errs []error
	for name, t := range r.tcp {
		errs = append(errs, named(name, t.Stop()))
	}
	for _, u := range r.udp {
		u.StopSending()
	}
	for name, u := range r.udp {
		result, err := u.Stop(ctx)
		o.udp[name] = result
		errs = append(errs, named(name, err))
	}
	for name, g := range r.ping {
		result, err := g.Stop(ctx)
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

// act does the actions in their time and returns when the measured time is over.
func (p Plan) act(ctx context.Context, actions []Action, rate rates.Rate, shaped shaper.Shaped) error {
	begin := time.Now()
	for _, action := range actions {
		at := time.Duration(action.At * float64(p.Duration))
		if err := sleep(ctx, at-time.Since(begin)); err != nil {
			return err
		}
		if action.TimesBandwidth > 0 {
			if err := shaped.SetRate(ctx, rates.Rate(action.TimesBandwidth*float64(rate))); err != nil {
				return err
			}
		}
		if action.Kill {
			if err := shaped.Kill(); err != nil {
				return err
			}
		}
	}
	return sleep(ctx, p.Duration-time.Since(begin))
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkReceiver makes sure that packets which are missing were lost in the network, not by a receiver
// that was too slow.
func checkReceiver(pair *topo.Pair) error {
	return pair.Receiver.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return fmt.Errorf("read the receiver's counters: %w", err)
		}
		var names []string
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) == 0 || fields[0] != "Udp:" {
				continue
			}
			if names == nil {
				names = fields
				continue
			}
			i := slices.Index(names, "RcvbufErrors")
			if i < 0 || i >= len(fields) {
				break
			}
			if fields[i] != "0" {
				return fmt.Errorf("the receiver's socket buffer overflowed %s times: its losses are not the shaper's", fields[i])
			}
			return nil
		}
		return errors.New("read the receiver's counters: there is no UDP RcvbufErrors")
	})
}

// cpuTimes are sums over all CPUs since boot.
type cpuTimes struct{ idle, total uint64 }

func (c cpuTimes) idleSince(before cpuTimes) float64 {
	return 100 * float64(c.idle-before.idle) / float64(c.total-before.total)
}

func readCPU() (cpuTimes, error) {
	file, err := os.Open("/proc/stat")
	if err != nil {
		return cpuTimes{}, fmt.Errorf("read the CPUs' times: %w", err)
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	scanner.Scan()
	fields := strings.Fields(scanner.Text())
	if len(fields) < 6 || fields[0] != "cpu" {
		return cpuTimes{}, fmt.Errorf("read the CPUs' times: %q is not their sum", scanner.Text())
	}
	var c cpuTimes
	// user nice system idle iowait irq softirq steal; guest times are in user already.
	for i, field := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return cpuTimes{}, fmt.Errorf("read the CPUs' times: %w", err)
		}
		c.total += n
		if i == 3 || i == 4 {
			c.idle += n
		}
	}
	return c, nil
}

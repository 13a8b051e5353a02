// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cakectl/cakectl/lab/meter"
	"github.com/cakectl/cakectl/lab/shaper"
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
	// Brief leaves out what adds least: of minor experiments all rates but the first and the peers that hold
	// no rate, which otherwise are run once, at the first rate. Minor experiments are run no more than
	// twice, and once what counts instructions and what is at another rate than the first.
	Brief    bool   `json:"brief,omitempty"`
	Diffserv string `json:"diffserv"`
	// Cakectl is the path of the program, where it runs.
	Cakectl string `json:"cakectl"`
	// Details keeps what the shapers' tools say at the end of each run.
	Details bool `json:"details,omitempty"`
}

// Row is the result of one run.
type Row struct {
	Run
	// Values are the measures by name.
	Values map[string]float64 `json:"values,omitempty"`
	// Idle is the share of the measured time in which the CPUs had nothing to do, in percent: where
	// there was none, they may have been the limit.
	Idle float64 `json:"idle_percent"`
	// Flows, by load, is what each flow delivered in the measured time: bytes of payload for TCP,
	// packets for UDP.
	Flows map[string][]uint64 `json:"flows,omitempty"`
	// Rates, by load, is what arrived in each 50 ms from the start on, in bits per second of frames.
	Rates map[string][]float64 `json:"rates_50ms,omitempty"`
	// Delays, by load, are the percentiles 0 to 100 of round-trip times (ping) or one-way delays, in
	// milliseconds.
	Delays map[string][]float64 `json:"delay_percentiles_ms,omitempty"`
	// Details are what the shaper's own tools say at the end of the measured time, if asked for.
	Details string `json:"details,omitempty"`
	// Error says what went wrong; then there are no values.
	Error string `json:"error,omitempty"`
}

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
	// The meter counts while loads start and end too.
	const longest = meter.Span - meter.Span/16
	if p.Repeat < 1 || p.Duration < time.Second || p.Warmup+p.Duration > longest {
		return fmt.Errorf("%d repetitions of %v after %v: at least one of 1s, and at most %v together", p.Repeat, p.Duration, p.Warmup, longest)
	}
	return nil
}

// Runs lists the runs that the plan makes, in their order.
func (p Plan) Runs() []Run {
	var runs []Run
	for _, name := range p.Experiments {
		for i, rate := range p.rates(name) {
			for _, queues := range p.queues(name) {
				for repeat := range p.repeats(name, i) {
					for _, peer := range p.turn(name, i, repeat) {
						runs = append(runs, Run{Experiment: name, Peer: peer, Rate: rate, Queues: queues, Repeat: repeat})
					}
				}
			}
		}
	}
	return runs
}

// repeats is how often an experiment is run at the rate with an index.
func (p Plan) repeats(experiment string, rate int) int {
	e, err := Lookup(experiment)
	switch {
	case err != nil || !p.Brief:
		return p.Repeat
	case e.CountsInstructions() || rate > 0:
		return 1
	case e.Minor:
		return min(p.Repeat, 2)
	default:
		return p.Repeat
	}
}

// turn are the shapers of one repetition at the rate with an index. Each begins with another one: none is
// always the one after a boot.
func (p Plan) turn(experiment string, rate, repeat int) []string {
	peers := slices.DeleteFunc(p.peers(experiment), func(name string) bool {
		peer, err := shaper.Lookup(name)
		return err == nil && p.Brief && !peer.Shapes && (rate > 0 || repeat > 0)
	})
	if len(peers) == 0 {
		return nil
	}
	first := repeat % len(peers)
	return slices.Concat(peers[first:], peers[:first])
}

// peers are the shapers that an experiment is for.
func (p Plan) peers(experiment string) []string {
	e, err := Lookup(experiment)
	if len(e.Peers) > 0 {
		return slices.Clone(e.Peers)
	}
	return slices.DeleteFunc(slices.Clone(p.Peers), func(name string) bool {
		peer, unknown := shaper.Lookup(name)
		return err != nil || unknown != nil || (e.ShapersOnly || e.Minor && p.Brief) && !peer.Shapes
	})
}

// rates are the bandwidths that an experiment is run at.
func (p Plan) rates(experiment string) []rates.Rate {
	e, err := Lookup(experiment)
	switch {
	case err == nil && len(e.Rates) > 0:
		return e.Rates
	case err == nil && e.Minor && p.Brief && len(p.Rates) > 1:
		return p.Rates[:1]
	default:
		return p.Rates
	}
}

// queues are the numbers of transmit queues that an experiment is run with.
func (p Plan) queues(experiment string) []int {
	if e, err := Lookup(experiment); err == nil && len(e.Queues) > 0 {
		return e.Queues
	}
	return p.Queues
}

// Run runs everything and hands each result to emit as soon as it is there.
func (p Plan) Run(ctx context.Context, emit func(Row)) error {
	if err := p.Check(); err != nil {
		return err
	}
	for _, run := range p.Runs() {
		experiment, err := Lookup(run.Experiment)
		if err != nil {
			return err
		}
		row := Row{Run: run}
		if err := p.runOne(ctx, experiment, &row); err != nil {
			row = Row{Run: run, Error: err.Error()}
		}
		emit(row)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"fmt"
	"math"
)

// How far medians of two runs on one machine may be apart, as a share of the first. Delays may also differ
// by the time of an interrupt or two, which is a large share of what a ping takes on an empty line.
const (
	withinShare     = 0.05
	withinShareCost = 0.005
	withinDelayMS   = 0.01
)

// Difference is a median that two results do not share.
type Difference struct {
	Run     // Repeat is of no meaning
	Measure string
	A, B    float64
}

// String is a line for people.
func (d Difference) String() string {
	return fmt.Sprintf("%s %s %v %dq: %s %s against %s (%+.1f %%)", d.Experiment, d.Peer, d.Rate, d.Queues, d.Measure, Number(d.A), Number(d.B), 100*(d.B/d.A-1))
}

// Compare finds the medians that differ by more than two runs on one machine should: 5 % or 10 us, and 0.5 %
// of instructions. It also counts what it compared. What a has and b lacks is an error.
func Compare(a, b Results) (differences []Difference, compared int, err error) {
	groups, err := Groups(a.Rows)
	if err != nil {
		return nil, 0, err
	}
	others, err := Groups(b.Rows)
	if err != nil {
		return nil, 0, err
	}
	same := func(g, other Group) bool {
		return g.Experiment.Name == other.Experiment.Name && g.Rate == other.Rate && g.Queues == other.Queues
	}
	for _, g := range groups {
		within := withinShare
		if g.Experiment.CountsInstructions() {
			within = withinShareCost
		}
		for _, peer := range g.Peers() {
			for _, m := range g.Experiment.Measures {
				one, here := g.Median(peer, m.Name)
				two, there := 0., false
				for _, other := range others {
					if same(g, other) {
						two, there = other.Median(peer, m.Name)
					}
				}
				if !here || !there {
					return nil, 0, fmt.Errorf("%s of %s in %s, %v, %d queues is not in both results", m.Name, peer, g.Experiment.Name, g.Rate, g.Queues)
				}
				compared++
				allowed := within * math.Abs(one)
				if m.Unit == "ms" {
					allowed = max(allowed, withinDelayMS)
				}
				if math.Abs(two-one) > allowed {
					run := Run{Experiment: g.Experiment.Name, Peer: peer, Rate: g.Rate, Queues: g.Queues}
					differences = append(differences, Difference{run, m.Name, one, two})
				}
			}
		}
	}
	return differences, compared, nil
}

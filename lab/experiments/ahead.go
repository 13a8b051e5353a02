// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cakectl/cakectl/lab/shaper"
)

// Aim says how far a value is from the best that there could be: the less, the better.
type Aim func(value float64) float64

func least(value float64) float64 { return value }
func most(value float64) float64  { return -value }

// notAbove is for windows: a shaper that leaves the line idle is not ahead of one that sends a little more.
func notAbove(limit float64) Aim {
	return func(value float64) float64 { return max(value-limit, 10*(limit-value)) }
}

func near(target float64) Aim {
	return func(value float64) float64 { return math.Abs(value - target) }
}

// How much better a shaper has to be to be ahead: a share of the other's value, and by unit no less than
// what says nothing.
const (
	aheadShare     = 0.01
	aheadShareCost = 0.005
)

var aheadBy = map[string]float64{"ms": 0.02, "%": 0.5, "x": 0.01, "x fair": 0.01, "x mean": 0.01}

// aheadByNumber is for numbers without a unit, Jain's index and counts.
const aheadByNumber = 0.005

// Reason says why a shaper is ahead in some measures, all of an experiment if it names none.
type Reason struct {
	Measures []string
	Text     string
}

// Standing is a shaper's median of a measure.
type Standing struct {
	Peer  string
	Value float64
}

// Lead is a measure in which shapers are ahead of cakectl.
type Lead struct {
	Measure Measure
	Own     float64
	// Ahead are these shapers, the best first.
	Ahead []Standing
	// Why is empty where nobody has found out.
	Why string
}

// String names the measure and who is ahead.
func (l Lead) String() string {
	var ahead []string
	for _, s := range l.Ahead {
		ahead = append(ahead, s.Peer+" "+Number(s.Value))
	}
	return fmt.Sprintf("%s: %s (%s: %s)", l.Measure.Header(), strings.Join(ahead, ", "), shaper.Ours, Number(l.Own))
}

// Explained are leads that have one reason.
type Explained struct {
	Leads []Lead
	Why   string
}

// String is a paragraph.
func (e Explained) String() string {
	var leads []string
	for _, l := range e.Leads {
		leads = append(leads, l.String())
	}
	return strings.Join(leads, "; ") + ". " + cmp.Or(e.Why, "Nobody has found out why.")
}

// Explain sorts leads by their reasons.
func Explain(leads []Lead) (explained []Explained) {
	for _, l := range leads {
		i := slices.IndexFunc(explained, func(e Explained) bool { return e.Why == l.Why })
		if i < 0 {
			explained = append(explained, Explained{Why: l.Why})
			i = len(explained) - 1
		}
		explained[i].Leads = append(explained[i].Leads, l)
	}
	return explained
}

// Leads are the measures in which a shaper that holds a rate is ahead of cakectl.
func (g Group) Leads() (leads []Lead) {
	for _, m := range g.Experiment.Measures {
		own, ok := g.Median(shaper.Ours, m.Name)
		if m.Aim == nil || !ok {
			continue
		}
		lead := Lead{Measure: m, Own: own, Why: g.Experiment.reason(m.Name)}
		for _, peer := range g.rivals() {
			value, ok := g.Median(peer, m.Name)
			if ok && m.Aim(value)+g.saysNothing(m, own) < m.Aim(own) {
				lead.Ahead = append(lead.Ahead, Standing{peer, value})
			}
		}
		if len(lead.Ahead) == 0 {
			continue
		}
		slices.SortStableFunc(lead.Ahead, func(a, b Standing) int { return cmp.Compare(m.Aim(a.Value), m.Aim(b.Value)) })
		leads = append(leads, lead)
	}
	return leads
}

// rivals are the shapers that hold a rate and are not ours.
func (g Group) rivals() []string {
	return slices.DeleteFunc(g.Peers(), func(name string) bool {
		peer, err := shaper.Lookup(name)
		return err != nil || !peer.Shapes || peer.IsOurs()
	})
}

// Best is the rival with the best median of a measure.
func (g Group) Best(m Measure) (best Standing, ok bool) {
	for _, peer := range g.rivals() {
		value, has := g.Median(peer, m.Name)
		if has && (!ok || m.Aim(value) < m.Aim(best.Value)) {
			best, ok = Standing{peer, value}, true
		}
	}
	return best, ok
}

// saysNothing is how far medians of a measure may be apart without one being ahead.
func (g Group) saysNothing(m Measure, own float64) float64 {
	if g.Experiment.CountsInstructions() && m.Unit == "" {
		return aheadShareCost * math.Abs(own)
	}
	by, ok := aheadBy[m.Unit]
	if !ok {
		by = aheadByNumber
	}
	return max(by, aheadShare*math.Abs(m.Aim(own)))
}

// reason is why a shaper is ahead in a measure: what the experiment says, else what holds for all.
func (e Experiment) reason(measure string) string {
	for _, r := range slices.Concat(e.Why, commonReasons) {
		if len(r.Measures) == 0 || slices.Contains(r.Measures, measure) {
			return r.Text
		}
	}
	return ""
}

// commonReasons are those of measures that experiments share.
var commonReasons = []Reason{
	{
		[]string{"10ms p99", "10ms max", "100ms max", "10ms max before", "10ms max after", "100ms max after"},
		"cakectl decides on a departure when the packet comes: a super-packet leaves in one lump, and what leaves at once, for having waited for nothing, " +
			"is made up for in the ticks after it. A queue splits super-packets and lets one packet after the other go.",
	},
	{
		[]string{"after", "more flows"},
		"In the 50 ms after the others start, the flow that was there leaves as it is booked, and some 4 ms of the line idle before the others fill it.",
	},
	{
		[]string{"bulk", "best effort", "video", "voice", "best effort back", "least tcp", "udp", "bbr"},
		"TCP pauses now and then, and what it leaves is booked at once by whoever has packets waiting. CAKE decides when a packet can leave, and finds TCP's next one.",
	},
	{
		[]string{"tcp RTT", "cubic RTT", "bbr RTT"},
		"cakectl's CoDel tells flows about as late as that of fq_codel; CAKE's tells them earlier and more often.",
	},
	{
		[]string{"waiting", "waiting above fq"},
		"htb and edt refuse half of the packets here, which costs less than sending them.",
	},
	{
		[]string{"free", "free above fq", "tins above fq", "1", "2", "4", "8", "16", "forwarded", "forwarded above fq"},
		"edt is one clock, and htb one class with a FIFO that drops what it has no room for: neither keeps flows or tins apart.",
	},
}

// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cakectl/cakectl/lab/meter"
	"github.com/cakectl/cakectl/lab/shaper"
	"github.com/cakectl/cakectl/lab/topo"
	"github.com/cakectl/cakectl/pkg/rates"
)

// Names become keys and headers; measures find their loads by name.
func TestAllAreSound(t *testing.T) {
	names := map[string]bool{}
	for _, e := range All() {
		if names[e.Name] {
			t.Errorf("two experiments are called %s", e.Name)
		}
		names[e.Name] = true
		for _, back := range []bool{false, true} {
			if n := len(oneWay(e.Loads, back)); n > meter.Classes {
				t.Errorf("%s: %d loads go one way, the meter tells %d apart", e.Name, n, meter.Classes)
			}
		}
		loads := map[string]bool{}
		for _, l := range e.Loads {
			kinds := 0
			for _, is := range []bool{l.TCP != nil, l.UDP != nil, l.Iperf != nil, l.Ping != nil, l.Short != nil} {
				if is {
					kinds++
				}
			}
			if kinds != 1 {
				t.Errorf("%s: load %s is of %d kinds", e.Name, l.Name, kinds)
			}
			if loads[l.Name] {
				t.Errorf("%s: two loads are called %s", e.Name, l.Name)
			}
			loads[l.Name] = true
			if u := l.UDP; u != nil && (u.TimesBandwidth > 0) == (u.BitsPerSecond > 0) {
				t.Errorf("%s: load %s needs one rate", e.Name, l.Name)
			}
		}
		measures := map[string]bool{}
		for _, m := range e.Measures {
			if measures[m.Name] {
				t.Errorf("%s: two measures are called %s", e.Name, m.Name)
			}
			measures[m.Name] = true
		}
		for _, f := range e.Figures {
			if !measures[f.Measure] {
				t.Errorf("%s: a published figure is of %s, which is not measured", e.Name, f.Measure)
			}
		}
		for _, r := range e.Why {
			for _, m := range r.Measures {
				if !measures[m] {
					t.Errorf("%s: there is a reason for %s, which is not measured", e.Name, m)
				}
			}
		}
		if !slices.IsSortedFunc(e.Actions, func(a, b Action) int { return int(1000 * (a.At - b.At)) }) {
			t.Errorf("%s: actions are not in the order of their time, which measures count on", e.Name)
		}
	}
}

// A reason that no measure asks for is of no use.
func TestReasonsAreAskedFor(t *testing.T) {
	for _, r := range commonReasons {
		for _, name := range r.Measures {
			if !slices.ContainsFunc(All(), func(e Experiment) bool {
				return slices.ContainsFunc(e.Measures, func(m Measure) bool { return m.Name == name && m.Aim != nil })
			}) {
				t.Errorf("there is a reason for %s, which no experiment judges", name)
			}
		}
	}
}

// A load whose share is reported must not share the meter's class with another; pings are too small
// to matter.
func TestClassesAreApart(t *testing.T) {
	for _, e := range All() {
		for _, back := range []bool{false, true} {
			loads := oneWay(e.Loads, back)
			classes := classifier(loads)
			for i, a := range loads {
				for _, b := range loads[:i] {
					if a.Ping == nil && b.Ping == nil && classes[a.dscp()] == classes[b.dscp()] {
						t.Errorf("%s: loads %s and %s are one class", e.Name, a.Name, b.Name)
					}
				}
			}
		}
	}
}

func TestTable(t *testing.T) {
	row := func(peer string, repeat int, goodput, idle float64) Row {
		values := map[string]float64{}
		for _, m := range mustLookup(t, "bulk").Measures {
			values[m.Name] = 1
		}
		values["goodput"] = goodput
		return Row{Run: Run{Experiment: "bulk", Peer: peer, Rate: 40e6, Queues: 8, Repeat: repeat}, Values: values, Idle: idle}
	}
	broken := Row{Run: Run{Experiment: "bulk", Peer: "none", Rate: 40e6, Queues: 8}, Error: "one\ntwo"}
	var text strings.Builder
	if err := Table(&text, []Row{row("cake", 0, 99, 50), row("htb", 0, 1234.6, 3), broken, row("cake", 1, 97, 60), row("cake", 2, 98.126, 70)}); err != nil {
		t.Fatal(err)
	}
	want := `### bulk: Bulk alone: 4 TCP flows with CS1
40mbit, 8 queues

| shaper | goodput %           | Jain                | ping p50 ms         | ping p99 ms         | ping max ms         | 10ms p99 x          | 10ms max x          | 100ms max x         | idle %          |
|--------|---------------------|---------------------|---------------------|---------------------|---------------------|---------------------|---------------------|---------------------|-----------------|
| cake   | 98.13 (97.00–99.00) | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) | 60              |
| htb    | 1235                | 1.000               | 1.000               | 1.000               | 1.000               | 1.000               | 1.000               | 1.000               | 3 (CPU-limited) |
| none   | broken              | broken              | broken              | broken              | broken              | broken              | broken              | broken              | broken          |

**Broken** none, run 1 is broken: one / two

`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

// A shaper that is ahead is told, and why; one that holds no rate, and a little, is no lead.
func TestLeads(t *testing.T) {
	group := func(own, htb, none, pfifo float64) Group {
		g := Group{Experiment: mustLookup(t, "udp16x4")}
		for peer, spread := range map[string]float64{"cakectl": own, "cakectl-uncapped": 0, "htb": htb, "cake": pfifo, "none": none} {
			row := Row{Run: Run{Experiment: "udp16x4", Peer: peer}, Values: map[string]float64{}}
			for _, m := range g.Experiment.Measures {
				row.Values[m.Name] = 1
			}
			row.Values["spread"] = spread
			g.Rows = append(g.Rows, row)
		}
		return g
	}
	for _, test := range []struct {
		group Group
		want  []Standing
	}{
		{group(3, 2, 0, 1), []Standing{{"cake", 1}, {"htb", 2}}},
		{group(3, 2.6, 0, 5), nil},
		{group(3, 9, 0, 9), nil},
	} {
		var got []Standing
		for _, l := range test.group.Leads() {
			if l.Measure.Name != "spread" || l.Why == "" {
				t.Errorf("a lead in %s, why: %q", l.Measure.Name, l.Why)
			}
			got = append(got, l.Ahead...)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("ahead (-want +got):\n%s", diff)
		}
	}
	if cell := group(3, 2, 0, 1).Table(); !slices.ContainsFunc(cell, func(line []string) bool { return line[0] == "cakectl" && slices.Contains(line, "3.000 *") }) {
		t.Errorf("the table does not mark what cakectl is behind in: %q", cell)
	}
}

// What was published stands beside the best of the others and cakectl; what is broken is no number.
func TestPublishedTable(t *testing.T) {
	row := func(peer string, spread float64) Row {
		return Row{Run: Run{Experiment: "udp16x4", Peer: peer, Rate: 40e6}, Values: map[string]float64{"spread": spread, "total": 99, "udp loss": 0}}
	}
	broken := Row{Run: Run{Experiment: "udp16x4", Peer: "cakectl", Rate: 200e6}, Error: "it is"}
	groups, err := Groups([]Row{row("cake", 2), row("htb", 1), row("cakectl", 3), broken})
	if err != nil {
		t.Fatal(err)
	}
	lines := PublishedTable(groups)
	want := []string{"the same: spread between senders, %", "8.6", "1.000 (htb) / broken", "3.000 / broken"}
	if diff := cmp.Diff(want, lines[len(lines)-1]); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

func mustLookup(t *testing.T, name string) Experiment {
	t.Helper()
	e, err := Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestCheck(t *testing.T) {
	good := Plan{Experiments: []string{"tcp1"}, Peers: []string{"htb"}, Repeat: 1, Duration: time.Second}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Plan){
		"no experiment": func(p *Plan) { p.Experiments = []string{"nothing"} },
		"no shaper":     func(p *Plan) { p.Peers = []string{"nothing"} },
		"repetitions":   func(p *Plan) { p.Repeat = 0 },
		"at most":       func(p *Plan) { p.Duration = time.Hour },
	} {
		bad := good
		change(&bad)
		if err := bad.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check = %v, want an error with %q", err, want)
		}
	}
}

// run runs a plan with real traffic and returns its rows.
func run(t *testing.T, p Plan) []Row {
	t.Helper()
	before := namespaces(t)
	var rows []Row
	if err := p.Run(t.Context(), func(r Row) { rows = append(rows, r) }); err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(p.Runs()) {
		t.Errorf("%d rows, want %d", len(rows), len(p.Runs()))
	}
	if diff := cmp.Diff(before, namespaces(t)); diff != "" {
		t.Errorf("network namespaces are left (-before +after):\n%s", diff)
	}
	return rows
}

// Peers of this test are those that every kernel has.
func TestRunMeasures(t *testing.T) {
	for _, row := range run(t, Plan{
		Experiments: []string{"tcp1", "step", "burst", "uneven", "rrul", "forward8ecn"}, Peers: []string{"none", "htb"},
		Rates: rateList(40e6), Queues: []int{4}, Repeat: 1,
		Duration: time.Second, Warmup: 100 * time.Millisecond, Details: true,
	}) {
		if row.Error != "" {
			t.Errorf("%s with %s: %s", row.Experiment, row.Peer, row.Error)
			continue
		}
		for _, m := range mustLookup(t, row.Experiment).Measures {
			if _, ok := row.Values[m.Name]; !ok {
				t.Errorf("%s with %s has no %s", row.Experiment, row.Peer, m.Name)
			}
		}
		if !strings.Contains(row.Details, "qdisc") {
			t.Errorf("%s with %s: details are %q", row.Experiment, row.Peer, row.Details)
		}
		if _, ok := row.Delays["ping"]; !ok {
			t.Errorf("%s with %s has no delays of the ping", row.Experiment, row.Peer)
		}
		if row.Peer == "none" && row.Experiment != "tcp1" && row.Experiment != "uneven" {
			t.Errorf("%s was run without a shaper", row.Experiment)
		}
	}
}

// What cannot be set up is broken, says why, and has no numbers.
func TestRunBroken(t *testing.T) {
	rows := run(t, Plan{
		Experiments: []string{"tcp1"}, Peers: []string{"cake", "none"}, Diffserv: "nonsense",
		Rates: rateList(40e6), Queues: []int{4}, Repeat: 1, Duration: time.Second,
	})
	if rows[0].Error == "" || !strings.Contains(rows[0].Error, "attach cake") || rows[0].Values != nil {
		t.Errorf("cake with nonsense: %+v, want an error and no values", rows[0])
	}
	if rows[1].Error != "" {
		t.Errorf("the run after a broken one: %s", rows[1].Error)
	}
}

// A load that dies under way breaks the run.
func TestRunBrokenByIperf(t *testing.T) {
	receiver := fmt.Sprintf("lab%d-rx", os.Getpid())
	ctx, cancel := context.WithCancel(t.Context())
	var killer sync.WaitGroup
	killer.Go(func() {
		for ctx.Err() == nil {
			out, _ := exec.Command("ip", "netns", "pids", receiver).Output() // fails before there is one
			for _, pid := range strings.Fields(string(out)) {
				if n, err := strconv.Atoi(pid); err == nil && n != os.Getpid() && carries(receiver) {
					_ = syscall.Kill(n, syscall.SIGKILL)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	rows := run(t, Plan{
		Experiments: []string{"iperf32"}, Peers: []string{"none"}, Rates: rateList(40e6), Queues: []int{4}, Repeat: 1,
		Duration: 3 * time.Second,
	})
	cancel()
	killer.Wait()
	if !strings.Contains(rows[0].Error, "iperf3") || rows[0].Values != nil {
		t.Errorf("iperf3 was killed: %+v, want an error that names it and no values", rows[0])
	}
}

// carries tells whether the device of a namespace has received more than the set-up of connections.
func carries(namespace string) bool {
	out, err := exec.Command("ip", "netns", "exec", namespace, "cat", "/sys/class/net/"+topo.ReceiverDevice+"/statistics/rx_bytes").Output()
	n, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	return err == nil && n > 1<<20
}

// A load that is there and carries nothing is no zero.
func TestNothingArrived(t *testing.T) {
	o := outcome{loads: []Load{tcp("tcp", 1, bestEffort)}, series: &meter.Series{}, end: time.Second}
	if err := o.check(); err == nil || !strings.Contains(err.Error(), "tcp: nothing arrived") {
		t.Errorf("check = %v", err)
	}
}

func TestRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	before := namespaces(t)
	p := Plan{
		Experiments: []string{"tcp1"}, Peers: []string{"none"}, Rates: rateList(40e6), Queues: []int{2},
		Repeat: 5, Duration: 10 * time.Second,
	}
	time.AfterFunc(300*time.Millisecond, cancel)
	rows := 0
	err := p.Run(ctx, func(Row) { rows++ })
	if err == nil || rows != 1 {
		t.Errorf("Run = %v after %d rows, want the end in the first", err, rows)
	}
	if diff := cmp.Diff(before, namespaces(t)); diff != "" {
		t.Errorf("network namespaces are left (-before +after):\n%s", diff)
	}
}

func TestBrief(t *testing.T) {
	p := Plan{
		Experiments: []string{"tcp1", "uneven", "cost"}, Peers: []string{"none", "htb", "cake"},
		Rates: rateList(40e6, 200e6), Queues: []int{8}, Repeat: 3,
	}
	count := func() map[string]int {
		runs := map[string]int{}
		for _, run := range p.Runs() {
			kind := run.Experiment
			if run.Peer == "none" {
				kind += " none"
			}
			runs[kind]++
		}
		return runs
	}
	want := map[string]int{"tcp1": 2 * 2 * 3, "tcp1 none": 2 * 3, "uneven": 2 * 2 * 3, "uneven none": 2 * 3, "cost": 2 * 3, "cost none": 3}
	if diff := cmp.Diff(want, count()); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
	p.Brief = true
	want = map[string]int{"tcp1": 2*3 + 2, "tcp1 none": 1, "uneven": 2 * 2, "cost": 2, "cost none": 1}
	if diff := cmp.Diff(want, count()); diff != "" {
		t.Errorf("brief runs (-want +got):\n%s", diff)
	}
}

func TestPeersOfShapersOnly(t *testing.T) {
	p := Plan{Peers: []string{"none", "htb", "fq"}}
	if got, want := p.peers("step"), []string{"htb"}; !slices.Equal(got, want) {
		t.Errorf("peers of step = %v, want %v", got, want)
	}
	if got := p.peers("tcp1"); len(got) != 3 {
		t.Errorf("peers of tcp1 = %v, want all", got)
	}
}

// Every shaper of the kernel can be attached, measured and changed where the kernel has it.
func TestVMPeers(t *testing.T) {
	requireVM(t)
	p := Plan{
		Experiments: []string{"step"}, Rates: rateList(40e6), Queues: []int{4}, Repeat: 1, Diffserv: "diffserv4",
		Duration: time.Second, Warmup: 100 * time.Millisecond,
	}
	for _, peer := range shaper.Peers() {
		if !strings.HasPrefix(peer.Name, "cakectl") && peer.Name != "cake_mq" { // not in this image; not in every kernel
			p.Peers = append(p.Peers, peer.Name)
		}
	}
	for _, row := range run(t, p) {
		if row.Error != "" {
			t.Errorf("%s: %s", row.Peer, row.Error)
		}
	}
	p.Experiments = []string{"tcp1"}
	for _, row := range run(t, p) {
		if row.Error != "" {
			t.Errorf("%s: %s", row.Peer, row.Error)
		}
	}
}

// HTB with an fq_codel costs more than an fq under each queue.
func TestVMCost(t *testing.T) {
	requireVM(t)
	for _, row := range run(t, Plan{
		Experiments: []string{"cost"}, Peers: []string{"htb+fq_codel"}, Queues: []int{4}, Repeat: 1,
		Diffserv: "diffserv4", Duration: time.Second,
	}) {
		if row.Error != "" {
			t.Errorf("%s: %s", row.Peer, row.Error)
		}
		if above := row.Values["free above fq"]; above <= 0 {
			t.Errorf("%s: %v above mq and fq", row.Peer, above)
		}
	}
}

func TestCPUTimes(t *testing.T) {
	before, after := cpuTimes{idle: 100, total: 1000}, cpuTimes{idle: 150, total: 1200}
	if got := after.idleSince(before); got != 25 {
		t.Errorf("idleSince = %v, want 25", got)
	}
	now, err := readCPU()
	if err != nil || now.total < now.idle || now.total == 0 {
		t.Errorf("readCPU = %+v, %v", now, err)
	}
}

func TestNumber(t *testing.T) {
	for x, want := range map[float64]string{0: "0.000", 0.01234: "0.012", 12.346: "12.35", 98765.4: "98765"} {
		if got := Number(x); got != want {
			t.Errorf("number(%v) = %s, want %s", x, got, want)
		}
	}
}

// requireVM skips where the tests are not run in the VM, which has all the shapers.
func requireVM(t *testing.T) {
	t.Helper()
	if os.Getenv("CAKECTL_VM") == "" {
		t.Skip("only in the VM: go run ./internal/vm/run -test ./lab/experiments")
	}
}

func rateList(list ...rates.Rate) []rates.Rate { return list }

// namespaces lists the named network namespaces.
func namespaces(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), fmt.Sprintf("lab%d", os.Getpid())) {
			names = append(names, entry.Name())
		}
	}
	return names
}

// SPDX-License-Identifier: BSD-2-Clause

package publish

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/cakectl/cakectl/lab/experiments"
	"github.com/cakectl/cakectl/lab/shaper"
	"github.com/cakectl/cakectl/lab/stats"
)

const mbit = 1e6

// charts are all pictures that the rows of a group have the data for.
func charts(g experiments.Group) ([]picture, error) {
	var pictures []picture
	for _, make := range []func(experiments.Group) (*picture, error){fairness, overTime, delays, costBars, costByThreads} {
		p, err := make(g)
		if err != nil {
			return nil, fmt.Errorf("draw %s: %w", g.Experiment.Name, err)
		}
		if p != nil {
			p.name = strings.Map(fileName, fmt.Sprintf("%s-%v-%dq-%s", g.Experiment.Name, g.Rate, g.Queues, p.name))
			pictures = append(pictures, *p)
		}
	}
	return pictures, nil
}

func fileName(r rune) rune {
	if r == ' ' || r == '/' || r == '.' {
		return '_'
	}
	return r
}

// leastDelay is where the axis of delays begins, in milliseconds.
const leastDelay = 0.005

// markerEvery is the distance of markers, in percentiles.
const markerEvery = 20

// delays are the distributions of the pings' round-trip times, the medians of all runs at each percentile.
func delays(g experiments.Group) (*picture, error) {
	const load = "ping"
	p := newPlot("", "round-trip time of the ping, ms (logarithmic)", "share of the pings")
	p.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 0.25, Label: "25 %"}, {Value: 0.5, Label: "50 %"}, {Value: 0.75, Label: "75 %"}, {Value: 1, Label: "100 %"}}
	legend := newLegend()
	lowest, highest := math.Inf(1), leastDelay
	for i, peer := range g.Peers() {
		points := medianDelays(g.Good(peer), load)
		if points == nil {
			continue
		}
		lowest, highest = min(lowest, points[0].X), max(highest, points[len(points)-1].X)
		l := lookOfPeer(peer)
		line, err := l.line(points)
		if err != nil {
			return nil, err
		}
		var marked plotter.XYs
		// Not all in one line: each shaper has its own percentiles.
		for percent := 2 * i % markerEvery; percent < len(points); percent += markerEvery {
			marked = append(marked, points[percent])
		}
		markers, err := l.markers(marked)
		if err != nil {
			return nil, err
		}
		p.Add(line, markers)
		legend.Add(peer, line, markers)
	}
	if math.IsInf(lowest, 1) {
		return nil, nil
	}
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades(lowest, highest)
	p.X.Min, p.X.Max = lowest*0.9, highest*1.1
	p.Y.Min, p.Y.Max = 0, 1
	return &picture{name: "delay", title: "Delay beside the load: how many pings took no longer", width: pictureWidth, height: 3.2 * vg.Inch, draw: func(c draw.Canvas) {
		beside(c, legend, p.Draw)
	}}, nil
}

// medianDelays are the percentiles of a load's delays; nil if there are none.
func medianDelays(rows []experiments.Row, load string) (points plotter.XYs) {
	for percent := range 101 {
		var values []float64
		for _, row := range rows {
			if delays := row.Delays[load]; len(delays) == 101 {
				values = append(values, delays[percent])
			}
		}
		if len(values) == 0 {
			return nil
		}
		points = append(points, plotter.XY{X: max(stats.Median(values), leastDelay), Y: float64(percent) / 100})
	}
	return points
}

// decades marks 1, 2 and 5 times the powers of ten.
func decades(from, to float64) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for power := int(math.Floor(math.Log10(from))); power <= int(math.Ceil(math.Log10(to))); power++ {
		for _, digit := range []float64{1, 2, 5} {
			value := digit * math.Pow10(power)
			label := strconv.FormatFloat(value, 'f', max(0, -power), 64)
			if to/from > 300 && digit != 1 {
				label = ""
			}
			ticks = append(ticks, plot.Tick{Value: value, Label: label})
		}
	}
	return ticks
}

// columns is how many shapers stand side by side.
const columns = 3

// overTime is the throughput of each load of the first run, where there are several loads or something
// happens, with the shapers that hold a rate: the others' would need another scale.
func overTime(g experiments.Group) (*picture, error) {
	var loads []string
	for _, load := range g.Experiment.Loads {
		if load.Ping == nil {
			loads = append(loads, load.Name)
		}
	}
	if len(loads) < 2 && len(g.Experiment.Actions) == 0 {
		return nil, nil
	}
	legend := newLegend()
	var plots []*plot.Plot
	highest := float64(g.Rate) / mbit
	for _, peer := range g.Peers() {
		kind, err := shaper.Lookup(peer)
		if err != nil {
			return nil, err
		}
		good := g.Good(peer)
		if !kind.Shapes || len(good) == 0 || len(good[0].Rates) == 0 {
			continue
		}
		p := newPlot(peer, "seconds", "Mbit/s")
		for i, load := range loads {
			points := perTick(good[0].Rates[load])
			if len(points) == 0 {
				continue
			}
			for _, point := range points {
				highest = max(highest, point.Y)
			}
			line, err := lookOf(i).line(points)
			if err != nil {
				return nil, err
			}
			p.Add(line)
			p.X.Max = points[len(points)-1].X
			if len(plots) == 0 {
				legend.Add(load, line)
			}
		}
		plots = append(plots, p)
	}
	if len(plots) == 0 {
		return nil, nil
	}
	for _, p := range plots {
		p.X.Min, p.Y.Min, p.Y.Max = 0, 0, highest*1.05
		p.X.Tick.Marker = seconds(p.X.Max)
		bandwidth, err := plotter.NewLine(plotter.XYs{{X: 0, Y: float64(g.Rate) / mbit}, {X: p.X.Max, Y: float64(g.Rate) / mbit}})
		if err != nil {
			return nil, err
		}
		bandwidth.LineStyle = draw.LineStyle{Color: grey, Width: 0.7, Dashes: []vg.Length{1, 1}}
		p.Add(bandwidth)
	}
	rows := (len(plots) + columns - 1) / columns
	return &picture{
		name: "time", title: "Throughput over time, first run (dotted: the bandwidth)",
		width: pictureWidth, height: vg.Length(rows) * 1.7 * vg.Inch,
		draw: func(c draw.Canvas) {
			beside(c, legend, func(c draw.Canvas) { drawTiles(c, plots, rows) })
		},
	}, nil
}

// seconds marks whole seconds.
func seconds(end float64) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for second := 0; float64(second) <= end; second++ {
		ticks = append(ticks, plot.Tick{Value: float64(second), Label: strconv.Itoa(second)})
	}
	return ticks
}

// tick is the interval of experiments.Row.Rates.
const tick = 50 * time.Millisecond

// smooth is how many intervals are averaged.
const smooth = 2

func perTick(rates []float64) (points plotter.XYs) {
	for chunk := range slices.Chunk(rates, smooth) {
		sum := 0.
		for _, rate := range chunk {
			sum += rate
		}
		middle := (float64(len(points)) + 0.5) * smooth * tick.Seconds()
		points = append(points, plotter.XY{X: middle, Y: sum / float64(len(chunk)) / mbit})
	}
	return points
}

// drawTiles draws plots side by side, with their axes aligned.
func drawTiles(c draw.Canvas, plots []*plot.Plot, rows int) {
	tiles := draw.Tiles{Rows: rows, Cols: min(columns, len(plots)), PadX: 8, PadY: 8}
	grid := make([][]*plot.Plot, rows)
	for i := range grid {
		grid[i] = make([]*plot.Plot, tiles.Cols)
		copy(grid[i], plots[i*columns:min((i+1)*columns, len(plots))])
	}
	canvases := plot.Align(grid, tiles, c)
	for i, p := range plots {
		p.Draw(canvases[i/columns][i%columns])
	}
}

// fairness is what each flow of the first run got, where flows are to get the same.
func fairness(g experiments.Group) (*picture, error) {
	loads := equalLoads(g.Experiment)
	if loads == nil {
		return nil, nil
	}
	p := newPlot("", "of an equal share", "")
	var labels []string
	highest := 1.2
	peers := slices.Clone(g.Peers())
	slices.Reverse(peers) // the first at the top
	for _, peer := range peers {
		good := g.Good(peer)
		if len(good) == 0 {
			continue
		}
		var flows []uint64
		for _, load := range loads {
			flows = append(flows, good[0].Flows[load]...)
		}
		shares := multiples(flows)
		if len(shares) < 2 {
			continue
		}
		y := float64(len(labels))
		if err := addFlows(p, shares, y, fmt.Sprintf("Jain %.3f", stats.Jain(flows))); err != nil {
			return nil, err
		}
		highest = max(highest, shares[len(shares)-1])
		labels = append(labels, peer)
	}
	if len(labels) == 0 {
		return nil, nil
	}
	fair, err := plotter.NewLine(plotter.XYs{{X: 1, Y: -0.6}, {X: 1, Y: float64(len(labels)) - 0.4}})
	if err != nil {
		return nil, err
	}
	fair.LineStyle = draw.LineStyle{Color: color.Black, Width: 0.6, Dashes: []vg.Length{3, 2}}
	p.Add(fair)
	// Room at the right for the index.
	p.X.Min, p.X.Max = 0, highest*1.2
	p.X.Tick.Marker = halves(p.X.Max)
	p.Y.Min, p.Y.Max = -0.6, float64(len(labels))-0.4
	nameY(p, labels)
	return &picture{
		name: "fairness", title: "What each flow got, first run (a ring for each flow, the bar from least to most)",
		width: pictureWidth, height: vg.Length(0.6+0.24*float64(len(labels))) * vg.Inch, draw: p.Draw,
	}, nil
}

// halves marks multiples of 0.5, some of them by number.
func halves(end float64) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	every := max(1, int(end/5)) // numbers must not touch
	for i := range int(2*end) + 1 {
		t := plot.Tick{Value: float64(i) / 2}
		if end < 3 || i%(2*every) == 0 {
			t.Label = strconv.FormatFloat(t.Value, 'f', -1, 64)
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// equalLoads are the loads whose flows are to get the same; nil if there are none.
func equalLoads(e experiments.Experiment) (loads []string) {
	judged := slices.ContainsFunc(e.Measures, func(m experiments.Measure) bool { return m.Name == "Jain" || m.Name == "spread" })
	if !judged {
		return nil
	}
	for _, load := range e.Loads {
		if load.Ping == nil {
			loads = append(loads, load.Name)
		}
	}
	return loads
}

// multiples are what flows got as multiples of their mean, sorted.
func multiples(flows []uint64) (shares []float64) {
	sum := 0.
	for _, n := range flows {
		sum += float64(n)
	}
	if sum == 0 {
		return nil
	}
	for _, n := range flows {
		shares = append(shares, float64(n)*float64(len(flows))/sum)
	}
	slices.Sort(shares)
	return shares
}

func addFlows(p *plot.Plot, shares []float64, y float64, words string) error {
	least, most := shares[0], shares[len(shares)-1]
	bar, err := plotter.NewLine(plotter.XYs{{X: least, Y: y}, {X: most, Y: y}})
	if err != nil {
		return err
	}
	bar.LineStyle = draw.LineStyle{Color: color.Gray{0xc8}, Width: 9}
	var points plotter.XYs
	for _, share := range shares {
		points = append(points, plotter.XY{X: share, Y: y})
	}
	rings, err := plotter.NewScatter(points)
	if err != nil {
		return err
	}
	rings.GlyphStyle = draw.GlyphStyle{Color: color.Black, Radius: 2.4, Shape: draw.RingGlyph{}}
	label, err := note(most, y, words)
	if err != nil {
		return err
	}
	label.Offset.X = 8
	p.Add(bar, rings, label)
	return nil
}

// aboveFQ is the end of the names of what is counted above mq and fq.
const aboveFQ = " above fq"

// costBars are the instructions that shapers take, by the first measure of those above mq and fq.
func costBars(g experiments.Group) (*picture, error) {
	i := slices.IndexFunc(g.Experiment.Measures, func(m experiments.Measure) bool { return strings.HasSuffix(m.Name, aboveFQ) })
	if i < 0 {
		return nil, nil
	}
	measure := g.Experiment.Measures[i].Name
	p := newPlot("", "instructions a packet, above mq with fq", "")
	var labels []string
	lowest, highest := 0., 0.
	peers := slices.Clone(g.Peers())
	slices.Reverse(peers)
	for _, peer := range peers {
		value, ok := g.Median(peer, measure)
		if !ok {
			continue
		}
		y := float64(len(labels))
		bar, err := plotter.NewLine(plotter.XYs{{X: 0, Y: y}, {X: value, Y: y}})
		if err != nil {
			return nil, err
		}
		bar.LineStyle = draw.LineStyle{Color: color.Gray{0x90}, Width: 9}
		label, err := note(max(value, 0), y, experiments.Number(value))
		if err != nil {
			return nil, err
		}
		p.Add(bar, label)
		lowest, highest = min(lowest, value), max(highest, value)
		labels = append(labels, peer)
	}
	if highest == 0 {
		return nil, nil
	}
	p.X.Min, p.X.Max = lowest, highest*1.15
	p.Y.Min, p.Y.Max = -0.6, float64(len(labels))-0.4
	nameY(p, labels)
	return &picture{
		name: "cost", title: "What a packet costs: " + strings.TrimSuffix(measure, aboveFQ),
		width: pictureWidth, height: vg.Length(0.6+0.24*float64(len(labels))) * vg.Inch, draw: p.Draw,
	}, nil
}

// costByThreads is what a packet costs against the number of CPUs that send: the measures that are
// called by a number.
func costByThreads(g experiments.Group) (*picture, error) {
	if g.Experiment.Cost == nil {
		return nil, nil
	}
	p := newPlot("", "CPUs that send", "instructions a packet")
	legend := newLegend()
	var ticks plot.ConstantTicks
	highest := 0.
	for _, peer := range g.Peers() {
		var points plotter.XYs
		for _, measure := range g.Experiment.Measures {
			threads, err := strconv.Atoi(measure.Name)
			if err != nil {
				continue
			}
			value, ok := g.Median(peer, measure.Name)
			if !ok {
				continue
			}
			t := plot.Tick{Value: math.Log2(float64(threads)), Label: measure.Name}
			if !slices.Contains(ticks, t) {
				ticks = append(ticks, t)
			}
			points = append(points, plotter.XY{X: t.Value, Y: value})
			highest = max(highest, value)
		}
		if len(points) == 0 {
			continue
		}
		l := lookOfPeer(peer)
		line, err := l.line(points)
		if err != nil {
			return nil, err
		}
		markers, err := l.markers(points)
		if err != nil {
			return nil, err
		}
		p.Add(line, markers)
		legend.Add(peer, line, markers)
	}
	if len(ticks) == 0 {
		return nil, nil
	}
	p.X.Tick.Marker = ticks
	p.Y.Min, p.Y.Max = 0, highest*1.05
	return &picture{name: "threads", title: "What a packet costs against the number of CPUs that send", width: pictureWidth, height: 3 * vg.Inch, draw: func(c draw.Canvas) {
		beside(c, legend, p.Draw)
	}}, nil
}

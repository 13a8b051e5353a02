// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Size of the picture, and the resolution of its PNG.
const (
	pictureWidth  = 9.5 * vg.Inch
	pictureHeight = 4.8 * vg.Inch
	margin        = vg.Length(8)
	pngDPI        = 144
)

// style tells lines apart by dashes first, and by colour.
type style struct {
	width  vg.Length
	dashes []vg.Length
	color  color.Color
}

var (
	black = color.Gray{0}
	grey  = color.Gray{0x70}

	totalStyle     = style{width: 1.6, color: black}
	bandwidthStyle = style{width: 5, color: color.Gray{0xd0}}
	changeStyle    = style{width: 0.6, dashes: []vg.Length{2, 2}, color: grey}
	// tinStyles are taken in the order of the tins. The colours differ in lightness as well.
	tinStyles = []style{
		{width: 1.4, dashes: []vg.Length{7, 3}, color: color.RGBA{0xb3, 0x42, 0x00, 0xff}},
		{width: 1.4, dashes: []vg.Length{1.5, 2}, color: color.RGBA{0x00, 0x5a, 0x9c, 0xff}},
		{width: 1.4, dashes: []vg.Length{9, 3, 2, 3}, color: color.RGBA{0x1b, 0x7a, 0x3d, 0xff}},
		{width: 1.4, dashes: []vg.Length{3, 3}, color: color.RGBA{0x7b, 0x3f, 0xa0, 0xff}},
	}
)

// draw makes the picture and returns the files that it wrote.
func (r recording) draw(dir, copySVG string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p, err := r.plot()
	if err != nil {
		return nil, fmt.Errorf("draw the picture: %w", err)
	}
	svg, err := renderSVG(p)
	if err != nil {
		return nil, fmt.Errorf("draw the picture: %w", err)
	}
	bitmap := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(pictureWidth, pictureHeight), vgimg.UseDPI(pngDPI))}
	p.Draw(withMargins(draw.New(bitmap)))
	var png bytes.Buffer
	if _, err := bitmap.WriteTo(&png); err != nil {
		return nil, fmt.Errorf("draw the picture: %w", err)
	}
	files := []string{filepath.Join(dir, "demo.svg"), filepath.Join(dir, "demo.png")}
	err = errors.Join(os.WriteFile(files[0], svg, 0o644), os.WriteFile(files[1], png.Bytes(), 0o644))
	if copySVG != "" {
		files = append(files, copySVG)
		err = errors.Join(err, os.WriteFile(copySVG, svg, 0o644))
	}
	return files, err
}

// withMargins keeps text off the edges of a white canvas.
func withMargins(c draw.Canvas) draw.Canvas {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	return draw.Crop(c, margin, -margin, margin, -margin)
}

// renderSVG names fonts that browsers have beside the one that the picture is set in.
func renderSVG(p *plot.Plot) ([]byte, error) {
	canvas := vgsvg.New(pictureWidth, pictureHeight)
	p.Draw(withMargins(draw.New(canvas)))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif")), nil
}

// labelled is a line and the text beside its end.
type labelled struct {
	label string
	style style
	y     float64
}

// plot lays the picture out.
func (r recording) plot() (*plot.Plot, error) {
	p := plot.New()
	total, err := r.total()
	if err != nil {
		return nil, err
	}
	seconds := float64(len(total)) * r.Interval.Seconds()
	highest := slices.Max(total)
	for _, c := range r.Changes {
		highest = max(highest, c.Bandwidth)
	}
	highest /= mbit

	sans := func(size vg.Length) font.Font { return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size} }
	p.Title.Text = "Throughput of each tin at the receiver: 32 TCP flows and 4 calls over 32 queues"
	p.Title.TextStyle.Font, p.Title.Padding = sans(12), 6
	p.X.Label.Text, p.Y.Label.Text = "seconds", "Mbit/s"
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font, axis.Tick.Label.Font = sans(10), sans(9)
		axis.Padding = 0
	}
	// Room for the lines' names at the right and the changes' at the top.
	p.X.Min, p.X.Max = 0, seconds*1.13
	p.Y.Min, p.Y.Max = 0, highest*1.22
	p.X.Tick.Marker = ticks(seconds, 2)
	p.Y.Tick.Marker = ticks(highest, 20)

	bandwidth := r.bandwidthSteps(seconds)
	if err := addLine(p, bandwidth, bandwidthStyle); err != nil {
		return nil, err
	}
	ends := []labelled{{"bandwidth, all tins", totalStyle, bandwidth[len(bandwidth)-1].Y}}
	for i, tin := range r.Tins {
		s := tinStyles[i%len(tinStyles)]
		if err := addLine(p, r.points(tin.Rates), s); err != nil {
			return nil, err
		}
		ends = append(ends, labelled{strings.ReplaceAll(tin.Name, "_", " "), s, mean(tail(tin.Rates)) / mbit})
	}
	if err := addLine(p, r.points(total), totalStyle); err != nil {
		return nil, err
	}
	if err := addEnds(p, ends, seconds, sans(9)); err != nil {
		return nil, err
	}
	return p, r.addChanges(p, highest, sans(8))
}

// total adds the tins up.
func (r recording) total() ([]float64, error) {
	if len(r.Tins) == 0 || len(r.Changes) == 0 || len(r.Tins[0].Rates) == 0 {
		return nil, errors.New("nothing was recorded")
	}
	total := make([]float64, len(r.Tins[0].Rates))
	for _, tin := range r.Tins {
		if len(tin.Rates) != len(total) {
			return nil, fmt.Errorf("tin %s has %d intervals and %s %d", tin.Name, len(tin.Rates), r.Tins[0].Name, len(total))
		}
		for i, rate := range tin.Rates {
			total[i] += rate
		}
	}
	return total, nil
}

// points places each interval's rate in its middle.
func (r recording) points(rates []float64) plotter.XYs {
	points := make(plotter.XYs, len(rates))
	for i, rate := range rates {
		points[i] = plotter.XY{X: (float64(i) + 0.5) * r.Interval.Seconds(), Y: rate / mbit}
	}
	return points
}

// bandwidthSteps is the bandwidth as a line of steps.
func (r recording) bandwidthSteps(seconds float64) (steps plotter.XYs) {
	for i, c := range r.Changes {
		if i > 0 {
			steps = append(steps, plotter.XY{X: c.At.Seconds(), Y: steps[len(steps)-1].Y})
		}
		steps = append(steps, plotter.XY{X: c.At.Seconds(), Y: c.Bandwidth / mbit})
	}
	return append(steps, plotter.XY{X: seconds, Y: steps[len(steps)-1].Y})
}

func addLine(p *plot.Plot, points plotter.XYs, s style) error {
	line, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	line.LineStyle = draw.LineStyle{Color: s.color, Width: s.width, Dashes: s.dashes}
	p.Add(line)
	return nil
}

// ticks marks multiples of step up to the end.
func ticks(end, step float64) plot.ConstantTicks {
	var marks plot.ConstantTicks
	for value := 0.; value <= end*1.001; value += step {
		marks = append(marks, plot.Tick{Value: value, Label: fmt.Sprintf("%.0f", value)})
	}
	return marks
}

// tail is the last second or so.
func tail(rates []float64) []float64 {
	return rates[max(0, len(rates)-int(time.Second/binInterval)):]
}

func mean(values []float64) float64 {
	sum := 0.
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// endSpacing is the least distance of the lines' names, as a part of the axis.
const endSpacing = 0.052

// addEnds writes the lines' names beside their ends, each at its own height.
func addEnds(p *plot.Plot, ends []labelled, seconds float64, f font.Font) error {
	for _, end := range spread(ends, endSpacing*(p.Y.Max-p.Y.Min)) {
		labels, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: seconds, Y: end.y}}, Labels: []string{end.label}})
		if err != nil {
			return err
		}
		labels.TextStyle[0] = text.Style{Color: end.style.color, Font: f, YAlign: text.YCenter, Handler: plot.DefaultTextHandler}
		labels.Offset = vg.Point{X: 6}
		p.Add(labels)
	}
	return nil
}

// spread moves labels up where they would touch the one below.
func spread(ends []labelled, least float64) []labelled {
	ends = slices.SortedFunc(slices.Values(ends), func(a, b labelled) int { return cmp.Compare(a.y, b.y) })
	lowest := math.Inf(-1)
	for i := range ends {
		ends[i].y = max(ends[i].y, lowest)
		lowest = ends[i].y + least
	}
	return ends
}

// addChanges marks each change by a line, with its command at the top, at two heights in turn.
func (r recording) addChanges(p *plot.Plot, highest float64, f font.Font) error {
	for i, c := range r.Changes {
		if c.Label == "" {
			continue
		}
		at, top := c.At.Seconds(), highest*(1.19-0.07*float64(i%2))
		if err := addLine(p, plotter.XYs{{X: at, Y: 0}, {X: at, Y: top}}, changeStyle); err != nil {
			return err
		}
		labels, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: at, Y: top}}, Labels: []string{c.Label}})
		if err != nil {
			return err
		}
		labels.TextStyle[0] = text.Style{Color: black, Font: f, YAlign: text.YTop, Handler: plot.DefaultTextHandler}
		labels.Offset = vg.Point{X: 3}
		p.Add(labels)
	}
	return nil
}

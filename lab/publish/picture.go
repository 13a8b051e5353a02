// SPDX-License-Identifier: BSD-2-Clause

package publish

import (
	"bytes"
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/cakectl/cakectl/lab/shaper"
)

// picture is something to look at.
type picture struct {
	name          string // of its files
	title         string
	width, height vg.Length
	draw          func(draw.Canvas)
}

const (
	pictureWidth = 9.6 * vg.Inch
	margin       = vg.Length(8)
	pngDPI       = 120
	// legendWidth is the room at the right for the names of lines.
	legendWidth = vg.Length(136)
)

// svg names fonts that browsers have beside the one that the picture is set in.
func (p picture) svg() ([]byte, error) {
	canvas := vgsvg.New(p.width, p.height)
	p.draw(framed(draw.New(canvas)))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return nil, fmt.Errorf("draw %s: %w", p.name, err)
	}
	return bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif")), nil
}

func (p picture) png() ([]byte, error) {
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(p.width, p.height), vgimg.UseDPI(pngDPI))}
	p.draw(framed(draw.New(canvas)))
	var png bytes.Buffer
	if _, err := canvas.WriteTo(&png); err != nil {
		return nil, fmt.Errorf("draw %s: %w", p.name, err)
	}
	return png.Bytes(), nil
}

// framed is a white canvas without its margins.
func framed(c draw.Canvas) draw.Canvas {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	return draw.Crop(c, margin, -margin, margin, -margin)
}

// look tells lines apart by dashes and markers first, and by colour.
type look struct {
	dashes []vg.Length
	glyph  draw.GlyphDrawer
	color  color.Color
}

var grey = color.Gray{0x90}

// looks differ in lightness as well.
var looks = []look{
	{nil, draw.CircleGlyph{}, color.RGBA{0x00, 0x00, 0x00, 0xff}},
	{[]vg.Length{7, 3}, draw.BoxGlyph{}, color.RGBA{0xb3, 0x42, 0x00, 0xff}},
	{[]vg.Length{1.5, 2}, draw.PyramidGlyph{}, color.RGBA{0x00, 0x5a, 0x9c, 0xff}},
	{[]vg.Length{9, 3, 2, 3}, draw.RingGlyph{}, color.RGBA{0x1b, 0x7a, 0x3d, 0xff}},
	{[]vg.Length{4, 2}, draw.SquareGlyph{}, color.RGBA{0x7b, 0x3f, 0xa0, 0xff}},
	{[]vg.Length{12, 2}, draw.TriangleGlyph{}, color.RGBA{0x8a, 0x6d, 0x00, 0xff}},
	{[]vg.Length{2, 4}, draw.CrossGlyph{}, color.RGBA{0xc2, 0x18, 0x5b, 0xff}},
	{[]vg.Length{6, 2, 1, 2, 1, 2}, draw.PlusGlyph{}, color.RGBA{0x00, 0x79, 0x7a, 0xff}},
	{[]vg.Length{3, 1}, draw.BoxGlyph{}, color.RGBA{0x60, 0x60, 0x60, 0xff}},
	{[]vg.Length{10, 4, 4, 4}, draw.PyramidGlyph{}, color.RGBA{0x4a, 0x2f, 0x8a, 0xff}},
	{[]vg.Length{1, 1}, draw.CircleGlyph{}, color.RGBA{0x9c, 0x27, 0x1b, 0xff}},
	{[]vg.Length{5, 5}, draw.SquareGlyph{}, color.RGBA{0x00, 0x00, 0x00, 0xff}},
	{[]vg.Length{8, 2, 2, 2}, draw.TriangleGlyph{}, color.RGBA{0x55, 0x55, 0x55, 0xff}},
}

func lookOf(i int) look { return looks[i%len(looks)] }

// lookOfPeer is the same in all pictures.
func lookOfPeer(name string) look {
	if name == shaper.Ours {
		return looks[0]
	}
	return lookOf(1 + slices.IndexFunc(shaper.Peers(), func(p shaper.Peer) bool { return p.Name == name }))
}

func (l look) line(points plotter.XYs) (*plotter.Line, error) {
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	line.LineStyle = draw.LineStyle{Color: l.color, Width: 1.3, Dashes: l.dashes}
	return line, nil
}

func (l look) markers(points plotter.XYs) (*plotter.Scatter, error) {
	markers, err := plotter.NewScatter(points)
	if err != nil {
		return nil, err
	}
	markers.GlyphStyle = draw.GlyphStyle{Color: l.color, Radius: 2.6, Shape: l.glyph}
	return markers, nil
}

func sans(size vg.Length) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

// newPlot is an empty plot in the report's type.
func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.TextStyle.Font, p.Title.Padding = sans(10), 5
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font, axis.Tick.Label.Font = sans(9), sans(8)
		axis.Padding = 0
	}
	return p
}

func newLegend() plot.Legend {
	legend := plot.NewLegend()
	legend.TextStyle.Font = sans(9)
	legend.Top, legend.Left = true, true
	legend.ThumbnailWidth, legend.Padding = 30, 3
	return legend
}

// beside draws a legend at the right of something else.
func beside(c draw.Canvas, legend plot.Legend, rest func(draw.Canvas)) {
	rest(draw.Crop(c, 0, -legendWidth, 0, 0))
	left := c.Rectangle.Size().X - legendWidth
	legend.Draw(draw.Crop(c, left+10, 0, 0, -16))
}

// nameY writes names at whole numbers of the Y axis, beside no line: a browser without the font may set
// them wider than they are here.
func nameY(p *plot.Plot, labels []string) {
	var ticks plot.ConstantTicks
	for i, label := range labels {
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: label})
	}
	p.Y.Tick.Marker, p.Y.Tick.Length = ticks, 0
	p.Y.LineStyle.Width, p.Y.Padding = 0, 14
}

// note is text at a point of a plot, to the right of it.
func note(x, y float64, words string) (*plotter.Labels, error) {
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: x, Y: y}}, Labels: []string{words}})
	if err != nil {
		return nil, err
	}
	labels.TextStyle[0] = text.Style{Color: color.Black, Font: sans(8), YAlign: text.YCenter, Handler: plot.DefaultTextHandler}
	labels.Offset = vg.Point{X: 5}
	return labels, nil
}

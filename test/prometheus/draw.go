package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/promql"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Sizes of a picture, in points.
const (
	width, plotHeight     = 640, 240
	rowHeight, rowPadding = 14, 5
	margin                = 10
)

// There is no background, and these are seen on a white page and on a black
// one.
var (
	ink  = color.NRGBA{0x80, 0x85, 0x8d, 0xff}
	pale = color.NRGBA{0x80, 0x85, 0x8d, 0x50}

	palette = []color.NRGBA{
		{0x2f, 0x81, 0xf7, 0xff}, {0xe0, 0x7b, 0x1a, 0xff}, {0x2d, 0xa4, 0x4e, 0xff}, {0xd6, 0x3f, 0x6c, 0xff},
		{0x8e, 0x63, 0xce, 0xff}, {0x14, 0x9b, 0xa1, 0xff}, {0xa8, 0x7b, 0x0f, 0xff}, {0xd0, 0x54, 0xc0, 0xff},
	}
)

// picture draws a panel as SVG: its lines over the seconds of the recording,
// its notes as numbered lines, its legend below.
func (p shownPanel) picture(r *recording) ([]byte, error) {
	var lines []line
	for _, a := range p.answers {
		lines = append(lines, a.lines...)
	}
	drawn := plot.New()
	drawn.BackgroundColor = nil
	drawn.Title.Text = p.Title
	drawn.Title.Padding = vg.Points(6)
	p.axes(drawn, r, lines)
	if err := addNotes(drawn, r); err != nil {
		return nil, err
	}
	below := plot.NewLegend()
	below.Top, below.Left, below.TextStyle, below.Padding = true, true, style(10), vg.Points(rowPadding)
	below.ThumbnailWidth = vg.Points(22)
	for i, l := range lines {
		thumb, err := addLine(drawn, l, r, palette[i%len(palette)])
		if err != nil {
			return nil, err
		}
		below.Add(l.name, thumb)
	}
	legendHeight := vg.Points(float64(rowHeight*len(lines) + 2*margin))
	canvas := vgsvg.NewWith(vgsvg.UseWH(vg.Points(width), vg.Points(plotHeight)+legendHeight))
	c := draw.New(canvas)
	drawn.Draw(draw.Crop(c, vg.Points(margin), -vg.Points(margin), legendHeight, -vg.Points(margin)))
	below.Draw(draw.Crop(c, vg.Points(5*margin), -vg.Points(margin), 0, -vg.Points(plotHeight+margin)))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, err
	}
	// Whoever reads it need not have the font that it was measured with.
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")), nil
}

func style(size float64) text.Style {
	return text.Style{Color: ink, Font: font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(size)}, Handler: plot.DefaultTextHandler}
}

// axes are round values: of time from the beginning, of values from 0.
func (p shownPanel) axes(drawn *plot.Plot, r *recording, lines []line) {
	most, whole := 0.0, true
	for _, l := range lines {
		most = math.Max(most, l.most())
		whole = whole && !slices.ContainsFunc(l.points, func(p promql.FPoint) bool { return p.F != math.Trunc(p.F) })
	}
	drawn.Title.TextStyle = style(13)
	drawn.Title.TextStyle.XAlign, drawn.Title.TextStyle.YAlign = text.XCenter, text.YTop
	for _, axis := range []*plot.Axis{&drawn.X, &drawn.Y} {
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = ink, ink
		x, y := axis.Tick.Label.XAlign, axis.Tick.Label.YAlign
		axis.Tick.Label = style(10)
		axis.Tick.Label.XAlign, axis.Tick.Label.YAlign = x, y
		axis.Padding = 0
	}
	length := r.to.Sub(r.from).Seconds()
	drawn.X.Min, drawn.X.Max = 0, length
	drawn.X.Tick.Marker = ticks(clock(length))
	marks := units[p.FieldConfig.Defaults.Unit].marks(most, whole)
	drawn.Y.Min, drawn.Y.Max = 0, marks[len(marks)-1].at
	drawn.Y.Tick.Marker = ticks(marks)
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = pale, color.Transparent
	drawn.Add(grid)
}

// ticks are marks that gonum's axes take.
type ticks []mark

// Ticks implements plot.Ticker.
func (t ticks) Ticks(least, most float64) []plot.Tick {
	var out []plot.Tick
	for _, m := range t {
		if m.at >= least && m.at <= most {
			out = append(out, plot.Tick{Value: m.at, Label: m.words})
		}
	}
	return out
}

// clock marks seconds as minutes and seconds, at most about ten.
func clock(length float64) []mark {
	step := 3600.0
	for _, s := range []float64{1, 5, 10, 15, 30, 60, 120, 300, 600} {
		if length/s <= 10 {
			step = s
			break
		}
	}
	var out []mark
	for at := 0.0; at <= length; at += step {
		out = append(out, mark{at, fmt.Sprintf("%d:%02d", int(at)/60, int(at)%60)})
	}
	return out
}

// addNotes draws each note as a line with its number.
func addNotes(drawn *plot.Plot, r *recording) error {
	for i, n := range r.notes {
		at := n.at.Sub(r.from).Seconds()
		l, err := plotter.NewLine(plotter.XYs{{X: at, Y: 0}, {X: at, Y: drawn.Y.Max}})
		if err != nil {
			return err
		}
		l.Color, l.Width, l.Dashes = ink, vg.Points(0.6), []vg.Length{vg.Points(2), vg.Points(3)}
		number, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: at, Y: drawn.Y.Max}}, Labels: []string{strconv.Itoa(i + 1)}})
		if err != nil {
			return err
		}
		number.TextStyle[0] = style(9)
		number.TextStyle[0].XAlign, number.TextStyle[0].YAlign = text.XLeft, text.YTop
		number.Offset = vg.Point{X: vg.Points(2)}
		drawn.Add(l, number)
	}
	return nil
}

// addLine draws a line and returns its example for the legend. Where samples
// are missing there is a gap; one alone is a dot.
func addLine(drawn *plot.Plot, l line, r *recording, c color.Color) (plot.Thumbnailer, error) {
	example := &plotter.Line{LineStyle: draw.LineStyle{Color: c, Width: vg.Points(1.6)}}
	for _, piece := range pieces(l.points, r.interval) {
		var xys plotter.XYs
		for _, p := range piece {
			xys = append(xys, plotter.XY{X: time.UnixMilli(p.T).Sub(r.from).Seconds(), Y: p.F})
		}
		if len(xys) == 1 {
			dot, err := plotter.NewScatter(xys)
			if err != nil {
				return nil, err
			}
			dot.GlyphStyle = draw.GlyphStyle{Color: c, Radius: vg.Points(1.6), Shape: draw.CircleGlyph{}}
			drawn.Add(dot)
			continue
		}
		drawnLine, err := plotter.NewLine(xys)
		if err != nil {
			return nil, err
		}
		drawnLine.LineStyle = example.LineStyle
		drawn.Add(drawnLine)
	}
	return example, nil
}

// pieces are a line's points without gaps.
func pieces(points []promql.FPoint, interval time.Duration) [][]promql.FPoint {
	var out [][]promql.FPoint
	for i, p := range points {
		if i == 0 || p.T-points[i-1].T > interval.Milliseconds() {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], p)
	}
	return out
}

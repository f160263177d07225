package traffic

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Curve is a line of a plot.
type Curve struct {
	Name string
	X, Y []float64
}

// colours of curves, distinguishable by everybody.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7"}

// Plot draws curves as SVG; y grows by powers of ten, because servers that fall
// behind wait without end.
func Plot(title, x, y string, curves []Curve) string {
	const width, height, left, right, top, bottom = 640.0, 400.0, 70.0, 150.0, 40.0, 50.0
	maxX, low, high := 0.0, math.Inf(1), 0.0
	for _, c := range curves {
		for i := range c.X {
			maxX, low, high = max(maxX, c.X[i]), min(low, c.Y[i]), max(high, c.Y[i])
		}
	}
	from, to := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	if to <= from {
		to = from + 1
	}
	px := func(v float64) float64 { return left + v/maxX*(width-left-right) }
	py := func(v float64) float64 {
		return height - bottom - (math.Log10(v)-from)/(to-from)*(height-top-bottom)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%g" y="22" font-size="15">%s</text>`+"\n", left, html.EscapeString(title))
	for e := from; e <= to; e++ {
		v := py(math.Pow(10, e))
		fmt.Fprintf(&b, `<path d="M%g %.1fH%g" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%g</text>`+"\n", left, v, width-right, left-6, v+4, math.Pow(10, e))
	}
	for i := 0.0; i <= 5; i++ {
		v := maxX * i / 5
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%.3g</text>`+"\n", px(v), height-bottom+18, v)
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`+"\n", (left+width-right)/2, height-12, html.EscapeString(x))
	fmt.Fprintf(&b, `<text x="16" y="%g" transform="rotate(-90 16 %g)" text-anchor="middle">%s</text>`+"\n", height/2, height/2, html.EscapeString(y))
	for n, c := range curves {
		colour := colours[n%len(colours)]
		var path strings.Builder
		for i := range c.X {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], px(c.X[i]), py(c.Y[i]))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`+"\n", px(c.X[i]), py(c.Y[i]), colour)
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path.String(), colour)
		fmt.Fprintf(&b, `<text x="%g" y="%g" fill="%s">%s</text>`+"\n", width-right+12, top+16*float64(n+1), colour, html.EscapeString(c.Name))
	}
	return b.String() + "</svg>\n"
}

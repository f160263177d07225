package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"time"
)

// sample is the memory of the fleet at a moment: of each Mac the thousandths
// that are promised for good, and with what is loaded on demand; -1 for one
// that is away.
type sample struct {
	at               time.Duration
	promised, loaded []int
	// of the deployments that scale themselves: requests that run and wait, replicas
	// that are wanted, and that serve.
	requests, wanted, serving int
}

func (w *world) sample() {
	s := sample{at: w.now.Sub(epoch)}
	always := map[string]int64{}
	for _, r := range w.replicas {
		if !r.gone && r.Spec.NodeName != "" && !r.Spec.Residency.OnDemand() {
			always[r.Spec.NodeName] += r.Spec.ReservedBytes
		}
	}
	for _, m := range w.macs {
		if !m.alive {
			s.promised, s.loaded = append(s.promised, -1), append(s.loaded, -1)
			continue
		}
		used, capacity := always[m.node.Name], m.node.Status.Memory.CapacityBytes
		s.promised = append(s.promised, int(1000*used/capacity))
		for r := range m.loaded {
			used += r.Spec.ReservedBytes
		}
		s.loaded = append(s.loaded, int(1000*used/capacity))
	}
	for _, d := range w.scaled {
		s.requests += len(d.queued)
		for _, n := range d.running {
			s.requests += n
		}
		s.wanted += d.memory.Desired
		s.serving += d.ready
	}
	w.samples = append(w.samples, s)
}

// The picture: one column for each sample, one row for each Mac, at most
// maxRows of them, each the mean of its neighbours in the order of the names.
const (
	width, height = 1200, 640
	// below it, what the deployments that scale themselves are asked and have.
	below     = 180
	left, top = 70, 50
	maxRows   = 160
)

// draw writes the picture. The darker a cell, the fuller the Mac; the bluer,
// the more of it is on demand; grey is away.
func draw(to io.Writer, samples []sample, length time.Duration) error {
	if len(samples) == 0 {
		return fmt.Errorf("nothing was sampled in %s", length)
	}
	out := bufio.NewWriter(to)
	macs := len(samples[0].promised)
	rows := min(maxRows, macs)
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height+below)
	fmt.Fprintf(out, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height+below)
	fmt.Fprintf(out, `<text x="%d" y="20" font-size="15">Memory of %d Macs over %s</text>`+"\n", left, macs, length)
	fmt.Fprintf(out, `<text x="%d" y="38">orange: promised for good; blue: loaded on demand; the darker, the fuller; grey: away</text>`+"\n", left)
	cw, ch := float64(width-left-20)/float64(len(samples)), float64(height-top-40)/float64(rows)
	for x, s := range samples {
		for y := range rows {
			from, to := y*macs/rows, (y+1)*macs/rows
			fmt.Fprintf(out, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s"/>`+"\n",
				left+float64(x)*cw, top+float64(y)*ch, cw+0.3, ch+0.3, colour(s.promised[from:to], s.loaded[from:to]))
		}
	}
	for i := range 7 {
		at := length * time.Duration(i) / 6
		fmt.Fprintf(out, `<text x="%.1f" y="%d" text-anchor="middle">%.1f h</text>`+"\n", left+float64(i)*float64(width-left-20)/6, height-18, at.Hours())
	}
	fmt.Fprintf(out, `<text x="8" y="%d">mac 0</text><text x="8" y="%d">mac %d</text>`+"\n", top+10, height-44, macs-1)
	drawScaled(out, samples)
	fmt.Fprintln(out, "</svg>")
	return out.Flush()
}

// drawScaled draws requests, wanted and serving replicas over time, on one scale.
func drawScaled(out io.Writer, samples []sample) {
	most := 1
	for _, s := range samples {
		most = max(most, s.requests, s.wanted, s.serving)
	}
	fmt.Fprintf(out, `<text x="%d" y="%d">deployments that scale themselves; grey: requests, orange: replicas wanted, blue: replicas that serve; up to %d</text>`+"\n", left, height+10, most)
	for _, line := range []struct {
		colour string
		of     func(sample) int
	}{
		{"#999999", func(s sample) int { return s.requests }},
		{"#e07000", func(s sample) int { return s.wanted }},
		{"#2060c0", func(s sample) int { return s.serving }},
	} {
		fmt.Fprintf(out, `<polyline fill="none" stroke="%s" points="`, line.colour)
		for x, s := range samples {
			fmt.Fprintf(out, "%.1f,%.1f ", left+float64(x)*float64(width-left-20)/float64(len(samples)), float64(height+below-10)-float64(line.of(s)*(below-30))/float64(most))
		}
		fmt.Fprintln(out, `"/>`)
	}
}

// colour of some Macs: their mean, or grey where most are away.
func colour(promised, loaded []int) string {
	p, l, n := 0, 0, 0
	for i := range promised {
		if promised[i] >= 0 {
			p, l, n = p+promised[i], l+loaded[i], n+1
		}
	}
	if 2*n < len(promised) || n == 0 {
		return "#b0b0b0"
	}
	p, l = min(1000, p/n), min(1000, l/n)
	mix := func(of, part int) int { return slices.Max([]int{0, of - of*part/1000}) }
	red := mix(255, max(0, l-p)) - 40*p/1000
	green := 255 - 130*l/1000
	blue := mix(255, p) - 40*max(0, l-p)/1000
	return fmt.Sprintf("#%02x%02x%02x", max(0, red), max(0, green), max(0, blue))
}

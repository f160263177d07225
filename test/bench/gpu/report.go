package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// Bounds of issue 4, line 3, and of issue 7, line 3.
const (
	leastRatio = 1.0
	mostRows   = 2.6
)

// leastStreams is how much faster than the peer several streams at once must
// be, on the dense shape of 8 billion weights.
func leastStreams() map[int]float64 { return map[int]float64{8: 2, 16: 3.5} }

// report is what gpu.json holds.
type report struct {
	Tokens int     `json:"tokens"`
	Rounds int     `json:"rounds"`
	Models []model `json:"models"`
}

// model is all figures of one shape.
type model struct {
	Shape string `json:"shape"`
	// Date and GPU are when and where it was measured.
	Date    string   `json:"date"`
	GPU     string   `json:"gpu"`
	Peer    string   `json:"peer"`
	Figures []figure `json:"figures"`
	options options
	// unread are bytes of the weights that a step does not read.
	unread   int64
	greeting greeting
	rounds   []round
}

// figure is one measured thing: ours, the peer's, and how they compare.
type figure struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	// Ours and Peer have one value for each round that measured it; Peer may be
	// empty.
	Ours []float64 `json:"ours"`
	Peer []float64 `json:"peer,omitempty"`
	// Ratio is taken within a round; what it is depends on the bound.
	Ratio []float64 `json:"ratio,omitempty"`
	// Bound is what the median ratio must meet, as a sentence; Met says if it does.
	Bound string `json:"bound,omitempty"`
	Met   bool   `json:"met"`
}

// recorded is the report that a folder holds, empty where there is none.
func recorded(folder string) (r report, err error) {
	raw, err := os.ReadFile(filepath.Join(folder, "gpu.json"))
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("%s/gpu.json: %w", folder, err)
	}
	return r, nil
}

// keep puts a model where it was before, or at its place among the shapes.
func (r *report) keep(m model) {
	r.Models = append(slices.DeleteFunc(r.Models, func(old model) bool { return old.Shape == m.Shape }), m)
	slices.SortFunc(r.Models, func(a, b model) int {
		return cmp.Compare(slices.Index(shapes(), a.Shape), slices.Index(shapes(), b.Shape))
	})
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// sum turns rounds into figures.
func (m *model) sum() {
	g := m.greeting
	m.Peer = fmt.Sprintf("mlx-lm %s on MLX %s, %s", g.MLXLM, g.MLX, g.Device)
	m.decode()
	for _, n := range lengths() {
		m.prefill(n)
	}
	for _, n := range streams()[1:] {
		m.streams(n)
	}
	for _, n := range streams()[1:] {
		m.rows(n)
	}
	m.host()
}

// each makes a figure of the rounds in which a was measured.
func (m *model) each(a ask, f func(r round) (ours, peer, ratio float64)) figure {
	var out figure
	for _, r := range m.rounds {
		if _, measured := r.ours[a]; !measured {
			continue
		}
		ours, peer, ratio := f(r)
		out.Ours, out.Peer, out.Ratio = append(out.Ours, ours), append(out.Peer, peer), append(out.Ratio, ratio)
	}
	return out
}

func (m *model) add(f figure, name, unit, bound string, met bool) {
	f.Name, f.Unit, f.Bound, f.Met = name, unit, bound, met
	m.Figures = append(m.Figures, f)
}

func (m *model) decode() {
	one := m.options.decode(1)
	f := m.each(one, func(r round) (float64, float64, float64) {
		ours, peer := 1000/r.ours[one].Step, 1/r.peer[one].Step
		return ours, peer, ours / peer
	})
	m.add(f, "decode, 1 stream", "tokens/s", fmt.Sprintf("at least %.1f x the peer", leastRatio), median(f.Ratio) >= leastRatio)
}

func (m *model) prefill(n int) {
	a := prefill(n)
	f := m.each(a, func(r round) (float64, float64, float64) {
		ours, peer := r.ours[a].Prefill, float64(n)/r.peer[a].Prefill
		return ours, peer, ours / peer
	})
	m.add(f, fmt.Sprintf("prefill of %d", n), "tokens/s", fmt.Sprintf("at least %.1f x the peer", leastRatio), median(f.Ratio) >= leastRatio)
}

// streams compares the tokens of n sequences at once with the peer's.
func (m *model) streams(n int) {
	many := m.options.decode(n)
	f := m.each(many, func(r round) (float64, float64, float64) {
		ours, peer := 1000*float64(n)/r.ours[many].Step, float64(n)/r.peer[many].Step
		return ours, peer, ours / peer
	})
	least, bound := leastStreams()[n], ""
	if m.Shape == large {
		bound = fmt.Sprintf("at least %.1f x the peer", least)
	}
	m.add(f, fmt.Sprintf("decode, %d streams", n), "tokens/s", bound, bound == "" || median(f.Ratio) >= least)
}

// rows compares a step of n rows with our step of one row in the same round.
func (m *model) rows(n int) {
	one, many := m.options.decode(1), m.options.decode(n)
	f := m.each(many, func(r round) (float64, float64, float64) {
		return r.ours[many].Step, 1000 * r.peer[many].Step, r.ours[many].Step / r.ours[one].Step
	})
	bound := ""
	if m.Shape == large {
		bound = fmt.Sprintf("at most %.1f x our step of 1 row", mostRows)
	}
	m.add(f, fmt.Sprintf("step of %d rows", n), "ms", bound, bound == "" || median(f.Ratio) <= mostRows)
}

// host is what a step costs beside the device, and how near the device is to
// its memory's speed.
func (m *model) host() {
	for _, n := range streams() {
		a := m.options.decode(n)
		built := m.each(a, func(r round) (float64, float64, float64) { return r.ours[a].Host, 0, 0 })
		cpu := m.each(a, func(r round) (float64, float64, float64) { return r.ours[a].CPU, 0, 0 })
		built.Peer, built.Ratio, cpu.Peer, cpu.Ratio = nil, nil, nil, nil
		m.add(built, fmt.Sprintf("host, to start a step of %d rows", n), "ms", "", true)
		m.add(cpu, fmt.Sprintf("host, processor time of a step of %d rows", n), "ms", "", true)
	}
	one := m.options.decode(1)
	share := m.each(one, func(r round) (float64, float64, float64) {
		read := float64(r.ours[one].WeightBytes - m.unread)
		return 100 * read / (r.ours[one].Step / 1000) / m.greeting.Bandwidth, 100 * read / r.peer[one].Step / m.greeting.Bandwidth, 0
	})
	share.Ratio = nil
	m.add(share, "share of the memory's speed at 1 stream", "% of what a copy moves", "", true)
}

func (r report) write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	var page strings.Builder
	r.markdown(&page)
	return errors.Join(
		os.WriteFile(filepath.Join(folder, "gpu.json"), append(raw, '\n'), 0o644),
		os.WriteFile(filepath.Join(folder, "gpu.md"), []byte(page.String()), 0o644))
}

// cells of one figure: the median and, in brackets, the smallest and largest.
func (f figure) cells() []string {
	show := func(v []float64) string {
		if len(v) == 0 || slices.Max(v) == 0 {
			return ""
		}
		return fmt.Sprintf("%.4g (%.4g to %.4g)", median(v), slices.Min(v), slices.Max(v))
	}
	verdict := "met"
	switch {
	case f.Bound == "":
		verdict = ""
	case !f.Met:
		verdict = "MISSED"
	}
	return []string{f.Name, f.Unit, show(f.Ours), show(f.Peer), show(f.Ratio), f.Bound, verdict}
}

func heads() []string { return []string{"figure", "unit", "ours", "peer", "ratio", "bound", ""} }

func (r report) markdown(w io.Writer) {
	fmt.Fprintf(w, "# The engine on an NVIDIA GPU\n\nWritten by `make bench-gpu`. Random weights, affine 4 bits, groups of 64, bfloat16; both sides\n")
	fmt.Fprintf(w, "have the same files loaded at once and measure in turns, up to %d rounds of a few tenths of a second each (steps of several\nrows in every third). Decoding begins behind %d tokens and takes %d; a step is built on the tokens of the one before while\nthat still computes, on both sides. Prefill is the time to the first token. Median (smallest to largest) of the rounds.\nThe GPU's figures say that the bridge and its layout are right, not how fast a Mac is.\n", r.Rounds, behind, r.Tokens)
	for _, m := range r.Models {
		fmt.Fprintf(w, "\n## %s beside %s\n\n%s, %s.\n\n| %s |\n|%s\n", m.Shape, m.Peer, m.GPU, m.Date, strings.Join(heads(), " | "), strings.Repeat("---|", len(heads())))
		for _, f := range m.Figures {
			fmt.Fprintf(w, "| %s |\n", strings.Join(f.cells(), " | "))
		}
	}
}

func (r report) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, m := range r.Models {
		fmt.Fprintf(w, "%s\n%s\n", m.Shape, strings.Join(heads(), "\t"))
		for _, f := range m.Figures {
			fmt.Fprintln(w, strings.Join(f.cells(), "\t"))
		}
	}
	_ = w.Flush() // standard output
}

// verdict names the bounds that were missed.
func (r report) verdict() error {
	var missed []string
	for _, m := range r.Models {
		for _, f := range m.Figures {
			if !f.Met {
				missed = append(missed, fmt.Sprintf("%s, %s: %.3f, want %s", m.Shape, f.Name, median(f.Ratio), f.Bound))
			}
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("%d bounds are missed: %s", len(missed), strings.Join(missed, "; "))
	}
	return nil
}

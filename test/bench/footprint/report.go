package main

import (
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/test/bench/report"
)

// The bound of the issue, for every model on every back end.
const least, most = 1.0, 1.25

// about says how it was measured.
const about = "`make bench-footprint`: `engine footprint` beside the most that `engine serve` ever held, from the start of its process to\n" +
	"the end of requests that fill every promised token of its cache at once, under the limits that an agent would publish. Held is\n" +
	"Pss_Anon + Pss_Shmem + SwapPss, read every 20 ms or a tenth of the time. MLX computes on the processor here (`mlx-cpu` in the arithmetic): what it takes\n" +
	"on a Mac's GPU is not measured by this. Weights and KV are exact on both sides; the figures beside them are one step's\n" +
	"arrays, what the back end keeps pooled, and the process itself."

// rows says which row speaks for which family, and for whom else.
func rows(list []model) string {
	var b strings.Builder
	b.WriteString("\n\n| family | row | runs the same code |\n|---|---|---|\n")
	for _, m := range list {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.family, m.name, m.also)
	}
	return b.String() + "\n"
}

func newReport(all []measured, list []model) *report.Report {
	r := report.New("footprint", "What a model takes, estimated and measured", about+rows(list))
	mb := func(n int64) float64 { return float64(n) / 1e6 }
	none := report.Bound{}
	for _, m := range all {
		r.Add(m.name+", estimate / peak", "x", report.Between(least, most), m.ratio())
		name := fmt.Sprintf("%s, %d x %d tokens", m.name, m.promise.sequences, m.promise.tokens)
		r.Add(name+", peak", "MB", none, mb(m.peak))
		e := m.estimate
		for _, term := range []struct {
			name  string
			bytes int64
		}{{"weights", e.Weights}, {"KV", e.KV}, {"step", e.Transient}, {"pooled", e.Pooled}, {"process", e.Overhead}} {
			r.Add(m.name+", estimated "+term.name, "MB", none, mb(term.bytes))
		}
		r.Add(m.name+", said weights", "MB", none, mb(m.weights))
		r.Add(m.name+", said KV", "MB", none, mb(m.kv))
		r.Add(m.name+", loading", "MB", none, mb(m.loading))
		r.Add(m.name+", loaded and idle", "MB", none, mb(m.ready))
	}
	return r
}

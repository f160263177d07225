package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// The bounds of the issue.
const (
	leastDecode    = 15.0
	leastPrefill   = 40.0
	mostPerWeights = 1.6
)

// line is one measured figure with its runs.
type line struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Bound  string    `json:"bound,omitempty"`
	Passed bool      `json:"passed"`
	Runs   []float64 `json:"runs"`
}

// report is what is kept of a measurement.
type report struct {
	Model   string `json:"model"`
	Machine string `json:"machine"`
	Date    string `json:"date"`
	Lines   []line `json:"lines"`
}

func newReport(m measurements) report {
	r := report{Model: "SmolLM2-135M-Instruct Q4_1, back end ref", Machine: machine(), Date: time.Now().UTC().Format(time.DateOnly)}
	r.add("decode, one stream", "tokens/s", fmt.Sprintf("at least %g", leastDecode), func(v float64) bool { return v >= leastDecode }, m.decode...)
	r.add(fmt.Sprintf("prefill of %d", promptTokens), "tokens/s", fmt.Sprintf("at least %g", leastPrefill), func(v float64) bool { return v >= leastPrefill }, m.prefill...)
	most := mostPerWeights*float64(m.weights) + float64(m.kv)
	r.add("footprint while a stream runs", "MB", fmt.Sprintf("under %.1f (%g x weights + KV)", most/1e6, mostPerWeights),
		func(v float64) bool { return v*1e6 < most }, float64(m.footprint)/1e6)
	always := func(float64) bool { return true }
	r.add("weights as loaded", "MB", "", always, float64(m.weights)/1e6)
	r.add("KV held by the stream", "MB", "", always, float64(m.kv)/1e6)
	r.add("first token of a chat question", "ms", "", always, m.firstToken...)
	r.add("start to ready", "ms", "", always, m.loadMilliseconds)
	return r
}

func (r *report) add(name, unit, bound string, ok func(float64) bool, runs ...float64) {
	sorted := slices.Sorted(slices.Values(runs))
	n := len(sorted)
	l := line{Name: name, Unit: unit, Bound: bound, Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Min: sorted[0], Max: sorted[n-1], Runs: runs}
	l.Passed = ok(l.Median)
	r.Lines = append(r.Lines, l)
}

// judge fails when a median missed its bound.
func (r report) judge() error {
	var errs []error
	for _, l := range r.Lines {
		if !l.Passed {
			errs = append(errs, fmt.Errorf("%s: median %.1f %s, want %s", l.Name, l.Median, l.Unit, l.Bound))
		}
	}
	return errors.Join(errs...)
}

func (r report) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | unit | median | min | max | bound | runs |\n|---|---|---|---|---|---|---|\n", r.Model)
	for _, l := range r.Lines {
		fmt.Fprintf(&b, "| %s | %s | %.1f | %.1f | %.1f | %s | %d |\n", l.Name, l.Unit, l.Median, l.Min, l.Max, l.Bound, len(l.Runs))
	}
	fmt.Fprintf(&b, "\n%s, %s\n", r.Machine, r.Date)
	return b.String()
}

// write keeps the report as JSON and as a table.
func (r report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	page := "# The engine on two cores\n\n`make bench-engine`: `engine serve` in a process of its own, asked over its socket. Prefill is the time from Admitted\nto the first token; decode is the time between the first and the last token of one stream; footprint is Pss_Anon +\nPss_Shmem + SwapPss of the process. Written by the run.\n\n" + r.table()
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "engine.json"), append(b, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "engine.md"), []byte(page), 0o644),
	)
}

// machine names the processor and the number of cores.
func machine() string {
	name := runtime.GOOS + "/" + runtime.GOARCH
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
				name = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%s, %d cores, %s", name, runtime.NumCPU(), runtime.Version())
}

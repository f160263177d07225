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

// report is what is kept of a measurement.
type report struct {
	Name    string  `json:"name"`
	Unit    string  `json:"unit"`
	Bound   float64 `json:"bound"`
	Median  float64 `json:"median"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
	Runs    []int64 `json:"runs"`
	Machine string  `json:"machine"`
	Date    string  `json:"date"`
}

func newReport(rounds []time.Duration) report {
	sorted := slices.Sorted(slices.Values(rounds))
	r := report{
		Name: "apply to Ready, tiny model on disk", Unit: "ms", Bound: float64(bound.Milliseconds()),
		Median: milliseconds(median(sorted)), Min: milliseconds(sorted[0]), Max: milliseconds(sorted[len(sorted)-1]),
		Machine: machine(), Date: time.Now().UTC().Format(time.DateOnly),
	}
	for _, d := range rounds {
		r.Runs = append(r.Runs, d.Milliseconds())
	}
	return r
}

// median of sorted durations.
func median(sorted []time.Duration) time.Duration {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// judge fails a median over the bound.
func (r report) judge() error {
	if r.Median > r.Bound {
		return fmt.Errorf("median %.0f ms, want at most %.0f", r.Median, r.Bound)
	}
	return nil
}

func (r report) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | median | min | max | bound | runs |\n|---|---|---|---|---|---|\n", r.Name)
	var runs []string
	for _, n := range r.Runs {
		runs = append(runs, fmt.Sprint(n))
	}
	fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.0f | %.0f | %s |\n", r.Unit, r.Median, r.Min, r.Max, r.Bound, strings.Join(runs, ", "))
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
	page := "# From apply to Ready\n\n`make bench-ready`: wall time from the create of a ModelDeployment to its condition Ready, the tiny model on the\nMac's disk; control plane, operator, gateway and agent on the same machine. Written by the run.\n\n" + r.table()
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "ready.json"), append(b, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "ready.md"), []byte(page), 0o644),
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

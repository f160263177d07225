// Package report keeps what a benchmark measured: a table for the terminal, and
// the same as JSON and Markdown in a folder.
//
// It owns what every figure must say: its unit, every run, the median and the
// spread, the machine and its load, the date, the versions of peers, and the
// bound that its median must meet. It refuses to call a figure measured that
// has no run, or one that is not a number. It measures nothing itself.
//
// Start reading at Report.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Report is a measurement: New begins it, Add and Ratio fill it, and it is
// printed, written and judged.
type Report struct {
	// Name is that of the files, without their ending.
	Name string `json:"name"`
	// Title and About head the page: what was measured and how.
	Title string `json:"title"`
	About string `json:"about"`
	// Date is the day, in UTC.
	Date    string  `json:"date"`
	Machine Machine `json:"machine"`
	// Versions are those of peers and of what they run on, by name.
	Versions []Version `json:"versions,omitempty"`
	Lines    []Line    `json:"lines"`
}

// Version of a program that took part.
type Version struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Line is one figure.
type Line struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	// Median lies between the two in the middle where runs are even in number.
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// Bound is what the median must meet; empty where there is none, and then
	// Passed says that there was a figure.
	Bound  string    `json:"bound,omitempty"`
	Passed bool      `json:"passed"`
	Runs   []float64 `json:"runs"`
}

// New begins a report on this machine, today.
func New(name, title, about string) *Report {
	return &Report{Name: name, Title: title, About: about, Date: time.Now().UTC().Format(time.DateOnly), Machine: ThisMachine()}
}

// Peer records the version of a program that took part.
func (r *Report) Peer(name, version string) {
	r.Versions = append(r.Versions, Version{name, version})
}

// Add adds a figure with all its runs. A figure without a run, or with one that
// is not a finite number, does not pass, whatever its bound.
func (r *Report) Add(name, unit string, bound Bound, runs ...float64) {
	l := Line{Name: name, Unit: unit, Bound: bound.String(), Runs: slices.Clone(runs)}
	if n := len(runs); n > 0 && !slices.ContainsFunc(runs, notFinite) {
		sorted := slices.Sorted(slices.Values(runs))
		l.Median, l.Min, l.Max = (sorted[(n-1)/2]+sorted[n/2])/2, sorted[0], sorted[n-1]
		l.Passed = bound.holds(l.Median, runs)
	} else {
		l.Runs = nil // JSON has no word for them
	}
	r.Lines = append(r.Lines, l)
}

// Ratio adds ours/theirs of each round. Rounds that do not pair up are a figure
// that was not measured.
func (r *Report) Ratio(name string, bound Bound, ours, theirs []float64) {
	var ratios []float64
	if len(ours) == len(theirs) {
		for i := range ours {
			ratios = append(ratios, ours[i]/theirs[i])
		}
	}
	r.Add(name, "x", bound, ratios...)
}

func notFinite(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }

// Judge fails when a figure was not measured or its median missed its bound.
func (r *Report) Judge() error {
	var errs []error
	for _, l := range r.Lines {
		switch {
		case l.Passed:
		case len(l.Runs) == 0:
			errs = append(errs, fmt.Errorf("%s: not measured", l.Name))
		default:
			errs = append(errs, fmt.Errorf("%s: median %s %s of %s to %s, want %s", l.Name, number(l.Median), l.Unit, number(l.Min), number(l.Max), l.Bound))
		}
	}
	if len(r.Lines) == 0 {
		errs = append(errs, errors.New("nothing was measured"))
	}
	return errors.Join(errs...)
}

// Table is the report in Markdown, without title and explanation.
func (r *Report) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| figure | unit | median | min | max | bound | | runs |\n|---|---|---|---|---|---|---|---|\n")
	for _, l := range r.Lines {
		verdict := ""
		switch {
		case !l.Passed:
			verdict = "FAIL"
		case l.Bound != "":
			verdict = "pass"
		}
		var runs []string
		for _, v := range l.Runs {
			runs = append(runs, number(v))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", l.Name, l.Unit, number(l.Median), number(l.Min), number(l.Max),
			l.Bound, verdict, strings.Join(runs, ", "))
	}
	fmt.Fprintf(&b, "\n%s; %s", r.Machine, r.Date)
	for _, v := range r.Versions {
		fmt.Fprintf(&b, "; %s %s", v.Name, v.Version)
	}
	return b.String() + "\n"
}

// number shows four digits, or all that lie before the point.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case a >= 100:
		return fmt.Sprintf("%.1f", v)
	case a >= 10:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// Write keeps the report in a folder, as Name.json and Name.md.
func (r *Report) Write(dir string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("keep the report: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("keep the report: %w", err)
	}
	page := fmt.Sprintf("# %s\n\n%s Written by the run.\n\n%s", r.Title, r.About, r.Table())
	return errors.Join(
		os.WriteFile(filepath.Join(dir, r.Name+".json"), append(b, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, r.Name+".md"), []byte(page), 0o644),
	)
}

// Finish prints the table, keeps the report where dir is not empty, and judges
// it. A report that fails is kept too.
func (r *Report) Finish(dir string) error {
	fmt.Print(r.Table())
	if dir != "" {
		if err := r.Write(dir); err != nil {
			return err
		}
	}
	return r.Judge()
}

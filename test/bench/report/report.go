// Package report writes what a benchmark measured: a table for the terminal,
// and JSON and Markdown files in a folder.
//
// It owns what accompanies a figure: unit, every run, median and spread, the
// machine and its load, the date, the versions of peers, and the bound that the
// median has to meet. A figure without a run, or with a run that is not a
// number, counts as not measured and fails the report. The package measures
// nothing itself.
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

// Report is one measurement: New begins it, Add fills it, Finish prints,
// writes and judges it.
type Report struct {
	// Name of the files, without extension.
	Name string `json:"name"`
	// Title and About head the page: what was measured, and how.
	Title string `json:"title"`
	About string `json:"about"`
	// Date is the day, in UTC.
	Date    string  `json:"date"`
	Machine Machine `json:"machine"`
	// Versions of peers and of what they run on.
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
	// Median is the mean of the two middle runs if their number is even.
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// Bound is empty if there is none; Passed then only means that there was a
	// run.
	Bound  string    `json:"bound,omitempty"`
	Passed bool      `json:"passed"`
	Runs   []float64 `json:"runs"`
}

// New begins a report on this machine, today.
func New(name, title, about string) *Report {
	return &Report{Name: name, Title: title, About: about, Date: time.Now().UTC().Format(time.DateOnly), Machine: thisMachine()}
}

// Peer records the version of a program that took part.
func (r *Report) Peer(name, version string) {
	r.Versions = append(r.Versions, Version{name, version})
}

// Add adds a figure with all its runs.
func (r *Report) Add(name, unit string, bound Bound, runs ...float64) {
	l := Line{Name: name, Unit: unit, Bound: bound.String(), Runs: slices.Clone(runs)}
	if len(runs) > 0 && !slices.ContainsFunc(runs, notFinite) {
		l.Median, l.Min, l.Max = Median(runs), slices.Min(runs), slices.Max(runs)
		l.Passed = bound.holds(l.Median, runs)
	} else {
		l.Runs = nil // JSON cannot express NaN
	}
	r.Lines = append(r.Lines, l)
}

// Median of at least one run.
func Median(runs []float64) float64 {
	sorted := slices.Sorted(slices.Values(runs))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

func notFinite(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }

// Unmeasured names the figures without a run; a report without figures is an
// error, too.
func (r *Report) Unmeasured() error {
	var errs []error
	for _, l := range r.Lines {
		if len(l.Runs) == 0 {
			errs = append(errs, fmt.Errorf("%s: not measured", l.Name))
		}
	}
	if len(r.Lines) == 0 {
		errs = append(errs, errors.New("nothing was measured"))
	}
	return errors.Join(errs...)
}

// Missed names the figures that did not meet their bounds.
func (r *Report) Missed() error {
	var errs []error
	for _, l := range r.Lines {
		if !l.Passed && len(l.Runs) > 0 {
			errs = append(errs, fmt.Errorf("%s: median %s %s of %s to %s, want %s", l.Name, number(l.Median), l.Unit, number(l.Min), number(l.Max), l.Bound))
		}
	}
	return errors.Join(errs...)
}

// Judge returns an error if a figure was not measured or missed its bound.
func (r *Report) Judge() error { return errors.Join(r.Unmeasured(), r.Missed()) }

// Table returns the figures in Markdown, without title and explanation.
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

// number prints four significant digits, or all digits before the point.
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

// Write writes Name.json and Name.md into a folder.
func (r *Report) Write(dir string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	page := fmt.Sprintf("# %s\n\n%s\n\n%s", r.Title, r.About, r.Table())
	return errors.Join(
		os.WriteFile(filepath.Join(dir, r.Name+".json"), append(b, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, r.Name+".md"), []byte(page), 0o644),
	)
}

// Finish prints the table, writes the files if dir is not empty, and judges the
// report. A report that fails is written, too.
func (r *Report) Finish(dir string) error {
	fmt.Print(r.Table())
	if dir != "" {
		if err := r.Write(dir); err != nil {
			return err
		}
	}
	return r.Judge()
}

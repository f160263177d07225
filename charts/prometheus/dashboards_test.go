package prometheus

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql"
)

// dashboard is what we read of a Grafana dashboard.
type dashboard struct {
	UID        string  `json:"uid"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`
}

// variable is what a reader chooses at the top of a dashboard.
type variable struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Query string `json:"query"`
	// AllValue is the regular expression that selects everything.
	AllValue string `json:"allValue"`
}

// all replaces the variables of a query by what selects everything.
func (d dashboard) all(expr string) string {
	for _, v := range d.Templating.List {
		if v.AllValue != "" {
			expr = strings.ReplaceAll(expr, "$"+v.Name, v.AllValue)
		}
	}
	return expr
}

type panel struct {
	Title       string   `json:"title"`
	Type        string   `json:"type"`
	Panels      []panel  `json:"panels"` // of a row
	Targets     []target `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// target is one query.
type target struct {
	RefID        string `json:"refId"`
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
}

// units that a panel may have, by Grafana's names.
var units = map[string]bool{"reqps": true, "short": true, "s": true, "bytes": true}

// flat takes panels out of their rows.
func flat(panels []panel) (out []panel) {
	for _, p := range panels {
		if p.Type == "row" {
			out = append(out, flat(p.Panels)...)
		} else {
			out = append(out, p)
		}
	}
	return out
}

// check returns what is wrong with a panel over a recording.
func (p panel) check(t *testing.T, r recording) error {
	switch {
	case p.Title == "":
		return errors.New("it has no title")
	case p.Type != "timeseries":
		return fmt.Errorf("it is a %s, want timeseries", p.Type)
	case !units[p.FieldConfig.Defaults.Unit]:
		return fmt.Errorf("it has the unit %q, want one of %v", p.FieldConfig.Defaults.Unit, units)
	case len(p.Targets) == 0:
		return errors.New("it has no query")
	}
	var errs []error
	for _, q := range p.Targets {
		if err := q.check(t, r); err != nil {
			errs = append(errs, fmt.Errorf("query %s, %s: %w", q.RefID, q.Expr, err))
		}
	}
	return errors.Join(errs...)
}

// check wants a query to select series, to show something other than zero, and
// to name each line by labels that the result has.
func (q target) check(t *testing.T, r recording) error {
	if err := r.selectable(q.Expr); err != nil {
		return err
	}
	matrix, err := r.query(t.Context(), q.Expr, span)
	if err != nil {
		return err
	}
	if !shows(matrix) {
		return errors.New("it shows nothing but zero")
	}
	for _, s := range matrix {
		for _, m := range braces.FindAllStringSubmatch(q.LegendFormat, -1) {
			if !s.Metric.Has(m[1]) {
				return fmt.Errorf("the legend names the label %s, which the result %s lacks", m[1], s.Metric)
			}
		}
	}
	return nil
}

// labelValues finds the selector in the query of a variable.
var labelValues = regexp.MustCompile(`^label_values\((.+), \w+\)$`)

// braces find labels in a legend.
var braces = regexp.MustCompile(`\{\{\s*([\w.]+)\s*\}\}`)

func shows(matrix promql.Matrix) bool {
	for _, s := range matrix {
		for _, p := range s.Floats {
			if p.F > 0 {
				return true
			}
		}
	}
	return false
}

func fleet(t *testing.T) recording {
	t.Helper()
	var lines []string
	readYAML(t, "testdata/fleet.yaml", &lines)
	r, err := record(lines)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEveryQueryOfADashboardShowsSomething(t *testing.T) {
	r := fleet(t)
	files, err := filepath.Glob(chart + "/dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboard in the chart: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(flat(d.Panels)) == 0 {
			t.Errorf("%s: the dashboard has no panel", file)
		}
		for _, v := range d.Templating.List {
			if m := labelValues.FindStringSubmatch(d.all(v.Query)); v.Type == "query" && (m == nil || r.selectable(m[1]) != nil) {
				t.Errorf("%s: variable %s selects nothing by %s", file, v.Name, v.Query)
			}
		}
		for _, p := range flat(d.Panels) {
			for i := range p.Targets {
				p.Targets[i].Expr = d.all(p.Targets[i].Expr)
			}
			if err := p.check(t, r); err != nil {
				t.Errorf("%s, panel %q: %v", file, p.Title, err)
			}
		}
	}
}

func TestAPanelThatShowsNothingIsAnError(t *testing.T) {
	r, err := record([]string{`held_bytes{term="used",instance="a"} 5x60`, `held_bytes{term="swap",instance="a"} 0x60`})
	if err != nil {
		t.Fatal(err)
	}
	good := panel{Title: "It", Type: "timeseries", Targets: []target{{"A", `max by (instance) (held_bytes{term="used"})`, "{{ instance }}"}}}
	good.FieldConfig.Defaults.Unit = "bytes"
	if err := good.check(t, r); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*panel){
		"no title":          func(p *panel) { p.Title = "" },
		"is a gauge":        func(p *panel) { p.Type = "gauge" },
		"furlongs":          func(p *panel) { p.FieldConfig.Defaults.Unit = "furlongs" },
		"has no query":      func(p *panel) { p.Targets = nil },
		"nothing but zero":  func(p *panel) { p.Targets[0].Expr = `max by (instance) (held_bytes{term="swap"})` },
		"lacks":             func(p *panel) { p.Targets[0].LegendFormat = "{{term}}" },
		"parse error":       func(p *panel) { p.Targets[0].Expr = `held_bytes{instance=~"a"}[$__interval]` },
		"no series is sele": func(p *panel) { p.Targets[0].Expr = "hold_bytes" },
	} {
		p := good
		p.Targets = append([]target{}, good.Targets...)
		change(&p)
		if err := p.check(t, r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// dashboard is what we read of a Grafana dashboard.
type dashboard struct {
	UID        string  `json:"uid"`
	Title      string  `json:"title"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`

	name string // of its file
}

type panel struct {
	Title       string   `json:"title"`
	Description string   `json:"description"`
	Type        string   `json:"type"`
	Targets     []target `json:"targets"`
	Panels      []panel  `json:"panels"` // of a row
	FieldConfig struct {
		Defaults struct {
			Unit string   `json:"unit"`
			Min  *float64 `json:"min"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// target is one query.
type target struct {
	RefID        string `json:"refId"`
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
}

// variable of a dashboard.
type variable struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Query string `json:"query"`
}

// readDashboards reads every dashboard of a folder, in the order of their names.
func readDashboards(dir string) ([]*dashboard, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(fmt.Errorf("no dashboard in %s", dir), err)
	}
	var out []*dashboard
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("dashboard: %w", err)
		}
		d, err := parseDashboard(strings.TrimSuffix(filepath.Base(file), ".json"), b)
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", file, err)
		}
		out = append(out, d)
	}
	return out, nil
}

func parseDashboard(name string, b []byte) (*dashboard, error) {
	d := &dashboard{name: name}
	if err := json.Unmarshal(b, d); err != nil {
		return nil, err
	}
	d.Panels = flat(d.Panels)
	if len(d.Panels) == 0 {
		return nil, errors.New("it has no panel")
	}
	var errs []error
	files := map[string]bool{}
	for _, p := range d.Panels {
		_, known := units[p.FieldConfig.Defaults.Unit]
		switch {
		case p.Type != "timeseries":
			errs = append(errs, fmt.Errorf("panel %q is a %s: this program draws timeseries alone", p.Title, p.Type))
		case !known:
			errs = append(errs, fmt.Errorf("panel %q has the unit %q: add it to units", p.Title, p.FieldConfig.Defaults.Unit))
		case len(p.Targets) == 0:
			errs = append(errs, fmt.Errorf("panel %q has no query", p.Title))
		case p.Title == "" || files[slug(p.Title)]:
			errs = append(errs, fmt.Errorf("panel %q needs a title of its own: its picture is named after it", p.Title))
		}
		files[slug(p.Title)] = true
	}
	return d, errors.Join(errs...)
}

// flat takes panels out of their rows.
func flat(panels []panel) []panel {
	var out []panel
	for _, p := range panels {
		if p.Type == "row" {
			out = append(out, flat(p.Panels)...)
			continue
		}
		out = append(out, p)
	}
	return out
}

// slug is a title as part of a file's name.
func slug(title string) string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(title), "-"), "-")
}

// used finds variables as Grafana writes them: $name, ${name}, ${name:format},
// [[name]].
var used = regexp.MustCompile(`\$(\w+)|\$\{(\w+)(?::\w+)?\}|\[\[(\w+)(?::\w+)?\]\]`)

// resolve puts values in the place of variables. One without a value is
// refused: Grafana would send it as it stands.
func resolve(expr string, values map[string]string) (string, error) {
	var errs []error
	out := used.ReplaceAllStringFunc(expr, func(whole string) string {
		m := used.FindStringSubmatch(whole)
		name := m[1] + m[2] + m[3]
		value, known := values[name]
		if !known {
			errs = append(errs, fmt.Errorf("the variable %s has no value: the dashboard declares none of that name, or it is of a kind this program does not know", whole))
		}
		return value
	})
	return out, errors.Join(errs...)
}

// builtin are Grafana's own variables, for a picture with a point at each
// scrape.
func builtin(interval, length time.Duration) map[string]string {
	d := func(d time.Duration) string { return model.Duration(d.Round(time.Millisecond)).String() }
	return map[string]string{"__interval": d(interval), "__rate_interval": d(4 * interval), "__range": d(length)}
}

// labelValues is a variable's query for the values of a label, of all series or
// of those that a selector names.
var labelValues = regexp.MustCompile(`^label_values\((?:(.+),)?\s*(\w+)\s*\)$`)

// choices gives each variable of the dashboard the value "All": every value
// there is, as a regular expression.
func (d *dashboard) choices(valuesOf func(selector, label string) ([]string, error)) (map[string]string, error) {
	out := map[string]string{}
	var errs []error
	for _, v := range d.Templating.List {
		var all []string
		switch m := labelValues.FindStringSubmatch(strings.TrimSpace(v.Query)); {
		case v.Type == "datasource":
			continue // it is ours, and no query may name it
		case v.Type == "custom":
			for s := range strings.SplitSeq(v.Query, ",") {
				all = append(all, strings.TrimSpace(s))
			}
		case v.Type == "query" && m != nil:
			found, err := valuesOf(strings.TrimSpace(m[1]), m[2])
			if err != nil {
				errs = append(errs, fmt.Errorf("variable %s: %w", v.Name, err))
			}
			all = found
		default:
			errs = append(errs, fmt.Errorf("variable %s is of the type %s with the query %q: this program knows datasource, custom and label_values(...)", v.Name, v.Type, v.Query))
			continue
		}
		if len(all) == 0 {
			errs = append(errs, fmt.Errorf("variable %s has no value to choose: %s", v.Name, v.Query))
		}
		for i, s := range all {
			all[i] = regexp.QuoteMeta(s)
		}
		out[v.Name] = "(" + strings.Join(all, "|") + ")"
	}
	return out, errors.Join(errs...)
}

// braces find labels in a legend.
var braces = regexp.MustCompile(`\{\{\s*([\w.]+)\s*\}\}`)

// legend names a line. A label that the line lacks is refused: the dashboard
// would show an empty name.
func legend(format string, labels map[string]string) (string, error) {
	var errs []error
	out := braces.ReplaceAllStringFunc(format, func(whole string) string {
		name := braces.FindStringSubmatch(whole)[1]
		value, has := labels[name]
		if !has {
			errs = append(errs, fmt.Errorf("the legend %q names the label %s, which the result %v lacks", format, name, labels))
		}
		return value
	})
	return out, errors.Join(errs...)
}

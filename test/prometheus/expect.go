package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/prometheus/prometheus/rules"
)

// expectations say what the story lets queries and alerts show. Each query must
// give values; one that is not named shows something other than zero, and an
// alert that is not named stays inactive.
type expectations struct {
	// Silent queries show nothing but zero. One that does show something is an
	// error: the entry is out of date, or the story had a fault.
	Silent []place `yaml:"silent"`
	// Either are queries that chance decides on.
	Either []place `yaml:"either"`
	// Reach are values that a line comes to and does not pass.
	Reach []reach `yaml:"reach"`
	// Alerts that come to a state other than inactive.
	Alerts []alertExpected `yaml:"alerts"`
}

// place is a query, with the reason why it is named.
type place struct {
	Dashboard string `yaml:"dashboard"` // its uid
	Panel     string `yaml:"panel"`
	Query     string `yaml:"query"`
	Because   string `yaml:"because"`
}

func (p place) key() string {
	return fmt.Sprintf("dashboard %s, panel %q, query %s", p.Dashboard, p.Panel, p.Query)
}

type reach struct {
	place `yaml:",inline"`
	Line  string  `yaml:"line"`
	Most  float64 `yaml:"most"`
}

type alertExpected struct {
	Alert   string `yaml:"alert"`
	State   string `yaml:"state"`
	Because string `yaml:"because"`
	// Chance: it may stay inactive too.
	Chance bool `yaml:"chance"`
}

func readExpectations(path string) (expectations, error) {
	var e expectations
	b, err := os.ReadFile(path)
	if err != nil {
		return e, fmt.Errorf("expectations: %w", err)
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&e); err != nil {
		return e, fmt.Errorf("expectations of %s: %w", path, err)
	}
	var errs []error
	for _, p := range e.places() {
		if p.Because == "" {
			errs = append(errs, fmt.Errorf("%s: %s is named without a reason: say because", path, p.key()))
		}
	}
	for _, a := range e.Alerts {
		if a.Because == "" || (a.State != rules.StatePending.String() && a.State != rules.StateFiring.String()) {
			errs = append(errs, fmt.Errorf("%s: alert %s: the state is pending or firing, with a reason", path, a.Alert))
		}
	}
	return e, errors.Join(errs...)
}

func (e expectations) places() []place {
	all := append(append([]place{}, e.Silent...), e.Either...)
	for _, r := range e.Reach {
		all = append(all, r.place)
	}
	return all
}

// check compares what is expected with what was seen. An entry that names
// nothing is an error too: the query it meant is judged by nobody.
func (e expectations) check(s *seen) error {
	answers := map[string]answer{}
	var order []string
	for _, d := range s.dashboards {
		for _, p := range d.panels {
			for _, a := range p.answers {
				key := place{Dashboard: d.UID, Panel: p.Title, Query: a.RefID}.key()
				answers[key], order = a, append(order, key)
			}
		}
	}
	var errs []error
	for _, p := range e.places() {
		if _, known := answers[p.key()]; !known {
			errs = append(errs, fmt.Errorf("%s is expected to be there and is not", p.key()))
		}
	}
	silent, either := map[string]bool{}, map[string]bool{}
	for _, p := range e.Silent {
		silent[p.key()] = true
	}
	for _, p := range e.Either {
		either[p.key()] = true
	}
	for _, key := range order {
		switch shows := answers[key].shows(); {
		case len(answers[key].lines) == 0:
			errs = append(errs, fmt.Errorf("%s gives nothing: %s", key, answers[key].expr))
		case either[key]:
		case silent[key] && shows:
			errs = append(errs, fmt.Errorf("%s is expected to be silent and shows something: %s", key, answers[key].expr))
		case !silent[key] && !shows:
			errs = append(errs, fmt.Errorf("%s shows nothing but zero: %s", key, answers[key].expr))
		}
	}
	for _, r := range e.Reach {
		errs = append(errs, r.check(answers[r.key()]))
	}
	return errors.Join(append(errs, e.checkAlerts(s.alerts))...)
}

func (r reach) check(a answer) error {
	for _, l := range a.lines {
		if l.name == r.Line {
			if most := l.most(); most != r.Most {
				return fmt.Errorf("%s: the line %q comes to %g, want %g (%s): %s", r.key(), r.Line, most, r.Most, r.Because, a.expr)
			}
			return nil
		}
	}
	return fmt.Errorf("%s: there is no line %q", r.key(), r.Line)
}

func (e expectations) checkAlerts(all []alertSeen) error {
	want, chance := map[string]string{}, map[string]bool{}
	for _, a := range e.Alerts {
		want[a.Alert], chance[a.Alert] = a.State, a.Chance
	}
	var errs []error
	for _, a := range all {
		expected, named := want[a.Alert]
		if !named {
			expected = rules.StateInactive.String()
		}
		if got := a.state.String(); got != expected && !(chance[a.Alert] && a.state == rules.StateInactive) {
			errs = append(errs, fmt.Errorf("alert %s came to %s, want %s: %s", a.Alert, got, expected, a.Expr))
		}
		delete(want, a.Alert)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		errs = append(errs, fmt.Errorf("alert %s is expected and there is none of that name", name))
	}
	return errors.Join(errs...)
}

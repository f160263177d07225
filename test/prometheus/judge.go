package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// seen is all that the recording shows.
type seen struct {
	dashboards []shown
	alerts     []alertSeen
}

// shown is a dashboard with its lines.
type shown struct {
	*dashboard
	panels []shownPanel
}

type shownPanel struct {
	panel
	answers []answer
}

// answer is what one query shows.
type answer struct {
	target
	expr  string // with the values of variables
	lines []line
}

// line is one series of an answer. What is no number is left out.
type line struct {
	name   string
	points []promql.FPoint
}

// most is the highest value.
func (l line) most() float64 {
	most := math.Inf(-1)
	for _, p := range l.points {
		most = math.Max(most, p.F)
	}
	return most
}

// shows says whether there is anything but zero.
func (a answer) shows() bool {
	for _, l := range a.lines {
		for _, p := range l.points {
			if p.F != 0 {
				return true
			}
		}
	}
	return false
}

// asker runs queries over a recording.
type asker struct {
	*recording
	engine *promql.Engine
	parser parser.Parser
}

func newAsker(r *recording) asker {
	p := parser.NewParser(parser.Options{})
	return asker{r, promql.NewEngine(promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Minute, EnableAtModifier: true, EnableNegativeOffset: true, Parser: p}), p}
}

// judge runs every query and every alert, and joins all that is wrong with
// them.
func judge(ctx context.Context, r *recording, dashboards []*dashboard, alerts []alert, expected expectations) (*seen, error) {
	a := newAsker(r)
	out := &seen{}
	var errs []error
	for _, d := range dashboards {
		s, err := a.dashboard(ctx, d)
		if err != nil {
			errs = append(errs, fmt.Errorf("dashboard %s: %w", d.UID, err))
		}
		out.dashboards = append(out.dashboards, s)
	}
	for _, al := range alerts {
		s, err := a.alert(ctx, al)
		if err != nil {
			errs = append(errs, fmt.Errorf("alert %s: %w", al.Alert, err))
		}
		out.alerts = append(out.alerts, s)
	}
	if len(errs) == 0 { // else what is expected of it says nothing
		errs = append(errs, expected.check(out))
	}
	return out, errors.Join(errs...)
}

func (a asker) dashboard(ctx context.Context, d *dashboard) (shown, error) {
	out := shown{dashboard: d}
	chosen, err := d.choices(func(selector, label string) ([]string, error) { return a.values(ctx, selector, label) })
	errs := []error{err}
	values := builtin(a.interval, a.to.Sub(a.from))
	for name, v := range chosen {
		values[name] = v
	}
	for _, p := range d.Panels {
		sp := shownPanel{panel: p}
		for _, t := range p.Targets {
			answer, err := a.query(ctx, t, values)
			if err != nil {
				errs = append(errs, fmt.Errorf("panel %q, query %s: %w", p.Title, t.RefID, err))
			}
			sp.answers = append(sp.answers, answer)
		}
		out.panels = append(out.panels, sp)
	}
	return out, errors.Join(errs...)
}

// query runs one query, with a point at each scrape.
func (a asker) query(ctx context.Context, t target, values map[string]string) (answer, error) {
	out := answer{target: t}
	var err error
	if out.expr, err = resolve(t.Expr, values); err != nil {
		return out, err
	}
	if err := a.known(ctx, out.expr); err != nil {
		return out, err
	}
	q, err := a.engine.NewRangeQuery(ctx, a.db, nil, out.expr, a.from, a.to, a.interval)
	if err != nil {
		return out, err
	}
	defer q.Close()
	matrix, err := q.Exec(ctx).Matrix()
	if err != nil {
		return out, err
	}
	sort.Sort(matrix)
	var errs []error
	for _, s := range matrix {
		if len(s.Histograms) > 0 {
			errs = append(errs, fmt.Errorf("%s gives histograms, which nothing here draws", out.expr))
		}
		name, err := legend(t.LegendFormat, s.Metric.Map())
		if err != nil {
			errs = append(errs, err)
		}
		l := line{name: name}
		for _, p := range s.Floats {
			if !math.IsNaN(p.F) && !math.IsInf(p.F, 0) {
				l.points = append(l.points, p)
			}
		}
		if len(l.points) > 0 {
			out.lines = append(out.lines, l)
		}
	}
	return out, errors.Join(errs...)
}

// known wants each selector of an expression to select at least one series that
// a target exposed: a name or a label with a slip in it gives no error in
// Prometheus, but an empty picture, and an alert that never fires.
func (a asker) known(ctx context.Context, expr string) error {
	parsed, err := a.parser.ParseExpr(expr)
	if err != nil {
		return err
	}
	var errs []error
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		s, is := n.(*parser.VectorSelector)
		if !is {
			return nil
		}
		found, err := a.series(ctx, s.LabelMatchers)
		switch {
		case err != nil:
			errs = append(errs, err)
		case len(found) > 0:
		case s.Name == "":
			errs = append(errs, fmt.Errorf("no target exposes a series that %s selects", s))
		default:
			named, err := a.series(ctx, []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, s.Name)})
			if errs = append(errs, err); err == nil && len(named) == 0 {
				errs = append(errs, fmt.Errorf("no target exposes a series %s", s.Name))
			} else if err == nil {
				errs = append(errs, fmt.Errorf("there are series %s, but none that %s selects", s.Name, s))
			}
		}
		return nil
	})
	return errors.Join(errs...)
}

// series are those of the recording that the matchers select.
func (a asker) series(ctx context.Context, matchers []*labels.Matcher) ([]labels.Labels, error) {
	q, err := a.db.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	set := q.Select(ctx, true, nil, matchers...)
	var out []labels.Labels
	for set.Next() {
		out = append(out, set.At().Labels())
	}
	return out, set.Err()
}

// values are those of a label, for a variable.
func (a asker) values(ctx context.Context, selector, label string) ([]string, error) {
	matchers := []*labels.Matcher{labels.MustNewMatcher(labels.MatchNotEqual, label, "")}
	if selector != "" {
		if err := a.known(ctx, selector); err != nil {
			return nil, err
		}
		more, err := a.parser.ParseMetricSelector(selector)
		if err != nil {
			return nil, err
		}
		matchers = append(matchers, more...)
	}
	series, err := a.series(ctx, matchers)
	if err != nil {
		return nil, err
	}
	var out []string
	had := map[string]bool{}
	for _, s := range series {
		if v := s.Get(label); !had[v] {
			had[v] = true
			out = append(out, v)
		}
	}
	sort.Strings(out)
	return out, nil
}

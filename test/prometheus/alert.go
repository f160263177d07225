package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
)

// alert is a rule of the chart.
type alert struct{ rulefmt.Rule }

// alertSeen is what came of it.
type alertSeen struct {
	alert
	state rules.AlertState // the highest it came to
}

// readAlerts reads the chart's groups of rules, judged by Prometheus' own
// loader.
func readAlerts(path string) ([]alert, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	groups, errs := rulefmt.Parse(b, false, model.UTF8Validation, parser.NewParser(parser.Options{}), promslog.NewNopLogger())
	if len(errs) > 0 {
		return nil, fmt.Errorf("rules of %s: %w", path, errors.Join(errs...))
	}
	var out []alert
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				return nil, fmt.Errorf("rules of %s: %s records a series: this program knows alerts alone", path, r.Record)
			}
			out = append(out, alert{r})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("rules of %s: there is no alert", path)
	}
	return out, nil
}

// alert evaluates a rule at each scrape, as Prometheus would: it waits as long
// as "for" says before it fires.
func (a asker) alert(ctx context.Context, al alert) (alertSeen, error) {
	out := alertSeen{alert: al}
	if err := a.known(ctx, al.Expr); err != nil {
		return out, err
	}
	expr, err := a.parser.ParseExpr(al.Expr)
	if err != nil {
		return out, err
	}
	rule := rules.NewAlertingRule(al.Alert, expr, time.Duration(al.For), time.Duration(al.KeepFiringFor),
		labels.FromMap(al.Labels), labels.FromMap(al.Annotations), labels.EmptyLabels(), "", true, promslog.NewNopLogger())
	query := rules.EngineQueryFunc(a.engine, a.db)
	for at := a.from; !at.After(a.to); at = at.Add(a.interval) {
		if _, err := rule.Eval(ctx, 0, at, query, nil, 0); err != nil {
			return out, err
		}
		rule.SetEvaluationTimestamp(at) // without one its state is unknown
		out.state = max(out.state, rule.State())
	}
	return out, nil
}

package prometheus

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// interval is the time between two samples, and between two evaluations.
const interval = time.Minute

// recording is a set of series that begin at time 0.
type recording []promql.Series

// record reads series in the notation of promtool: `name{label="value"} 0+1x60`
// has 61 samples that grow by one.
func record(lines []string) (recording, error) {
	p := parser.NewParser(parser.Options{})
	var out recording
	for _, line := range lines {
		metric, values, err := p.ParseSeriesDesc(line)
		if err != nil {
			return nil, fmt.Errorf("series %q: %w", line, err)
		}
		s := promql.Series{Metric: metric}
		for i, v := range values {
			if !v.Omitted {
				s.Floats = append(s.Floats, promql.FPoint{T: int64(i) * interval.Milliseconds(), F: v.Value})
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// matching are the series that all matchers accept.
func (r recording) matching(matchers []*labels.Matcher) (out recording) {
	for _, s := range r {
		ok := true
		for _, m := range matchers {
			ok = ok && m.Matches(s.Metric.Get(m.Name))
		}
		if ok {
			out = append(out, s)
		}
	}
	return out
}

// selectable returns an error for each selector of an expression that selects
// no series. Prometheus accepts a misspelt name: the alert then never fires and
// the panel stays empty.
func (r recording) selectable(expr string) error {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return err
	}
	var missing []string
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok && len(r.matching(s.LabelMatchers)) == 0 {
			missing = append(missing, s.String())
		}
		return nil
	})
	if len(missing) > 0 {
		return fmt.Errorf("no series is selected by %s", strings.Join(missing, ", "))
	}
	return nil
}

// query evaluates an expression at each interval of a time span.
func (r recording) query(ctx context.Context, expr string, length time.Duration) (promql.Matrix, error) {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	q, err := engine.NewRangeQuery(ctx, r, nil, expr, time.UnixMilli(0), time.UnixMilli(0).Add(length), interval)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	matrix, err := q.Exec(ctx).Matrix()
	if err != nil {
		return nil, err
	}
	out := make(promql.Matrix, len(matrix)) // the engine reuses its own when q is closed
	for i, s := range matrix {
		out[i] = promql.Series{Metric: s.Metric.Copy(), Floats: append([]promql.FPoint{}, s.Floats...)}
	}
	return out, nil
}

// Querier makes a recording a storage.Queryable.
func (r recording) Querier(_, _ int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		return &seriesSet{rest: r.matching(matchers)}
	}}, nil
}

// seriesSet iterates over series.
type seriesSet struct{ now, rest recording }

func (s *seriesSet) Next() bool {
	if len(s.rest) == 0 {
		return false
	}
	s.now, s.rest = s.rest[:1], s.rest[1:]
	return true
}

func (s *seriesSet) At() storage.Series                { return promql.NewStorageSeries(s.now[0]) }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

func TestASelectorWithoutSeriesIsAnError(t *testing.T) {
	r, err := record([]string{`asked_total{status="200"} 0+1x10`})
	if err != nil {
		t.Fatal(err)
	}
	for expr, want := range map[string]string{
		"sum(rate(asked_total[5m]))":            "",
		`asked_total{status=~"2.."}`:            "",
		"sum(rate(aksed_total[5m]))":            "aksed_total",
		`absent(asked_total{status="500"})`:     "asked_total{status=\"500\"}",
		"sum(asked_total":                       "parse error",
		`asked_total{status="200"} / other > 0`: "other",
	} {
		err := r.selectable(expr)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", expr, err, want)
		}
	}
	if _, err := record([]string{"asked_total 0+1x"}); err == nil {
		t.Error("a series without a number of samples was accepted")
	}
}

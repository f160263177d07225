package prometheus

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const chart = "../metalfleet/files"

// scenario is a set of series, and when an alert fires over them.
type scenario struct {
	Alert  string   `yaml:"alert"`
	What   string   `yaml:"what"`
	Series []string `yaml:"series"`
	// Fires is the time of the first evaluation at which it fires; empty: it does not.
	Fires string `yaml:"fires"`
}

// span is how long an alert is evaluated.
const span = time.Hour

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// alerts reads rules with Prometheus' own loader, by name.
func alerts(b []byte) (map[string]rulefmt.Rule, error) {
	groups, errs := rulefmt.Parse(b, false, model.UTF8Validation, parser.NewParser(parser.Options{}), promslog.NewNopLogger())
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	out := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			out[r.Alert] = r
		}
	}
	return out, nil
}

// fires returns the time of the first evaluation at which an expression has
// had a result for as long as the alert waits; negative: never.
func fires(t *testing.T, r recording, rule rulefmt.Rule) time.Duration {
	t.Helper()
	matrix, err := r.query(t.Context(), rule.Expr, span)
	if err != nil {
		t.Fatal(err)
	}
	first := time.Duration(-1)
	for _, s := range matrix {
		since, last := time.Duration(-1), time.Duration(-1)
		for _, p := range s.Floats {
			at := time.Duration(p.T) * time.Millisecond
			if since < 0 || at-last > interval {
				since = at
			}
			last = at
			if at-since >= time.Duration(rule.For) {
				if first < 0 || at < first {
					first = at
				}
				break
			}
		}
	}
	return first
}

func TestAlertsFireOverTheirSeries(t *testing.T) {
	b, err := os.ReadFile(chart + "/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := alerts(b)
	if err != nil {
		t.Fatal(err)
	}
	var scenarios []scenario
	readYAML(t, "testdata/alerts.yaml", &scenarios)
	fired, silent := map[string]bool{}, map[string]bool{}
	for _, s := range scenarios {
		t.Run(s.Alert+"/"+s.What, func(t *testing.T) {
			rule, known := rules[s.Alert]
			if !known {
				t.Fatalf("the chart has no alert %s", s.Alert)
			}
			r, err := record(s.Series)
			if err != nil {
				t.Fatal(err)
			}
			want := time.Duration(-1)
			if s.Fires != "" {
				if want, err = time.ParseDuration(s.Fires); err != nil {
					t.Fatal(err)
				}
			}
			if got := fires(t, r, rule); got != want {
				t.Errorf("it fires at %s, want %s: %s", got, want, rule.Expr)
			}
			fired[s.Alert], silent[s.Alert] = fired[s.Alert] || want >= 0, silent[s.Alert] || want < 0
		})
	}
	for name := range rules {
		if !fired[name] || !silent[name] {
			t.Errorf("testdata/alerts.yaml needs for the alert %s a scenario in which it fires and one in which it does not", name)
		}
	}
}

// anchor is the link of a heading in Markdown, as forges make it.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(strings.TrimLeft(heading, "#"))) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		}
	}
	return b.String()
}

func TestAlertsLinkToARunbook(t *testing.T) {
	b, err := os.ReadFile(chart + "/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := alerts(b)
	if err != nil {
		t.Fatal(err)
	}
	for name, rule := range rules {
		path, section, _ := strings.Cut(rule.Annotations["runbook_url"], "#")
		path, ours := strings.CutPrefix(path, "https://metalfleet.dev/metalfleet/")
		text, err := os.ReadFile("../../" + path)
		if !ours || err != nil {
			t.Errorf("%s: its runbook is %q: %v", name, rule.Annotations["runbook_url"], err)
			continue
		}
		found := section == ""
		for line := range strings.Lines(string(text)) {
			found = found || strings.HasPrefix(line, "#") && anchor(line) == section
		}
		if !found {
			t.Errorf("%s: %s has no section %s", name, path, section)
		}
	}
}

func TestRulesThatPrometheusRefusesAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"an expression with an error": `{groups: [{name: g, rules: [{alert: A, expr: "sum("}]}]}`,
		"an unknown field":            `{groups: [{name: g, rules: [{alert: A, expr: x, fro: 5m}]}]}`,
		"a template with an error":    `{groups: [{name: g, rules: [{alert: A, expr: x, annotations: {summary: "{{ $vale }}"}}]}]}`,
	} {
		if _, err := alerts([]byte(text)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
)

func TestVariablesAreResolved(t *testing.T) {
	values := builtin(2*time.Second, 90*time.Second)
	values["mac"] = "(a|b)"
	for expr, want := range map[string]string{
		`rate(x[$__rate_interval])`:     `rate(x[8s])`,
		`x[${__range}:$__interval]`:     `x[1m30s:2s]`,
		`x{i=~"$mac",j=~"[[mac:raw]]"}`: `x{i=~"(a|b)",j=~"(a|b)"}`,
		`x{path=~".*\\.go$"}`:           `x{path=~".*\\.go$"}`,
	} {
		if got, err := resolve(expr, values); err != nil || got != want {
			t.Errorf("%s becomes %s, %v; want %s", expr, got, err, want)
		}
	}
	if _, err := resolve("x{i=~\"$datasource\"}", values); err == nil {
		t.Error("a variable without a value is no error")
	}
}

func TestADashboardOfWhatIsNotKnownIsRefused(t *testing.T) {
	whole := `{"uid": "f", "panels": [{"type": "row", "panels": [{"title": "It", "type": "timeseries", "fieldConfig": {"defaults": {"unit": "s"}}, "targets": [{"refId": "A", "expr": "x"}]}]}]}`
	d, err := parseDashboard("f", []byte(whole))
	if err != nil || len(d.Panels) != 1 || d.Panels[0].Targets[0].Expr != "x" {
		t.Fatalf("%+v, %v", d, err)
	}
	for what, change := range map[string][2]string{
		"a panel of another type": {`"timeseries"`, `"gauge"`},
		"another unit":            {`"unit": "s"`, `"unit": "furlongs"`},
		"a panel without queries": {`{"refId": "A", "expr": "x"}`, ``},
		"a panel without a title": {`"It"`, `""`},
		"no panel":                {`"panels": [{"type": "row",`, `"panels": [], "other": [{`},
		"no JSON":                 {`{`, ``},
	} {
		if _, err := parseDashboard("f", []byte(strings.Replace(whole, change[0], change[1], 1))); err == nil {
			t.Errorf("%s is no error", what)
		}
	}
}

func TestExpectationsAreHeld(t *testing.T) {
	silent, loud := answer{target: target{RefID: "A"}, lines: []line{{"a", []promql.FPoint{{F: 0}}}}}, answer{target: target{RefID: "B"}, lines: []line{{"b", []promql.FPoint{{F: 1}, {F: 2}}}}}
	d := shown{dashboard: &dashboard{UID: "f"}, panels: []shownPanel{{panel: panel{Title: "It"}, answers: []answer{silent, loud}}}}
	empty := shown{dashboard: d.dashboard, panels: []shownPanel{{panel: panel{Title: "It"}, answers: []answer{silent, loud, {target: target{RefID: "E"}}}}}}
	var al alert
	al.Alert = "Al"
	s := &seen{dashboards: []shown{d}, alerts: []alertSeen{{al, rules.StatePending}}}
	at := func(query string) place { return place{"f", "It", query, "it is so"} }
	good := expectations{Silent: []place{at("A")}, Reach: []reach{{at("B"), "b", 2}}, Alerts: []alertExpected{{"Al", "pending", "it is so", false}}}
	if err := good.check(s); err != nil {
		t.Error(err)
	}
	either := good
	either.Silent, either.Either = nil, []place{at("A"), at("B")}
	if err := either.check(s); err != nil {
		t.Error(err)
	}
	chance := good
	chance.Alerts = []alertExpected{{"Al", "firing", "it is so", true}}
	if chance.check(s) == nil {
		t.Error("an alert that came to neither state is no error")
	}
	inactive := *s
	inactive.alerts = []alertSeen{{al, rules.StateInactive}}
	if err := chance.check(&inactive); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*expectations){
		"a query that should show something": func(e *expectations) { e.Silent = nil },
		"a query that should not":            func(e *expectations) { e.Silent = append(e.Silent, at("B")) },
		"a query that is not there":          func(e *expectations) { e.Either = []place{at("C")} },
		"a line that comes to more":          func(e *expectations) { e.Reach = []reach{{at("B"), "b", 1}} },
		"a line that comes to less":          func(e *expectations) { e.Reach = []reach{{at("B"), "b", 4}} },
		"a line that is not there":           func(e *expectations) { e.Reach = []reach{{at("B"), "c", 2}} },
		"a query that gives nothing":         func(e *expectations) { e.Either = append(e.Either, at("E")) },
		"an alert that nobody expects":       func(e *expectations) { e.Alerts = nil },
		"an alert that should fire":          func(e *expectations) { e.Alerts[0].State = "firing" },
		"an alert that is not there": func(e *expectations) {
			e.Alerts = append(e.Alerts, alertExpected{"Other", "firing", "it is so", false})
		},
	} {
		e := good
		e.Silent, e.Alerts = slices.Clone(good.Silent), slices.Clone(good.Alerts)
		change(&e)
		all := *s
		if len(e.Either) > 0 && e.Either[0].Query == "E" {
			all.dashboards = []shown{empty}
		}
		if e.check(&all) == nil {
			t.Errorf("%s is no error", what)
		}
	}
}

func TestAnExpectationWantsAReason(t *testing.T) {
	for text, good := range map[string]bool{
		"silent: [{dashboard: f, panel: It, query: A, because: nothing fails}]":             true,
		"reach: [{dashboard: f, panel: It, query: A, line: b, most: 2, because: it is so}]": true,
		"silent: [{dashboard: f, panel: It, query: A}]":                                     false,
		"reach: [{dashboard: f, panel: It, query: A, line: b, most: 2}]":                    false,
		"quiet: []":                            false,
		"alerts: [{alert: A, state: pending}]": false,
		"alerts: [{alert: A, state: loud, because: it is so}]": false,
	} {
		if _, err := readExpectations(file(t, "e.yaml", text)); (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestRulesThatPrometheusRefusesAreRefused(t *testing.T) {
	for what, text := range map[string]string{
		"an expression with an error": `{groups: [{name: g, rules: [{alert: A, expr: "sum("}]}]}`,
		"a field that is not known":   `{groups: [{name: g, rules: [{alert: A, expr: x, fro: 5m}]}]}`,
		"a template with an error":    `{groups: [{name: g, rules: [{alert: A, expr: x, annotations: {summary: "{{ $vale }}"}}]}]}`,
		"a recording rule":            `{groups: [{name: g, rules: [{record: a, expr: x}]}]}`,
		"no rule":                     `{groups: []}`,
	} {
		if _, err := readAlerts(file(t, "rules.yaml", text)); err == nil {
			t.Errorf("%s is no error", what)
		}
	}
}

func TestAxesHaveRoundMarks(t *testing.T) {
	for _, c := range []struct {
		unit  string
		most  float64
		whole bool
		want  []string
	}{
		{"bytes", 48 << 30, false, []string{"0 GiB", "20 GiB", "40 GiB", "60 GiB"}},
		{"bytes", 4.2 * (1 << 20), false, []string{"0 MiB", "2 MiB", "4 MiB", "6 MiB"}},
		{"s", 0.034, false, []string{"0 ms", "10 ms", "20 ms", "30 ms", "40 ms"}},
		{"reqps", 0.31, false, []string{"0.0 req/s", "0.1 req/s", "0.2 req/s", "0.3 req/s", "0.4 req/s"}},
		{"short", 2, true, []string{"0", "1", "2"}},
		{"short", 2, false, []string{"0.0", "0.5", "1.0", "1.5", "2.0"}},
		{"short", 0, true, []string{"0", "1"}},
	} {
		var got []string
		for _, m := range units[c.unit].marks(c.most, c.whole) {
			got = append(got, m.words)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%g %s: %q, want %q", c.most, c.unit, got, c.want)
		}
	}
}

func TestMissingSamplesLeaveAGap(t *testing.T) {
	got := pieces([]promql.FPoint{{T: 1000}, {T: 2000}, {T: 5000}, {T: 7000}, {T: 8000}}, time.Second)
	if len(got) != 3 || len(got[0]) != 2 || len(got[1]) != 1 || len(got[2]) != 2 {
		t.Errorf("the pieces are %v", got)
	}
}

func TestFileNamesOfTitles(t *testing.T) {
	for title, want := range map[string]string{"Memory of each Mac": "memory-of-each-mac", "Pressure (0 Normal to 3)": "pressure-0-normal-to-3"} {
		if got := slug(title); got != want {
			t.Errorf("%q is %q", title, got)
		}
	}
}

func TestTheChartsOwnFilesAreKnown(t *testing.T) {
	dashboards, err := readDashboards("../../charts/metalfleet/files/dashboards")
	if err != nil {
		t.Fatal(err)
	}
	alerts, err := readAlerts("../../charts/metalfleet/files/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	e, err := readExpectations("../e2e/dashboards.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// Over nothing all is silent; what is asked for must be there all the same.
	s := &seen{}
	for _, d := range dashboards {
		sh := shown{dashboard: d}
		for _, p := range d.Panels {
			sp := shownPanel{panel: p}
			for _, q := range p.Targets {
				sp.answers = append(sp.answers, answer{target: q, lines: []line{{"", []promql.FPoint{{}}}}})
			}
			sh.panels = append(sh.panels, sp)
		}
		s.dashboards = append(s.dashboards, sh)
	}
	for _, al := range alerts {
		s.alerts = append(s.alerts, alertSeen{al, rules.StateInactive})
	}
	if err := e.check(s); err == nil || strings.Contains(err.Error(), "expected to be there") || strings.Contains(err.Error(), "none of that name") {
		t.Errorf("test/e2e/dashboards.yaml: %v", err)
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// fake is a target whose counter goes up with each scrape.
func fake(t *testing.T) (address string, scrapes *atomic.Int64) {
	t.Helper()
	scrapes = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := scrapes.Add(1)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprintf(w, "# TYPE asked_total counter\nasked_total{status=\"200\"} %d\nasked_total{status=\"503\"} 0\n", n)
		fmt.Fprintf(w, "# TYPE held_bytes gauge\nheld_bytes{term=\"reserved\"} %d\nheld_bytes{term=\"swap\"} 0\n# TYPE late gauge\nlate 0\n", 3<<30)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), scrapes
}

// recorded scrapes two fake Macs six times.
func recorded(t *testing.T) *recording {
	t.Helper()
	first, scrapes := fake(t)
	second, _ := fake(t)
	groups := []map[string]any{
		{"targets": []string{first}, "labels": map[string]string{"instance": "studio-1"}},
		{"targets": []string{second}, "labels": map[string]string{"instance": "mini-2"}},
	}
	b, err := json.Marshal(groups)
	if err != nil {
		t.Fatal(err)
	}
	targets, err := readTargets(file(t, "targets.json", string(b)))
	if err != nil {
		t.Fatal(err)
	}
	in, notes := io.Pipe()
	heard, said := io.Pipe()
	go func() {
		defer notes.Close()
		if _, err := heard.Read(make([]byte, 64)); err != nil {
			return
		}
		fmt.Fprintln(notes, "it begins")
		for until := scrapes.Load() + 6; scrapes.Load() < until; time.Sleep(time.Millisecond) {
		}
		fmt.Fprintln(notes, "it ends")
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := record(ctx, recorder{targets: targets, dir: t.TempDir(), interval: 50 * time.Millisecond, notes: in, said: said})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// of makes a dashboard with one panel and these queries, called A, B and so on.
func of(queries ...target) *dashboard {
	d := &dashboard{UID: "fleet", Title: "fleet", name: "fleet"}
	p := panel{Title: "It", Type: "timeseries"}
	p.FieldConfig.Defaults.Unit = "bytes"
	for i, q := range queries {
		q.RefID = string(rune('A' + i))
		p.Targets = append(p.Targets, q)
	}
	d.Panels = []panel{p}
	return d
}

func TestARunIsRecordedJudgedAndDrawn(t *testing.T) {
	r := recorded(t)
	if len(r.notes) != 2 || r.notes[0].text != "it begins" || r.notes[1].at.Before(r.notes[0].at) {
		t.Errorf("the notes are %v", r.notes)
	}
	d := of(target{Expr: "sum by (status) (rate(asked_total[$__rate_interval]))", LegendFormat: "status {{status}}"},
		target{Expr: `max by (instance) (held_bytes{term="reserved"})`, LegendFormat: "reserved {{ instance }}"})
	alerts, err := readAlerts(file(t, "rules.yaml", `{groups: [{name: g, rules: [{alert: Quiet, expr: "late > 0"}, {alert: Loud, expr: "held_bytes > 0"}, {alert: Patient, expr: "held_bytes > 0", for: 1h}, {alert: Gone, expr: "absent(late)"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	s, err := judge(t.Context(), r, []*dashboard{d}, alerts, expectations{
		Reach:  []reach{{place{"fleet", "It", "B", "it is so"}, "reserved mini-2", 3 << 30}},
		Alerts: []alertExpected{{"Loud", "firing", "it is so", false}, {"Patient", "pending", "it is so", false}}})
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if err := write(out, r, s); err != nil {
		t.Fatal(err)
	}
	for name, wants := range map[string][]string{
		"dashboards/fleet-it.svg": {"</svg>", ">It</text>", ">status 200</text>", ">reserved mini-2</text>", ">3 GiB</text>", "<path"},
		"dashboards.md":           {"| 1 |", "it begins", "![It](dashboards/fleet-it.svg)", "held_bytes{term=\"reserved\"}", "`Patient`", "| pending |", "| inactive |"},
	} {
		b, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s has no %q:\n%s", name, want, b)
			}
		}
	}
}

func TestWhatIsWrongWithAQueryOrAnAlertIsSaid(t *testing.T) {
	r := recorded(t)
	for what, c := range map[string]struct {
		query target
		alert string
		want  string
	}{
		"an expression with an error":     {query: target{Expr: "sum(asked_total"}, want: "parse error"},
		"an error while it is evaluated":  {query: target{Expr: `label_replace(held_bytes, "term", "x", "", "")`}, want: "same labelset"},
		"a series that nobody exposes":    {query: target{Expr: "sum(rate(aksed_total[1m]))"}, want: "no target exposes a series aksed_total"},
		"a label that no series has":      {query: target{Expr: `sum(held_bytes{term="resreved"})`}, want: "none that held_bytes"},
		"a variable without a value":      {query: target{Expr: `held_bytes{instance=~"$mac"}`}, want: "$mac has no value"},
		"a legend of a label that went":   {query: target{Expr: "sum(held_bytes)", LegendFormat: "{{term}}"}, want: "names the label term"},
		"nothing at all":                  {query: target{Expr: "held_bytes > 1e18"}, want: "gives nothing"},
		"nothing but zero":                {query: target{Expr: `held_bytes{term="swap"}`}, want: "nothing but zero"},
		"nothing but what is no number":   {query: target{Expr: "late / late"}, want: "gives nothing"},
		"an alert on an unknown series":   {alert: "alte > 0", want: "no target exposes a series alte"},
		"an alert on what nobody exposes": {alert: `absent(held_bytes{term="resreved"})`, want: "none that held_bytes"},
		"an alert that fires":             {alert: "late == 0", want: "came to firing, want inactive"},
	} {
		t.Run(what, func(t *testing.T) {
			var dashboards []*dashboard
			var alerts []alert
			if c.alert != "" {
				var a alert
				a.Alert, a.Expr = "It", c.alert
				alerts = append(alerts, a)
			} else {
				dashboards = append(dashboards, of(c.query))
			}
			_, err := judge(t.Context(), r, dashboards, alerts, expectations{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}

func TestVariablesOfADashboardTakeEveryValue(t *testing.T) {
	r := recorded(t)
	d := of(target{Expr: `sum by (instance) (held_bytes{instance=~"$mac", term=~"${term:regex}"})`, LegendFormat: "{{instance}}"})
	d.Templating.List = []variable{
		{Name: "datasource", Type: "datasource", Query: "prometheus"},
		{Name: "mac", Type: "query", Query: `label_values(held_bytes{term="swap"}, instance)`},
		{Name: "term", Type: "custom", Query: "reserved, swap"},
	}
	s, err := judge(t.Context(), r, []*dashboard{d}, nil, expectations{})
	if err != nil {
		t.Fatal(err)
	}
	a := s.dashboards[0].panels[0].answers[0]
	if want := `sum by (instance) (held_bytes{instance=~"(mini-2|studio-1)", term=~"(reserved|swap)"})`; a.expr != want || len(a.lines) != 2 {
		t.Errorf("%d lines of %s, want 2 of %s", len(a.lines), a.expr, want)
	}
	for what, v := range map[string]variable{
		"a kind that is not known":   {Name: "mac", Type: "textbox"},
		"a series nobody exposes":    {Name: "mac", Type: "query", Query: "label_values(other, instance)"},
		"a label that no series has": {Name: "mac", Type: "query", Query: "label_values(held_bytes, zone)"},
	} {
		d.Templating.List[1] = v
		if _, err := judge(t.Context(), r, []*dashboard{d}, nil, expectations{}); err == nil {
			t.Errorf("%s is no error", what)
		}
	}
}

func TestATargetThatDoesNotAnswerIsNamed(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	targets, err := readTargets(file(t, "targets.json", `[{"targets": ["`+strings.TrimPrefix(s.URL, "http://")+`"]}]`))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := record(ctx, recorder{targets: targets, dir: t.TempDir(), interval: 50 * time.Millisecond, notes: strings.NewReader(""), said: io.Discard}); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("the error is %v", err)
	}
}

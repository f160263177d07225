//go:build !race

package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/hack/reference/help"
)

const root = "../.."

// TestPagesAreCurrent needs the programs in bin: make build.
func TestPagesAreCurrent(t *testing.T) {
	if err := run(root, false); err != nil {
		t.Error(err)
	}
}

func TestAnOutdatedPageIsFoundAndWritten(t *testing.T) {
	dir := t.TempDir()
	p := page{path: "page.md", generate: func(string) (string, error) { return "new\n", nil }}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "page.md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("no marks")
	if err := p.settle(dir, true); err == nil {
		t.Error("a page without marks is accepted")
	}
	write("head\n" + begin + "old\n" + end + "tail\n")
	if err := p.settle(dir, false); err == nil || !strings.Contains(err.Error(), "out of date") {
		t.Errorf("an outdated page: %v", err)
	}
	if err := p.settle(dir, true); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "page.md"))
	if want := "head\n" + begin + "new\n" + end + "tail\n"; err != nil || string(got) != want {
		t.Errorf("the page is %q (%v), want %q", got, err, want)
	}
	if err := p.settle(dir, false); err != nil {
		t.Error(err)
	}
}

func TestTheValuesOfAnEnumAreListed(t *testing.T) {
	got := items("policy is when the model is loaded. Valid values are:\n- Always: at once,\n  and for good.\n- OnDemand: by the first request.\n\nMore text.")
	want := []string{"Always: at once, and for good.", "OnDemand: by the first request."}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTheFirstSentenceIsKept(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{name: "replicas", text: "replicas is how many copies there are. An HPA sets it.", want: "how many copies there are"},
		{name: "limit", text: "limit of each process. Default: computed.", want: "limit of each process"},
		{name: "split", text: "split gives a part of the requests\nto others, such as e.g. a canary.", want: "gives a part of the requests to others, such as e.g. a canary"},
		{name: "paused", text: "paused: nothing is replaced.", want: "nothing is replaced"},
		{name: "model", text: "The weights.", want: "The weights"},
	} {
		if got := sentence(test.name, test.text); got != test.want {
			t.Errorf("%q gives %q, want %q", test.text, got, test.want)
		}
	}
}

func TestMetricsAreReadFromTheSource(t *testing.T) {
	source := `package p
const outer = "app_"
func f() {
	const prefix = outer + "x_"
	prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "total", Help: "Things."}, []string{"a", "b"})
	prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "g", Help: "A gauge."}, nil)
	prometheus.NewDesc("d_total", "A count.", []string{"c"}, nil)
	prometheus.NewRegistry()
}`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	got, err := metricsOf(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []metric{
		{name: "app_x_total", kind: "counter", help: "Things.", labels: []string{"a", "b"}},
		{name: "g", kind: "gauge", help: "A gauge."},
		{name: "d_total", kind: "counter", help: "A count.", labels: []string{"c"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(metric{})); diff != "" {
		t.Error(diff)
	}
	file, err = parser.ParseFile(token.NewFileSet(), "p.go", `package p
func f(name string) { prometheus.NewDesc(name, "Help.", nil, nil) }`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := metricsOf(file); err == nil {
		t.Errorf("a metric whose name is not constant gives %v", found)
	}
}

// TestQueriesUseMetricsThatExist checks those of alerts and dashboards.
func TestQueriesUseMetricsThatExist(t *testing.T) {
	all, err := readMetrics(root)
	if err != nil || len(all) < 30 {
		t.Fatalf("%d metrics, %v", len(all), err)
	}
	known := map[string]bool{}
	for _, m := range all {
		known[m.name] = true
		if m.kind == "histogram" {
			known[m.name+"_bucket"], known[m.name+"_sum"], known[m.name+"_count"] = true, true, true
		}
	}
	files, err := filepath.Glob(filepath.Join(root, "charts", "metalfleet", "files", "dashboards", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	for _, file := range append(files, filepath.Join(root, "charts", "metalfleet", "files", "rules.yaml")) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		used := regexp.MustCompile(`\b(?:metalfleet_(?:agent|gateway|operator)_[a-z_]+|vllm:[a-z_]+)`).FindAllString(string(text), -1)
		if len(used) == 0 {
			t.Errorf("%s uses no metric", file)
		}
		for _, name := range used {
			if !known[name] {
				t.Errorf("%s uses %s, which no program has", file, name)
			}
		}
	}
}

func TestADefaultThatDependsOnTheFolderIsNotShown(t *testing.T) {
	got := line(help.Flag{Name: "engine", Placeholder: "program", Default: `"/x/y/bin/engine"`, Usage: "the engine program."})
	if want := "- `--engine PROGRAM` (engine next to the agent): the engine program.\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

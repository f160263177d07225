//go:build !race

package report

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheMedianHasToMeetItsBound(t *testing.T) {
	for name, c := range map[string]struct {
		bound Bound
		runs  []float64
		ok    bool
	}{
		"no bound":                           {Bound{}, []float64{7}, true},
		"at least, on the bound":             {AtLeast(2), []float64{1, 2, 9}, true},
		"at least, the median is lower":      {AtLeast(2), []float64{1, 1.9, 9}, false},
		"at least, one slow run":             {AtLeast(2), []float64{0, 3, 3}, true},
		"at most, on the bound":              {AtMost(2), []float64{2, 2, 2}, true},
		"at most, the median is higher":      {AtMost(2), []float64{0, 2.1, 3}, false},
		"between, lower":                     {Between(1, 2), []float64{0.9}, false},
		"between, on either end":             {Between(1, 2), []float64{1, 2}, true},
		"between, higher":                    {Between(1, 2), []float64{2.1}, false},
		"under, on the bound":                {Under(2), []float64{2}, false},
		"under, lower":                       {Under(2), []float64{1.9}, true},
		"mean of the two middle runs":        {AtLeast(2.5), []float64{4, 3, 2, 1}, true},
		"no run":                             {Bound{}, nil, false},
		"no run and a negative bound":        {AtLeast(-1), nil, false},
		"a run that is not a number":         {Bound{}, []float64{1, math.NaN(), 2}, false},
		"an infinite run":                    {AtLeast(1), []float64{2, 2, math.Inf(1)}, false},
		"an infinite negative run":           {AtMost(1), []float64{math.Inf(-1), 0, 0}, false},
		"every run, one misses":              {AtMost(2).Every(), []float64{1, 1, 2.1}, false},
		"every run, all meet the bound":      {AtMost(2).Every(), []float64{1, 1, 2}, true},
		"every run, but there is none":       {AtMost(2).Every(), nil, false},
		"a note does not change the verdict": {AtLeast(2).Of("twice"), []float64{1}, false},
	} {
		r := New("x", "X", "")
		r.Add("figure", "tokens/s", c.bound, c.runs...)
		err := r.Judge()
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "figure") {
			t.Errorf("%s: %v", name, err)
		}
		if !c.ok != strings.Contains(r.Table(), "FAIL") {
			t.Errorf("%s: the table is\n%s", name, r.Table())
		}
	}
	if New("x", "X", "").Judge() == nil {
		t.Error("a report without figures passes")
	}
}

func TestAMissedBoundIsNotAFigureWithoutRuns(t *testing.T) {
	r := New("x", "X", "")
	r.Add("missed", "ms", AtMost(1), 2)
	if r.Unmeasured() != nil || r.Missed() == nil {
		t.Errorf("unmeasured %v, missed %v", r.Unmeasured(), r.Missed())
	}
	r.Lines = nil
	r.Add("not measured", "ms", AtMost(1))
	if r.Unmeasured() == nil || r.Missed() != nil {
		t.Errorf("unmeasured %v, missed %v", r.Unmeasured(), r.Missed())
	}
}

func TestTheFilesHoldTheWholeReport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bench")
	r := New("x", "Two cores", "What it is.")
	r.Peer("llama.cpp", "0.3.36")
	r.Add("decode", "tokens/s", AtLeast(15), 20, 30, 25.25)
	r.Add("broken", "ms", Bound{}, math.NaN())
	if err := r.Finish(dir); err == nil {
		t.Error("a figure that is not a number passes")
	}
	b, err := os.ReadFile(filepath.Join(dir, "x.json"))
	if err != nil {
		t.Fatal(err)
	}
	var again Report
	if err := json.Unmarshal(b, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*r, again); diff != "" {
		t.Errorf("the JSON differs:\n%s", diff)
	}
	page, err := os.ReadFile(filepath.Join(dir, "x.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# Two cores\n\nWhat it is.\n", "| decode | tokens/s | 25.25 | 20 | 30 | at least 15 | pass | 20, 30, 25.25 |\n", " cores", r.Date, "llama.cpp 0.3.36",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

func TestAMachineIsDescribedAsFarAsItReports(t *testing.T) {
	for about, want := range map[string]Machine{
		"/proc/cpuinfo: processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Another\n/proc/meminfo: MemTotal:       2000 kB\nMemFree: 1 kB\n" +
			"/proc/sys/kernel/osrelease: 6.1.2\n/proc/loadavg: 3.25 1 1 1/1 1\n": {CPU: "Some CPU @ 2 GHz", MemoryBytes: 2000 << 10, Kernel: "Linux 6.1.2", Load: 3.25},
		"machdep.cpu.brand_string: Apple M2 Ultra\nhw.memsize: 206158430208\nkern.osrelease: 24.1.0\nvm.loadavg: { 1.50 2 3 }\n": {CPU: "Apple M2 Ultra", MemoryBytes: 206158430208, Kernel: "Darwin 24.1.0", Load: 1.5},
		"": {CPU: "as before"},
	} {
		got := Machine{CPU: "as before"}
		got.parse(about)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q:\n%s", about, diff)
		}
	}
	if m := thisMachine(); m.Cores < 1 || m.Go == "" || m.CPU == "" {
		t.Errorf("this machine is %+v", m)
	}
}

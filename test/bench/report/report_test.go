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
		"no bound":                           {bound: Bound{}, runs: []float64{7}, ok: true},
		"at least, on the bound":             {bound: AtLeast(2), runs: []float64{1, 2, 9}, ok: true},
		"at least, the median is lower":      {bound: AtLeast(2), runs: []float64{1, 1.9, 9}},
		"at least, one slow run":             {bound: AtLeast(2), runs: []float64{0, 3, 3}, ok: true},
		"at most, on the bound":              {bound: AtMost(2), runs: []float64{2, 2, 2}, ok: true},
		"at most, the median is higher":      {bound: AtMost(2), runs: []float64{0, 2.1, 3}},
		"between, lower":                     {bound: Between(1, 2), runs: []float64{0.9}},
		"between, on either end":             {bound: Between(1, 2), runs: []float64{1, 2}, ok: true},
		"between, higher":                    {bound: Between(1, 2), runs: []float64{2.1}},
		"under, on the bound":                {bound: Under(2), runs: []float64{2}},
		"under, lower":                       {bound: Under(2), runs: []float64{1.9}, ok: true},
		"mean of the two middle runs":        {bound: AtLeast(2.5), runs: []float64{4, 3, 2, 1}, ok: true},
		"no run":                             {bound: Bound{}},
		"no run and a negative bound":        {bound: AtLeast(-1)},
		"a run that is not a number":         {bound: Bound{}, runs: []float64{1, math.NaN(), 2}},
		"an infinite run":                    {bound: AtLeast(1), runs: []float64{2, 2, math.Inf(1)}},
		"an infinite negative run":           {bound: AtMost(1), runs: []float64{math.Inf(-1), 0, 0}},
		"every run, one misses":              {bound: AtMost(2).Every(), runs: []float64{1, 1, 2.1}},
		"every run, all meet the bound":      {bound: AtMost(2).Every(), runs: []float64{1, 1, 2}, ok: true},
		"every run, but there is none":       {bound: AtMost(2).Every()},
		"a note does not change the verdict": {bound: AtLeast(2).Of("twice"), runs: []float64{1}},
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

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/bench/report"
)

func TestTheMedianIsJudged(t *testing.T) {
	ms := time.Millisecond
	for name, test := range map[string]struct {
		rounds []time.Duration
		median float64
		ok     bool
	}{
		"one slow round of five": {[]time.Duration{900 * ms, 9000 * ms, 1000 * ms, 800 * ms, 1100 * ms}, 1000, true},
		"three slow of five":     {[]time.Duration{900 * ms, 1600 * ms, 1700 * ms, 800 * ms, 1900 * ms}, 1600, false},
		"an even number":         {[]time.Duration{1400 * ms, 1500 * ms}, 1450, true},
		"on the bound":           {[]time.Duration{1500 * ms}, 1500, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReport(test.rounds)
			if got := r.Lines[0].Median; got != test.median || (r.Judge() == nil) != test.ok {
				t.Errorf("median %v (%v), want %v", got, r.Judge(), test.median)
			}
		})
	}
}

func TestTheRecordHoldsUnitRunsSpreadAndMachine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bench")
	if err := newReport([]time.Duration{time.Second, 2 * time.Second, 3 * time.Second}).Write(dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "ready.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r report.Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Lines) != 1 || r.Machine.Cores < 1 {
		t.Fatalf("record %+v", r)
	}
	if l := r.Lines[0]; l.Unit != "ms" || len(l.Runs) != 3 || l.Min != 1000 || l.Max != 3000 {
		t.Errorf("record %+v", r)
	}
	page, err := os.ReadFile(filepath.Join(dir, "ready.md"))
	if err != nil || !strings.Contains(string(page), "| ms | 2000 | 1000 | 3000 | at most 1500 | FAIL | 1000, 2000, 3000 |") {
		t.Errorf("page:\n%s\n%v", page, err)
	}
}

package main

import (
	"slices"
	"strings"
	"testing"
)

func TestIDsAreReadFromTheBeginningOfATestsName(t *testing.T) {
	for name, want := range map[string][]string{
		"TestP1HundredAcquires":        {"P1"},
		"TestP9P10VictimsAndTime":      {"P9", "P10"},
		"TestInvariant4BoundedWaits":   {"Invariant4"},
		"TestM8_Flips":                 {"M8"},
		"TestA28RowsKeepTheirSamplers": {"A28"},
		"TestA8Vectors":                nil,
		"TestPoolKeeps":                nil,
		"TestGaugeIsTheLargest":        nil,
		"TestP1lowercase":              nil,
		"BenchmarkP1Hundred":           nil,
		"TestTheVictimOfP9IsTheOldest": nil,
	} {
		if got := idsOf(name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestEveryGapIsNamed(t *testing.T) {
	rows := []row{{"P1", "one load"}, {"P2", "fields"}, {"P3", "kinds"}, {"P4", "holds"}, {"P5", "names"}}
	words := map[string]word{"P2": {construction, "why"}, "P3": {deferred, "why"}, "P5": {partly, "why"}, "P9": {deferred, "why"}}
	tests := map[string][]string{"P3": {"a.TestP3"}, "P4": {"a.TestP4"}, "P8": {"a.TestP8"}}
	_, err := build(rows, words, tests)
	if err == nil {
		t.Fatal("no gap was found")
	}
	for _, want := range []string{
		"P1 (one load) has no test and no word", "P3 is called deferred and has a test: a.TestP3",
		"P5 is called the rest deferred and has no test at all", "there is a word for P9",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the gaps do not name %q:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "P4") || strings.Contains(err.Error(), "P2") {
		t.Errorf("answered rows are called gaps:\n%v", err)
	}
}

func TestATestOfNoPagesRowIsAGap(t *testing.T) {
	pages := []page{{rows: []row{{"P1", "one load"}}}, {rows: []row{{"K1", "blocks"}}}}
	gaps := strangers(pages, map[string][]string{"P1": {"a.TestP1"}, "K1": {"a.TestK1"}, "P8": {"a.TestP8"}})
	if len(gaps) != 1 || !strings.Contains(gaps[0], "a.TestP8 names the row P8") {
		t.Errorf("gaps %q, want the one of P8", gaps)
	}
}

func TestTheMapStandsBetweenItsMarks(t *testing.T) {
	table, err := build([]row{{"P1", "one load"}, {"P2", "fields"}}, map[string]word{"P2": {construction, "why"}}, map[string][]string{"P1": {"a.TestP1"}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := splice([]byte("head\n"+begin+"old\n"+end+"tail\n"), table)
	want := "head\n" + begin + "| row | what | shown by |\n|---|---|---|\n| P1 | one load | `TestP1` (a) |\n| P2 | fields | *by construction*: why |\n" + end + "tail\n"
	if err != nil || string(got) != want {
		t.Errorf("%s (%v), want\n%s", got, err, want)
	}
	if _, err := splice([]byte("no marks"), table); err == nil {
		t.Error("a page without marks was accepted")
	}
}

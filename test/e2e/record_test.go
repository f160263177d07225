package main

import (
	"strings"
	"testing"
	"time"
)

func TestFillReplacesItsPlacesAlone(t *testing.T) {
	page := "a\n<!-- from the run: x -->\nold\n<!-- end -->\nb\n"
	got, err := fill(page, map[string]string{"x": "new"})
	if want := "a\n<!-- from the run: x -->\nnew\n<!-- end -->\nb\n"; err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if again, err := fill(got, map[string]string{"x": "new"}); err != nil || again != got {
		t.Errorf("a second time: %q, %v", again, err)
	}
	for what, pieces := range map[string]map[string]string{"a piece without a place": {"x": "new", "y": "more"}, "a place without a piece": {}} {
		if _, err := fill(page, pieces); err == nil {
			t.Errorf("%s is no error", what)
		}
	}
	if _, err := fill("<!-- from the run: x -->\nold\n", map[string]string{"x": "new"}); err == nil {
		t.Error("a place without an end is no error")
	}
}

func TestTheFirstTimeOfAStepCounts(t *testing.T) {
	r := record{}
	r.begin()
	r.mark("ready", r.began.Add(1500*time.Millisecond))
	r.mark("ready", r.began.Add(time.Minute))
	if table := r.table(); !strings.Contains(table, "| ready | 1.5 |") || strings.Contains(table, "60.0") {
		t.Errorf("the table is\n%s", table)
	}
}

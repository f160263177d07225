package main

import (
	"slices"
	"strings"
	"testing"
)

// TestEachBugHasItsTests and the page says so.
func TestEachBugHasItsTests(t *testing.T) {
	if err := run("../..", false, true, "1m"); err != nil {
		t.Error(err)
	}
}

func TestAGapIsRefused(t *testing.T) {
	there := func(folder, name string) bool { return folder == "a" && name == "TestA" }
	for name, c := range map[string]struct {
		bug bug
		ok  bool
	}{
		"a test that is there":       {bug{tests: []string{"a.TestA"}}, true},
		"a word":                     {bug{word: "not built yet"}, true},
		"neither":                    {bug{}, false},
		"both":                       {bug{tests: []string{"a.TestA"}, word: "x"}, false},
		"a test that is not there":   {bug{tests: []string{"a.TestA", "a.TestB"}}, false},
		"a test of another folder":   {bug{tests: []string{"b.TestA"}}, false},
		"a test without a folder":    {bug{tests: []string{"TestA"}}, false},
		"a name that only begins so": {bug{tests: []string{"a.TestAB"}}, false},
	} {
		if err := check([]bug{c.bug}, there); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestATestThatDidNotPassIsMissed(t *testing.T) {
	out := "--- PASS: TestA (0.00s)\n--- SKIP: TestB (0.00s)\n--- PASS: TestCD (0.00s)\n"
	if got := notPassed(out, []string{"TestA", "TestB", "TestC"}); !slices.Equal(got, []string{"TestB", "TestC"}) {
		t.Error(got)
	}
}

func TestAFolderIsAskedForItsOwnTests(t *testing.T) {
	all := chosen([]bug{{tests: []string{"a/b.TestA", "c.TestA"}}, {tests: []string{"a/b.TestA", "a/b.TestB"}}})
	if strings.Join(all["a/b"], " ") != "TestA TestB" || strings.Join(all["c"], " ") != "TestA" {
		t.Error(all)
	}
}

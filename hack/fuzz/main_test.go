package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const body = "\n\nimport \"testing\"\n\n"

func module() map[string]string {
	return map[string]string{
		"go.mod":                  "module example.test/m\n",
		"b/b_test.go":             "package b" + body + "func FuzzTwo(f *testing.F) {}\nfunc FuzzOne(f *testing.F) {}\nfunc Fuzzy(x int) {}\nfunc TestFuzz(t *testing.T) {}\n",
		"a/deep/a_test.go":        "package a_test" + body + "func FuzzA(f *testing.F) {}\n",
		"a/a.go":                  "package a\n\n// func FuzzComment(f *testing.F) {}\nfunc FuzzNoTest() {}\n",
		"tagged/tagged_test.go":   "//go:build never\n\npackage tagged" + body + "func FuzzTagged(f *testing.F) {}\n",
		"other/go.mod":            "module example.test/other\n",
		"other/other_test.go":     "package other" + body + "func FuzzOther(f *testing.F) {}\n",
		"a/testdata/data_test.go": "package data" + body + "func FuzzData(f *testing.F) {}\n",
		".cache/x/x_test.go":      "package x" + body + "func FuzzCache(f *testing.F) {}\n",
	}
}

func TestEveryTargetOfTheModuleIsFound(t *testing.T) {
	got, err := list(tree(t, module()))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, one := range got {
		names = append(names, one.String())
	}
	if diff := cmp.Diff([]string{"a/deep.FuzzA", "b.FuzzOne", "b.FuzzTwo"}, names); diff != "" {
		t.Error(diff)
	}
}

const (
	quiet   = "fuzz: elapsed: 3s, execs: 16804 (5600/sec), new interesting: 1 (total: 319)\nfuzz: elapsed: 5s, execs: 36216 (9181/sec), new interesting: 4 (total: 322)\nPASS\n"
	finding = "fuzz: elapsed: 1s, execs: 12 (12/sec), new interesting: 0 (total: 1)\n--- FAIL: FuzzOne (1.00s)\n    Failing input written to testdata/fuzz/FuzzOne/0123\n"
)

func TestFiguresAreTheLastOnes(t *testing.T) {
	if diff := cmp.Diff(result{executions: 36216, interesting: 4}, read(quiet), cmp.AllowUnexported(result{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(result{executions: 12, saved: "testdata/fuzz/FuzzOne/0123"}, read(finding), cmp.AllowUnexported(result{})); diff != "" {
		t.Error(diff)
	}
}

func TestARunFailsOnAFindingOnABrokenTargetAndOnNone(t *testing.T) {
	root := tree(t, module())
	tests := map[string]struct {
		only string
		tool func(target) (string, error)
		says string
	}{
		"nothing found":            {"", func(target) (string, error) { return quiet, nil }, ""},
		"a finding":                {"", func(t target) (string, error) { return map[string]string{"FuzzOne": finding}[t.name], nil }, "1 of 3 targets have findings"},
		"a target that is broken":  {"b.FuzzTwo", func(target) (string, error) { return "does not compile", errors.New("exit status 1") }, "1 of 1 targets"},
		"no target of that name":   {"FuzzNone", func(target) (string, error) { return quiet, nil }, "no target was found"},
		"a failure with no saving": {"a/deep", func(target) (string, error) { return quiet, errors.New("exit status 1") }, "1 of 1 targets"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := run(context.Background(), root, options{only: regexp.MustCompile(tc.only)}, func(_ context.Context, one target, _ options) (string, error) { return tc.tool(one) })
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one saying %q", err, tc.says)
			}
		})
	}
}

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const good = `# what follows is read
name: large numbers are refused
file: guard/guard.go
test: ./guard -run TestLarge
old: |
  	if n > Limit {
  		return errors.New("too large")

  	}
new: |
  	if false {
  	}

---

name: second
file: guard/guard.go
test: ./guard -run TestLarge -test.short
old: |
  a
new: |
`

func TestParseKeepsTheTextAsItStands(t *testing.T) {
	got, err := parse(good)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 {
		t.Fatalf("%d entries, want 2", len(got))
	}
	if want := "\tif n > Limit {\n\t\treturn errors.New(\"too large\")\n\n\t}"; got[0].old != want {
		t.Errorf("old is %q, want %q", got[0].old, want)
	}
	if want := "\tif false {\n\t}"; got[0].new != want {
		t.Errorf("new is %q, want %q", got[0].new, want)
	}
	if got[1].new != "" || got[1].test() != "./guard -run TestLarge -test.short" || got[0].line != 2 {
		t.Errorf("second entry %+v", got[1])
	}
}

// Each list fits the sources as they are: also the one that is only run where
// MLX is.
func TestListsFitTheSources(t *testing.T) {
	lists, err := filepath.Glob(filepath.Join("..", "mutants*.txt"))
	if err != nil || len(lists) < 2 {
		t.Fatalf("lists %v (%v), want two at least", lists, err)
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		all, err := parse(string(text))
		if err != nil {
			t.Errorf("%s: %v", list, err)
		}
		if err := errors.Join(check(filepath.Join("..", ".."), all), named(filepath.Join("..", ".."), all)); err != nil {
			t.Errorf("%s: %v", list, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	cases := map[string]struct{ from, to, says string }{
		"an unknown key":          {"file:", "fiel:", `no key is called "fiel"`},
		"an entry without a key":  {"file: guard/guard.go\n", "", "has no file"},
		"a key given twice":       {"file: guard/guard.go\n", "file: a\nfile: b\n", "file is given twice"},
		"an empty name":           {"name: second", "name:", "name is empty"},
		"the same name again":     {"name: second", "name: large numbers are refused", "name is that of the entry at line 2"},
		"text without its blanks": {"  a\nnew", "a\nnew", "neither a key"},
		"an empty old":            {"  a\n", "\n", "old is empty"},
		"no change":               {"new: |\n  	if false {\n  	}\n", "new: |\n  	if n > Limit {\n  		return errors.New(\"too large\")\n\n  	}\n", "old and new are the same"},
		"a test without -run":     {"-run TestLarge\n", "TestLarge\n", "wants ./path/to/package -run TestName"},
		"text beside the key":     {"old: |\n  a", "old: a\n  a", "wants a |"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(good, c.from, c.to, 1)
			if text == good {
				t.Fatal("the case changes nothing")
			}
			if _, err := parse(text); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
}

func change(test, old, new string) entry {
	return entry{name: "x", file: "guard/guard.go", pkg: "./guard", args: []string{"-run", test}, old: old, new: new}
}

func TestVerdicts(t *testing.T) {
	t.Setenv("CGO_ENABLED", "0") // as make mutants has it, also when these tests run with the race detector
	root, err := filepath.Abs("testdata/module")
	if err != nil {
		t.Fatal(err)
	}
	crd := change("TestRuleOfTheCRD", "maximum: 10", "maximum: 11")
	crd.file = "config/crd/guard.yaml"
	cases := map[string]struct {
		entry entry
		want  error
	}{
		"a guard that is guarded":              {change("TestLarge", "n > Limit", "n > Limit+5"), nil},
		"a change that panics":                 {change("TestLarge", "if n > Limit {", "if n > Limit {\n\t\tpanic(1)"), nil},
		"a rule of a CRD":                      {crd, nil},
		"a test that sees nothing":             {change("TestBlind", "n < 0", "false"), errSurvived},
		"a change that does not compile":       {change("TestLarge", "n > Limit", "n > Limits"), errNotCompiled},
		"a test that is red anyway":            {change("TestRed", "n > Limit", "false"), errBaseline},
		"a test that does not exist":           {change("TestNobody", "n > Limit", "false"), errBaseline},
		"a test that skips":                    {change("TestSkips", "n > Limit", "false"), errBaseline},
		"a change that another test notices":   {change("TestBlind", "n > Limit", "false"), errSurvived},
		"an old text that went away meanwhile": {change("TestLarge", "n >= Limit", "false"), errAny},
	}
	b := newBench(root, t.TempDir())
	before := treeOf(t, root)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := b.try(t.Context(), c.entry)
			if c.want == errAny && err != nil {
				return
			}
			if !errors.Is(err, c.want) {
				t.Errorf("verdict %v, want %v", err, c.want)
			}
		})
	}
	if after := treeOf(t, root); after != before {
		t.Error("the runner changed the tree")
	}
}

var errAny = errors.New("any error")

func treeOf(t *testing.T, root string) string {
	t.Helper()
	var out strings.Builder
	for _, f := range []string{"guard/guard.go", "guard/guard_test.go", "config/crd/guard.yaml"} {
		b, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	entries, err := os.ReadDir(filepath.Join(root, "guard"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out.WriteString(e.Name())
	}
	return out.String()
}

func TestAListThatNoLongerFitsFailsBeforeAnythingRuns(t *testing.T) {
	cases := map[string]struct{ file, old, says string }{
		"old is gone":               {"guard/guard.go", "n >= Limit", "no longer holds the old text"},
		"old stands twice":          {"guard/guard.go", "return errors.New(", "holds the old text 2 times"},
		"a file that is gone":       {"guard/gone.go", "x", "no such file"},
		"a file outside the module": {"../module/guard/guard.go", "n > Limit", "lies outside the module"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			e := change("TestLarge", c.old, "y")
			e.file = c.file
			if err := check("testdata/module", []entry{e}); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
}

func TestARunFailsForOneGuardThatIsNotGuarded(t *testing.T) {
	t.Setenv("CGO_ENABLED", "0")
	const guarded = "name: large\nfile: guard/guard.go\ntest: ./guard -run TestLarge\nold: |\n  n > Limit\nnew: |\n  false\n"
	const blind = "---\nname: negative\nfile: guard/guard.go\ntest: ./guard -run TestBlind\nold: |\n  n < 0\nnew: |\n  false\n"
	cases := map[string]struct{ list, says, err string }{
		"all are guarded": {guarded, "1 red, 0 not", ""},
		"one is not":      {guarded + blind, "1 red, 1 not", "1 of 2 guards are not guarded"},
		"an empty list":   {"# nothing\n", "0 red", "no entry to try"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			list := filepath.Join(t.TempDir(), "list.txt")
			if err := os.WriteFile(list, []byte(c.list), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := run(t.Context(), options{list: list, root: "testdata/module", part: "all", jobs: 2}, &out)
			if !strings.Contains(out.String(), c.says) {
				t.Errorf("printed %q, want %q in it", out.String(), c.says)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || err.Error() != c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

// TestAChangeThatDoesNotCompileIsFoundWhicheverPartIsTried: a run of one part
// failed on an entry that no run before had come by.
func TestAChangeThatDoesNotCompileIsFoundWhicheverPartIsTried(t *testing.T) {
	t.Setenv("CGO_ENABLED", "0")
	const list = "name: large\nfile: guard/guard.go\ntest: ./guard -run TestLarge\nold: |\n  n > Limit\nnew: |\n  false\n" +
		"---\nname: rule\nfile: config/crd/guard.yaml\ntest: ./guard -run TestRuleOfTheCRD\nold: |\n  10\nnew: |\n  11\n"
	cases := map[string]struct{ change, says string }{
		"what is not declared":      {"n > Limits", "undefined: Limits"},
		"what is not used any more": {"y := n; n > Limit", "declared and not used: y"},
		"what cannot be read":       {"n > (Limit", "expected"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "list.txt")
			text := list + "---\nname: large again\nfile: guard/guard.go\ntest: ./guard -run TestLarge\nold: |\n  n > Limit\nnew: |\n  " + c.change + "\n"
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := run(t.Context(), options{list: path, root: "testdata/module", part: "1/3", jobs: 1}, &out)
			if err == nil || !strings.Contains(err.Error(), "large again: does not compile") || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one of the third entry with %q", err, c.says)
			}
			if out.Len() > 0 {
				t.Errorf("it went on: %s", out.String())
			}
		})
	}
}

func TestATestThatAnEntryNamesIsThere(t *testing.T) {
	cases := map[string]struct{ run, says string }{
		"its name":           {"TestLarge", ""},
		"a part of it":       {"Lar", ""},
		"a case of it":       {"TestLarge/eleven", ""},
		"one of two":         {"TestGone|TestBlind", ""},
		"none":               {"TestGone", "has no test called TestGone"},
		"what is no pattern": {"Test(", "missing closing"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := named("testdata/module", []entry{change(c.run, "a", "b")})
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
}

func TestEveryEntryIsInExactlyOnePart(t *testing.T) {
	all := make([]entry, 11)
	for i := range all {
		all[i].line = i + 1
	}
	seen := map[int]int{}
	for i := 1; i <= 3; i++ {
		p, err := choosePart(t.Context(), string(rune('0'+i))+"/3", ".", len(all))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range p.of(all) {
			seen[e.line]++
		}
	}
	for i := range all {
		if seen[i+1] != 1 {
			t.Errorf("entry %d is in %d parts", i+1, seen[i+1])
		}
	}
	for _, bad := range []string{"0/3", "4/3", "3", "a/b", ""} {
		if _, err := choosePart(t.Context(), bad, ".", 1); err == nil {
			t.Errorf("part %q was accepted", bad)
		}
	}
}

func TestTheCommitChoosesAShard(t *testing.T) {
	a, err := shard("00000005aaaa", 3*shardSize)
	if err != nil || a != (part{3, 3}) {
		t.Errorf("part %+v, %v: want 3 of 3", a, err)
	}
	if b, err := shard("ffffffffaaaa", shardSize); err != nil || b != (part{1, 1}) {
		t.Errorf("part %+v, %v: a short list is tried whole", b, err)
	}
	if _, err := shard("main", 3); err == nil {
		t.Error("a branch was taken for a commit")
	}
}

// TestAProgramThatATestBuildsIsChangedToo: the agent's tests build the engine.
func TestAProgramThatATestBuildsIsChangedToo(t *testing.T) {
	t.Setenv("GOFLAGS", "-trimpath")
	root, err := filepath.Abs("testdata/module")
	if err != nil {
		t.Fatal(err)
	}
	overlay, env, err := newBench(root, t.TempDir()).change(t.TempDir(), change("TestLarge", "n > Limit", "false"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "GOFLAGS=-trimpath -overlay=" + overlay; len(env) != 1 || env[0] != want {
		t.Errorf("a test runs with %q, want %q", env, want)
	}
}

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// attack is a row of attacks.md: what is tried, what refuses it, the test and
	// the mutant.
	attack = regexp.MustCompile("(?m)^\\| [^|]{3,} \\| [^|]{3,} \\| `(TestAttack\\w+)` of `(\\S+)` \\| (.+) \\|$")
	quoted = regexp.MustCompile("`([^`]+)`")
	// mutant is the head of an entry of hack/mutants.txt.
	mutant = regexp.MustCompile(`(?m)^name: (.*)\nfile: .*\ntest: \./(\S+) -run (\S+)`)
	tried  = regexp.MustCompile(`(?m)^func (TestAttack\w+)\(`)
)

// attackTests are the tests of the module that try an attack, as "package.Name".
func attackTests(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".."):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel("..", filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, m := range tried.FindAllStringSubmatch(string(b), -1) {
			out[filepath.ToSlash(pkg)+"."+m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEveryAttackIsInTheTable, each row has a test that is there, and a mutant
// of hack/mutants.txt that this test is to notice.
func TestEveryAttackIsInTheTable(t *testing.T) {
	tests := attackTests(t)
	if len(tests) < 50 {
		t.Fatalf("only %d tests of attacks were found", len(tests))
	}
	watched := map[string]string{} // test pattern by mutant
	for _, m := range mutant.FindAllStringSubmatch(read(t, "../hack/mutants.txt"), -1) {
		watched[m[1]] = m[2] + " " + m[3]
	}
	told := map[string]bool{}
	for _, row := range attack.FindAllStringSubmatch(read(t, "attacks.md"), -1) {
		name, pkg := row[1], row[2]
		told[pkg+"."+name] = true
		if !tests[pkg+"."+name] {
			t.Errorf("attacks.md names %s of %s, which is not there", name, pkg)
		}
		mutants := quoted.FindAllStringSubmatch(row[3], -1)
		if len(mutants) == 0 {
			t.Errorf("the row of %s names no mutant", name)
		}
		for _, m := range mutants {
			where, pattern, known := strings.Cut(watched[m[1]], " ")
			if !known {
				t.Errorf("the row of %s names the mutant %q, which hack/mutants.txt does not have", name, m[1])
			} else if ok, err := regexp.MatchString(pattern, name); where != pkg || !ok || err != nil {
				t.Errorf("the mutant %q is for %s of %s, and not for %s of %s", m[1], pattern, where, name, pkg)
			}
		}
	}
	for name := range tests {
		if !told[name] {
			t.Errorf("attacks.md does not tell of %s: add a row with the attack, what refuses it, the test and its mutant", name)
		}
	}
}

//go:build !race

package lint

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const root = "../.."

// everything is the whole repository, parsed once for all rules.
var everything = sync.OnceValues(func() ([]source, error) { return readTree(root) })

func tree(t *testing.T, at string) []source {
	t.Helper()
	read := readTree
	if at == root {
		read = func(string) ([]source, error) { return everything() }
	}
	sources, err := read(at)
	if err != nil {
		t.Fatal(err)
	}
	if len(sources) == 0 {
		t.Fatalf("no Go file under %s", at)
	}
	return sources
}

func none(t *testing.T, complaints []string) {
	t.Helper()
	for _, c := range complaints {
		t.Error(c)
	}
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("not found: %s", w)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("not expected: %s", g)
		}
	}
}

func TestEveryPackageKeepsTheImportLaw(t *testing.T) {
	none(t, breaches(files(tree(t, root))))
}

// The fixture breaks every rule; next to each breach are imports that are
// allowed and must not be reported.
func TestTheImportLawIsBrokenByItsFixture(t *testing.T) {
	want, err := os.ReadFile("testdata/breaches.txt")
	if err != nil {
		t.Fatal(err)
	}
	got := breaches(files(tree(t, "testdata/broken")))
	same(t, got, strings.Split(strings.TrimSpace(string(want)), "\n"))
}

func TestEveryPackageHasAComment(t *testing.T) {
	none(t, undocumented(tree(t, root)))
	if got := undocumented(tree(t, "testdata/house/util")); len(got) != 1 {
		t.Errorf("the fixture has one package without a comment, found %q", got)
	}
}

func TestNoPackageIsNamedAfterNothing(t *testing.T) {
	none(t, badNames(tree(t, root)))
	if got := badNames(tree(t, "testdata/house")); len(got) != 1 {
		t.Errorf("the fixture has one such package, found %q", got)
	}
}

func TestFunctionsFitAScreen(t *testing.T) {
	none(t, longFunctions(tree(t, root)))

	dir := t.TempDir()
	const text = "// Package long is a fixture.\npackage long\n\ntype box[T any] struct{}\n\nfunc fits() {\n%s}\n\nfunc (b *box[T]) second() {\n%s}\n"
	body := func(lines int) string { return strings.Repeat("\t_ = 0\n", lines-2) }
	if err := os.WriteFile(filepath.Join(dir, "long.go"), fmt.Appendf(nil, text, body(60), body(61)), 0o644); err != nil {
		t.Fatal(err)
	}
	same(t, longFunctions(tree(t, dir)), []string{"..box.second: 61 lines: past 60, look for the second idea"})
}

func TestSkipsSayWhy(t *testing.T) {
	none(t, silentSkips(tree(t, root)))
	if got := silentSkips(tree(t, "testdata/house")); len(got) != 3 {
		t.Errorf("the fixture skips three times without a reason, found %q", got)
	}
}

func TestScriptsParse(t *testing.T) {
	scripts := committed(t, func(name, text string) bool {
		return strings.HasSuffix(name, ".sh") || strings.HasPrefix(text, "#!") && strings.Contains(strings.SplitN(text, "\n", 2)[0], "bash")
	})
	if len(scripts) == 0 {
		t.Fatal("found no script")
	}
	for _, s := range scripts {
		if out, err := exec.Command("bash", "-n", filepath.Join(root, s)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", s, err, out)
		}
	}
	if err := exec.Command("bash", "-n", "testdata/house/bad.sh").Run(); err == nil {
		t.Error("the fixture has no end and was accepted")
	}
}

func TestNoFolderOfOneMachineIsNamed(t *testing.T) {
	committed(t, func(name, text string) bool {
		if !isFixture(name) {
			none(t, machinePaths(name, text))
		}
		return true
	})
	same(t, machinePaths("f", "see /"+"work/main/x\nin /etc/hosts\nat $HOME/"+"home/x\nHOME=/"+"root/x\n"), []string{
		"f:1: names a folder of one machine: see /" + "work/main/x",
		"f:4: names a folder of one machine: HOME=/" + "root/x",
	})
}

func TestBothModulesUseTheSameVersions(t *testing.T) {
	var versions [2]map[string]string
	for i, f := range []string{"go.mod", "hack/kube/go.mod"} {
		v, err := moduleVersions(filepath.Join(root, f))
		if err != nil {
			t.Fatal(err)
		}
		versions[i] = v
	}
	if len(versions[1]) < 50 {
		t.Fatalf("hack/kube/go.mod asks for %d modules: was it read?", len(versions[1]))
	}
	none(t, disagreements("go.mod", versions[0], "hack/kube/go.mod", versions[1]))

	other, err := moduleVersions("testdata/other.mod")
	if err != nil {
		t.Fatal(err)
	}
	same(t, disagreements("a", map[string]string{"x.test/a": "v1.0.0", "x.test/b": "v1.0.0", "x.test/c": "v1.0.0", "x.test/e": "v1.0.0"}, "b", other), []string{
		"x.test/a: a has v1.0.0, b has v1.2.0: raise the lower one",
		"x.test/c: a has v1.0.0, b has v1.4.0: raise the lower one",
	})
}

func isFixture(name string) bool { return strings.HasPrefix(name, "hack/lint/testdata/") }

// committed lists the text files, tracked or not ignored, that fit.
func committed(t *testing.T, fits func(name, text string) bool) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var names []string
	for _, name := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		b, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted and not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.ContainsRune(string(b[:min(len(b), 4096)]), 0) {
			continue // not text
		}
		if !isFixture(name) && fits(name, string(b)) {
			names = append(names, name)
		}
	}
	return names
}

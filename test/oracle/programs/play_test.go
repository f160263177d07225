//go:build !race

package programs

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// transcript of a program that runs these steps.
func transcript(steps []string) string {
	out := ""
	for _, s := range steps {
		out += stepMark + s + "\nsaid\n"
	}
	return out
}

func TestAProgramThatRunsFewerStepsThanItsListFails(t *testing.T) {
	for _, p := range Programs() {
		n := len(p.Steps)
		if err := checkTranscript(p, transcript(p.Steps), map[string]string{}); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		silent := transcript(p.Steps[:n-1]) + stepMark + p.Steps[n-1] + "\n"
		for _, bad := range []string{"", transcript(p.Steps[:n-1]), transcript(p.Steps[1:]), silent} {
			if checkTranscript(p, bad, map[string]string{}) == nil {
				t.Errorf("%s: may run %q", p.Name, steps(bad))
			}
		}
	}
	if checkTranscript(Program{}, "", map[string]string{}) == nil {
		t.Error("a program without steps passes")
	}
}

func TestAProgramSaysTheSameAtBothDoors(t *testing.T) {
	p, said := Program{Name: "p", Steps: []string{"s"}}, map[string]string{}
	if err := checkTranscript(p, "== s\na\n", said); err != nil {
		t.Fatal(err)
	}
	if checkTranscript(p, "== s\nb\n", said) == nil {
		t.Error("another answer is taken")
	}
}

func TestAProgramThatEndsBadlyFails(t *testing.T) {
	root, installed := t.TempDir(), t.TempDir()
	p := Program{Pins: "p", Script: "p.sh"}
	for _, dir := range []string{filepath.Join(root, "test", "oracle", "programs", "run"), filepath.Join(installed, "p", "bin")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	o := options{root: root, installed: installed}
	put := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(root, "test", "oracle", "programs", "run", "p.sh")
	put(script, "echo $BASE_URL")
	if _, err := play(context.Background(), o, p, "u"); err == nil || !strings.Contains(err.Error(), "make test-programs") {
		t.Errorf("one that is not installed: %v", err)
	}
	put(filepath.Join(installed, "p", "bin", "python"), "")
	if got, err := play(context.Background(), o, p, "u"); err != nil || got != "u\n" {
		t.Errorf("it said %q, %v", got, err)
	}
	put(script, "echo said; echo why >&2; exit 3")
	if _, err := play(context.Background(), o, p, "u"); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("one that ends badly: %v", err)
	}
}

func TestANameOfNoProgramFails(t *testing.T) {
	if err := run(context.Background(), options{root: t.TempDir(), only: "unknown"}); err == nil || !strings.Contains(err.Error(), "unknown") {
		t.Error(err)
	}
}

// root of the repository.
var root = filepath.Join("..", "..", "..")

// TestEveryProgramIsPinnedAndKnownToRunItsSteps; what it says, the run itself
// compares.
func TestEveryProgramIsPinnedAndKnownToRunItsSteps(t *testing.T) {
	for _, p := range Programs() {
		if v, err := versionOf(root, p); err != nil || !version.MatchString(v) {
			t.Errorf("%s: version %q, %v", p.Name, v, err)
		}
		said, err := os.ReadFile(saidPath(root, p))
		if err != nil {
			t.Fatal(err)
		}
		if err := checkTranscript(p, string(said), map[string]string{}); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
}

func TestAProgramThatSaysSomethingElseFails(t *testing.T) {
	for _, p := range Programs() {
		if judge(options{root: root}, []Program{p}, map[string]string{p.Name: transcript(p.Steps)}) == nil {
			t.Errorf("%s is accepted with other output", p.Name)
		}
	}
}

// TestEveryPackageIsPinned: every line is a package at a version.
func TestEveryPackageIsPinned(t *testing.T) {
	pins, err := filepath.Glob(filepath.Join("pins", "*.txt"))
	if err != nil || len(pins) < 4 {
		t.Fatalf("%v, %v", pins, err)
	}
	for _, path := range pins {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
			if !strings.HasPrefix(line, "#") && !pinned.MatchString(line) {
				t.Errorf("%s: %q", path, line)
			}
		}
	}
}

var pinned = regexp.MustCompile(`^[a-z0-9-]+==[0-9][0-9a-z.]*(; python_full_version < "[0-9.]+")?$`)

var version = regexp.MustCompile(`^[0-9]+(\.[0-9]+)+$`)

package mlx

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// These tests read the bridge's C++ source; they need no MLX.

// bridgeSources returns the text of every C++ file of the bridge by its name.
func bridgeSources(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.cpp")
	if err != nil || len(files) == 0 {
		t.Fatalf("no C++ file here: %v", err)
	}
	texts := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[f] = string(b)
	}
	return texts
}

func TestEveryEntryPointOfTheBridgeIsGuarded(t *testing.T) {
	header, err := os.ReadFile("bridge.h")
	if err != nil {
		t.Fatal(err)
	}
	defined := []string{"bridge_entered"} // reads a counter, and calls nothing that throws
	for name, text := range bridgeSources(t) {
		defined = append(defined, definedEntryPoints(text)...)
		for _, complaint := range unguarded(name, text) {
			t.Error(complaint)
		}
	}
	for _, name := range declaredEntryPoints(string(header)) {
		if !slices.Contains(defined, name) {
			t.Errorf("bridge.h declares %s, and no file defines it in a form that this test reads", name)
		}
	}
	if n := len(defined); n < 30 {
		t.Errorf("found %d entry points of the bridge, want at least 30", n)
	}
}

func TestUnguardedEntryPointsAreFound(t *testing.T) {
	const file = "testdata/unguarded.cpp"
	fixture, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, complaint := range unguarded(file, string(fixture)) {
		name, _, _ := strings.Cut(strings.TrimPrefix(complaint, file+": "), " ")
		found = append(found, name)
	}
	slices.Sort(found)
	if want := []string{"bridge_bare", "bridge_late", "bridge_number", "bridge_ownerless"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
}

// The pool of buffers is emptied in one place only, after a wait for all that
// runs: MLX may still use what lies in it.
func TestTheBridgeClearsThePoolInOnePlaceAfterWaiting(t *testing.T) {
	const clears = "clear_cache("
	total := 0
	for name, text := range bridgeSources(t) {
		n := strings.Count(text, clears)
		total += n
		before, _, _ := strings.Cut(text, clears)
		if n > 0 && !strings.HasSuffix(strings.TrimSpace(before), "mx::synchronize();\n    mx::") {
			t.Errorf("%s: nothing is waited for before the pool is cleared", name)
		}
	}
	if total != 1 {
		t.Errorf("the pool is cleared in %d places, want one", total)
	}
}

// declaredEntryPoints lists the functions that the bridge's header declares.
func declaredEntryPoints(header string) []string {
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^\w+ \*?(bridge_\w+)\(`).FindAllStringSubmatch(header, -1) {
		names = append(names, m[1])
	}
	return names
}

// entryPoint finds the functions that the bridge offers, with the beginning of
// their bodies. It does not find a function on a single line.
func entryPoint() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^\w+ \*?(bridge_\w+)\(([^)]*)\) \{\n(.*)\n((?:.*\n)?)`)
}

// definedEntryPoints lists the functions of a file that entryPoint finds.
func definedEntryPoints(text string) []string {
	var names []string
	for _, m := range entryPoint().FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

// unguarded lists the entry points in a file of the bridge that do not run in
// guarded, which keeps other threads out and exceptions in.
func unguarded(file, text string) []string {
	var out []string
	for _, m := range entryPoint().FindAllStringSubmatch(text, -1) {
		name, arguments, first := m[1], m[2], strings.TrimSpace(m[3])
		switch {
		case strings.HasPrefix(first, "return guarded<") && strings.Contains(first, ">(owner, "),
			strings.HasPrefix(first, "return making(owner, "),
			name == "bridge_attach" && strings.HasPrefix(first, "return guarded<bridge_attached>(become_owner(), "):
		case !strings.Contains(arguments, "uint64_t owner") && first == "try {":
			// It touches no framework; it still lets nothing out.
		default:
			out = append(out, fmt.Sprintf("%s: %s does not begin with guarded or making: an exception could leave it, or another thread enter", file, name))
		}
	}
	return out
}

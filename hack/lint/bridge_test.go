package lint

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestEveryEntryPointOfTheBridgeIsGuarded(t *testing.T) {
	header, err := os.ReadFile(filepath.Join(root, bridgeHeader))
	if err != nil {
		t.Fatal(err)
	}
	defined := []string{"bridge_entered"} // reads a counter, and calls nothing that throws
	committed(t, func(name, text string) bool {
		if isBridge(name) {
			defined = append(defined, definedEntryPoints(text)...)
			none(t, unguarded(name, text))
		}
		return false
	})
	for _, name := range declaredEntryPoints(string(header)) {
		if !slices.Contains(defined, name) {
			t.Errorf("%s declares %s, and no file of the bridge defines it in a form that this test reads", bridgeHeader, name)
		}
	}
	if n := len(defined); n < 30 {
		t.Errorf("found %d entry points of the bridge, want at least 30", n)
	}
}

func TestUnguardedEntryPointsOfABridgeAreFound(t *testing.T) {
	const file = "testdata/house/bridge.cpp"
	fixture, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const why = " does not begin with guarded or making: an exception could leave it, or another thread enter"
	same(t, unguarded(file, string(fixture)), []string{
		file + ": bridge_bare" + why,
		file + ": bridge_late" + why,
		file + ": bridge_number" + why,
		file + ": bridge_ownerless" + why,
	})
}

func TestTheBridgeClearsThePoolInOnePlaceAfterWaiting(t *testing.T) {
	var found []string
	committed(t, func(name, text string) bool {
		if !strings.HasSuffix(name, ".cpp") && !strings.HasSuffix(name, ".h") && !strings.HasSuffix(name, ".go") {
			return false
		}
		clears := poolClears(name, text)
		found = append(found, clears...)
		before, _, _ := strings.Cut(text, "clear_"+"cache(")
		if len(clears) > 0 && !strings.HasSuffix(strings.TrimSpace(before), "mx::synchronize();\n    mx::") {
			t.Errorf("%s: nothing is waited for before the pool is cleared", name)
		}
		return false
	})
	if len(found) != 1 || !strings.HasPrefix(found[0], "metal/mlx/") {
		t.Errorf("the pool is cleared at %q, want one place in the bridge", found)
	}
}

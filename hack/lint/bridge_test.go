package lint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// No entry point of the bridge lets another thread in.
func TestEveryEntryPointOfTheBridgeIsGuarded(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, bridgeFile))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(entryPoint().FindAllString(string(b), -1)); n < 30 {
		t.Errorf("found %d entry points in %s: was it read?", n, bridgeFile)
	}
	none(t, unguarded(string(b)))

	fixture, err := os.ReadFile("testdata/house/bridge.cpp")
	if err != nil {
		t.Fatal(err)
	}
	const says = " does not begin with guarded or making: an exception could leave it, or another thread enter"
	same(t, unguarded(string(fixture)), []string{
		bridgeFile + ": bridge_bare" + says,
		bridgeFile + ": bridge_late" + says,
		bridgeFile + ": bridge_number" + says,
		bridgeFile + ": bridge_ownerless" + says,
	})
}

// One helper synchronises and clears.
func TestPoolIsClearedInOnePlace(t *testing.T) {
	var found []string
	committed(t, func(name, text string) bool {
		if strings.HasSuffix(name, ".cpp") || strings.HasSuffix(name, ".h") || strings.HasSuffix(name, ".go") {
			found = append(found, poolClears(name, text)...)
		}
		return true
	})
	if len(found) != 1 || !strings.HasPrefix(found[0], bridgeFile) {
		t.Errorf("the pool is cleared at %q, want one place in %s", found, bridgeFile)
	}
	b, err := os.ReadFile(filepath.Join(root, bridgeFile))
	if err != nil {
		t.Fatal(err)
	}
	if clear := strings.Index(string(b), "clear_"+"cache("); !strings.HasSuffix(strings.TrimSpace(string(b[:clear])), "mx::synchronize();\n    mx::") {
		t.Errorf("%s: nothing is waited for before the pool is cleared", bridgeFile)
	}
}

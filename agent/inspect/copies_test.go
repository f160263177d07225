package inspect

import (
	"os"
	"path/filepath"
	"testing"
)

// An agent that is killed while it inspects leaves copies, which the next one removes.
func TestCopiesOfAKilledAgentAreRemoved(t *testing.T) {
	state := t.TempDir()
	dir, err := EmptyDir(state)
	if err != nil {
		t.Fatal(err)
	}
	look, err := (&Resolver{Dir: dir}).copyDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(look, "model.safetensors"), []byte("header"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := EmptyDir(state)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(again); err != nil || len(left) > 0 {
		t.Errorf("%d folders are left (%v)", len(left), err)
	}
	if _, err := os.Stat(look); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", look, err)
	}
}

package inspect

import (
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// The disk has the downloads of all tenants and the agent's own state, which copies of sources may
// not fill.
func TestNoSourceIsCopiedToADiskThatCopiesCouldFill(t *testing.T) {
	_, files := published(t, false)
	for free, refused := range map[int64]bool{64 << 20: true, copiesBytes - 1: true, copiesBytes: false} {
		r, _ := onHub(t, hubtest.Of(files))
		r.Free = func() (int64, error) { return free, nil }
		_, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "hf://org/tiny"})
		if refused {
			wantReason(t, err, v1alpha1.ReasonDiskFull)
		} else if err != nil {
			t.Errorf("with %d bytes free: %v", free, err)
		}
	}
}

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

// TestCopiesAreMadeAfterTheirFolderWasRemoved: a person may have freed a full disk.
func TestCopiesAreMadeAfterTheirFolderWasRemoved(t *testing.T) {
	state := t.TempDir()
	looks, err := EmptyDir(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(looks); err != nil {
		t.Fatal(err)
	}
	r := &Resolver{Dir: looks}
	if _, err := r.copyDir(); err != nil {
		t.Error(err)
	}
}

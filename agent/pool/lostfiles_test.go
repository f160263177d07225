package pool

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
)

// The files of a model were removed from the disk after they had been fetched.
func TestFilesThatAreGoneAreFetchedAgain(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{FailReason: "ModelNotFound"})
	fetches := 0
	r.weights.fetched = func(string) {
		if fetches++; fetches == 2 {
			r.script("m", enginetest.Script{})
		}
	}
	r.Apply(orders(assignment("u", "m")))
	if s := r.serving("u"); s.Restarts != 1 {
		t.Errorf("%d restarts", s.Restarts)
	}
}

// TestEnginesStartAfterTheirFoldersWereRemoved: a person frees a full disk, and systems empty /tmp.
func TestEnginesStartAfterTheirFoldersWereRemoved(t *testing.T) {
	play(t, func(s *stage) {
		for _, name := range []string{"run", "logs"} {
			if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib}))
		s.after(2 * time.Hour)
		s.want("a", "Serving True/Serving")
	})
}

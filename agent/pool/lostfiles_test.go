package pool

import (
	"testing"

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

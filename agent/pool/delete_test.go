package pool

import (
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
)

// TestDeleteWhatAReturningMacHoldsIsPromisedOnce: a Mac comes back after its
// replica was deleted and its memory promised to another one. What it holds
// still counts until its end was seen, and the new one waits that long; it is
// not refused for it.
func TestDeleteWhatAReturningMacHoldsIsPromisedOnce(t *testing.T) {
	play(t, func(s *stage) {
		old := s.model("old", enginetest.Script{HoldBytes: 40 * gib})
		s.follow(old)
		s.after(time.Minute)
		s.want("old", "Serving True/Serving")
		h := s.acquire("old")
		s.halt()
		h.Release()
		s.boot()
		busy := s.acquire("old") // a request of a gateway that was not told yet
		next := s.model("next", enginetest.Script{HoldBytes: 40 * gib})
		s.follow(next) // the orders of now: they do not name the old one
		s.after(time.Second)
		s.wantLedger("old")
		s.wantResident("old")
		if _, err := s.Acquire(s.ctx, "old", 1); err == nil {
			t.Error("a replica that is no longer assigned takes requests")
		}
		busy.Release()
		s.after(2 * time.Minute)
		s.wantLedger("next")
		s.wantResident("next")
		s.want("next", "Serving True/Serving")
		s.wantReclaims("old/Unassigned")
	})
}

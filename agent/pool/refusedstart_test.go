package pool

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/integrity"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
)

// A full disk or a replaced program ends, and so does what it keeps from starting.
func TestStartsThatTheSystemRefusesAreNeverTheLast(t *testing.T) {
	for name, why := range map[string]error{"full disk": syscall.ENOSPC, "no process": syscall.EAGAIN, "other program": &integrity.ChangedError{}} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.twin.RefuseStarts(fmt.Errorf("open engine log: %w", why))
				s.follow(s.model("a", enginetest.Script{HoldBytes: gib}))
				s.after(20 * time.Minute)
				s.want("a", "Loaded False/LoadFailed")
				s.twin.RefuseStarts(nil)
				s.after(maxPressurePause)
				s.want("a", "Serving True/Serving")
			})
		})
	}
}

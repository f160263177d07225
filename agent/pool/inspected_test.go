package pool

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/pool/process"
)

// uninspected are engines whose processes cannot be inspected a few times.
type uninspected struct {
	process.Engines
	left atomic.Int32
}

func (u *uninspected) Adopt(ctx context.Context, pid int, startTime string) (process.Handle, error) {
	if u.left.Add(-1) >= 0 {
		return nil, fmt.Errorf("inspect process %d: %w", pid, syscall.EMFILE)
	}
	return u.Engines.Adopt(ctx, pid, startTime)
}

// An engine that is lost keeps its memory, which is promised to others.
func TestAnEngineThatCannotBeInspectedAtOnceIsNotLost(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: 30 * gib})
		s.follow(a)
		s.after(10 * time.Second)
		pid := s.twin.Engine("a").PID()
		s.halt()
		s.wrap = func(e process.Engines) process.Engines {
			u := &uninspected{Engines: e}
			u.left.Store(3)
			return u
		}
		s.boot()
		s.follow(a)
		s.after(10 * time.Second)
		if n := len(s.twin.Engines()); n != 1 || s.report("a").PID != int64(pid) || s.Snapshot().Memory.ReservedBytes != a.ReservedBytes {
			t.Errorf("%d engines live, that of a is process %d, was %d; %d bytes are reserved", n, s.report("a").PID, pid, s.Snapshot().Memory.ReservedBytes)
		}
	})
}

package pool

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/pool/process"
)

// uninspected are engines whose processes cannot be inspected until a time: the agent has no
// descriptor left, say.
type uninspected struct {
	process.Engines
	until time.Time
}

type uninspectedHandle struct {
	process.Handle
	until time.Time
}

func (u uninspected) Start(ctx context.Context, s process.Spec) (process.Handle, error) {
	h, err := u.Engines.Start(ctx, s)
	return uninspectedHandle{h, u.until}, err
}

func (u uninspected) Adopt(ctx context.Context, pid int, startTime string) (process.Handle, error) {
	h, err := u.Engines.Adopt(ctx, pid, startTime)
	return uninspectedHandle{h, u.until}, err
}

func (h uninspectedHandle) Footprint() (int64, error) {
	if time.Now().Before(h.until) {
		return 0, fmt.Errorf("inspect process: %w", syscall.ENFILE)
	}
	return h.Handle.Footprint()
}

func (h uninspectedHandle) Signal(s syscall.Signal) error {
	if time.Now().Before(h.until) {
		return fmt.Errorf("inspect process: %w", syscall.ENFILE)
	}
	return h.Handle.Signal(s)
}

// inspectedAfter makes the processes of the next boot ones that cannot be inspected for a while.
func (s *stage) inspectedAfter(d time.Duration) {
	until := time.Now().Add(d)
	s.wrap = func(e process.Engines) process.Engines { return uninspected{e, until} }
}

// An engine that is lost keeps its memory, which is promised to others.
func TestAnEngineThatCannotBeInspectedIsNotLost(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: 30 * gib})
		s.follow(a)
		s.after(10 * time.Second)
		pid := s.twin.Engine("a").PID()
		s.halt()
		s.inspectedAfter(time.Minute)
		s.boot()
		s.follow(a)
		for _, d := range []time.Duration{10 * time.Second, 10 * time.Minute} {
			s.after(d)
			if n := len(s.twin.Engines()); n != 1 || s.report("a").PID != int64(pid) || s.Snapshot().Memory.ReservedBytes != a.ReservedBytes {
				t.Errorf("%d engines live, that of a is process %d, was %d; %d bytes are reserved", n, s.report("a").PID, pid, s.Snapshot().Memory.ReservedBytes)
			}
		}
	})
}

// An engine whose only signal could not be sent would live, and keep its reservation, for ever.
func TestAnEngineThatCannotBeSignalledEndsLater(t *testing.T) {
	play(t, func(s *stage) {
		s.halt()
		const trouble = 5 * time.Minute
		s.inspectedAfter(trouble)
		s.boot()
		s.follow(s.model("a", enginetest.Script{HoldBytes: 30 * gib}))
		s.after(10 * time.Second)
		_ = s.twin.Engine("a").Signal(syscall.SIGSTOP)
		s.follow() // its deployment is deleted
		s.after(trouble + time.Minute)
		if n := len(s.twin.Engines()); n != 0 || s.Snapshot().Memory.ReservedBytes != 0 {
			t.Errorf("%d engines live, %d bytes are reserved", n, s.Snapshot().Memory.ReservedBytes)
		}
	})
}

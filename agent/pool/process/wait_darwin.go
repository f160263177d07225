package process

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/agent/probe"
)

// waitGone returns nil when the process ended, without collecting it, and an
// error when ctx ended first. kqueue
// registers for the process that has the id now, which the start time makes
// sure is ours.
func waitGone(ctx context.Context, p *Process) error {
	pid := p.PID
	kq, err := unix.Kqueue()
	if err != nil {
		return fmt.Errorf("create kqueue for process %d: %w", pid, err)
	}
	defer unix.Close(kq)
	var event unix.Kevent_t
	unix.SetKevent(&event, pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	event.Fflags = unix.NOTE_EXIT
	if _, err := unix.Kevent(kq, []unix.Kevent_t{event}, nil, nil); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	if err := p.same(); errors.Is(err, probe.ErrGone) {
		return nil
	} else if err != nil && !p.child {
		return err
	}
	pause := unix.NsecToTimespec(int64(lookAgain)) // an end is seen at once; this bounds the end of ctx
	for ctx.Err() == nil {
		out := make([]unix.Kevent_t, 1)
		n, err := unix.Kevent(kq, nil, out, &pause)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("watch process %d: %w", pid, err)
		}
	}
	return ctx.Err()
}

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/agent/probe"
)

// waitGone returns nil when the process ended, without collecting it, and an
// error when ctx ended first. A pidfd
// becomes readable at the end of the process that had the id when it was
// opened, which the start time makes sure is ours.
func waitGone(ctx context.Context, p *Process) error {
	pid := p.PID
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pidfd of %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if err := p.same(); errors.Is(err, probe.ErrGone) {
		return nil
	} else if err != nil && !p.child {
		return err
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch pidfd of %d: %w", pid, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = conn.Read(func(fd uintptr) bool { // returns when the poller saw it readable
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	if err != nil {
		return fmt.Errorf("watch pidfd of %d: %w", pid, err)
	}
	return nil
}

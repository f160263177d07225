package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Engine is a living engine process.
type Engine struct {
	PID int
	// Command is its command line.
	Command []string

	started string // identity beside the pid, so that no successor is mistaken for it
}

// Engines lists the living engines whose state lies below dir, by pid. An
// engine runs in its own session and outlives agent and fleet by design; what
// ties it to a fleet is that its command line names a file below that fleet's
// folder.
func Engines(dir string) ([]Engine, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("folder %s: %w", dir, err)
	}
	all, err := processes()
	if err != nil {
		return nil, err
	}
	var out []Engine
	for _, e := range all {
		if isEngine(e.Command, dir) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Engine) int { return a.PID - b.PID })
	return out, nil
}

// isEngine says whether a command line is an engine's of the fleet in dir.
func isEngine(command []string, dir string) bool {
	if len(command) == 0 || filepath.Base(command[0]) != "engine" {
		return false
	}
	return slices.ContainsFunc(command[1:], func(arg string) bool {
		return strings.Contains(arg, dir+string(filepath.Separator))
	})
}

// Alive says whether this very process lives still; one that ended and was not
// yet waited for does not.
func (e Engine) Alive() bool {
	all, err := processes()
	if err != nil {
		return true // unknown counts as alive
	}
	return slices.ContainsFunc(all, func(o Engine) bool { return o.PID == e.PID && o.started == e.started })
}

// Kill ends the engine as a crash would.
func (e Engine) Kill() error { return e.signal(syscall.SIGKILL) }

func (e Engine) signal(s syscall.Signal) error {
	if !e.Alive() {
		return nil
	}
	if err := syscall.Kill(e.PID, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal engine %d: %w", e.PID, err)
	}
	return nil
}

// Sweep ends every engine whose state lies below dir: with SIGTERM, and with
// SIGKILL those that take too long or when hurry is done. No agent of that
// folder may run, or it would start them again.
func Sweep(hurry context.Context, dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		engines, err := Engines(dir)
		if err != nil || len(engines) == 0 {
			return err
		}
		for _, e := range engines {
			if err := e.signal(s); err != nil {
				return err
			}
		}
		waiting := hurry
		if s == syscall.SIGKILL {
			waiting = context.Background() // what is killed ends soon, and nothing may be left
		}
		waitGone(waiting, dir)
	}
	left, err := Engines(dir)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%d engines below %s have not ended %s after SIGKILL, the first is pid %d", len(left), dir, graceful, left[0].PID)
	}
	return err
}

// waitGone waits a bounded time until no engine below dir lives.
func waitGone(ctx context.Context, dir string) {
	ctx, cancel := context.WithTimeout(ctx, graceful)
	defer cancel()
	_ = Poll(ctx, 20*time.Millisecond, "engines end", func(context.Context) error {
		left, err := Engines(dir)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d live", len(left))
		}
		return err
	})
}

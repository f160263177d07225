package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

	started string // with the pid its identity: a pid is used again
}

// Engines lists the living engines whose state is under dir, by pid. An engine
// runs in its own session and outlives agent and fleet by design; its command
// line names a file of its fleet.
func Engines(dir string) ([]Engine, error) {
	folders, err := foldersOf(dir)
	if err != nil {
		return nil, err
	}
	all, err := processes()
	if err != nil {
		return nil, err
	}
	var out []Engine
	for _, e := range all {
		if isEngine(e.Command, folders...) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Engine) int { return a.PID - b.PID })
	return out, nil
}

// foldersOf are dir and the folders where agents with a state folder at or under
// dir put the sockets of their engines when their own path is too long for a
// socket's name.
func foldersOf(dir string) ([]string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("folder %s: %w", dir, err)
	}
	out := []string{dir, socketFolder(dir)}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("folder: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, socketFolder(filepath.Join(dir, e.Name())))
		}
	}
	return out, nil
}

// socketFolder is agent/pool's second choice for a state folder's sockets.
func socketFolder(state string) string {
	sum := sha256.Sum256([]byte(state))
	return filepath.Join("/tmp", "metalfleet-"+hex.EncodeToString(sum[:6]))
}

// isEngine reports whether a command line is that of an engine with its files in
// one of the folders.
func isEngine(command []string, folders ...string) bool {
	if len(command) == 0 || filepath.Base(command[0]) != "engine" {
		return false
	}
	for _, arg := range command[1:] {
		for _, dir := range folders {
			if strings.Contains(arg, dir+string(filepath.Separator)) {
				return true
			}
		}
	}
	return false
}

// Remove ends what Sweep ends and removes every folder of the fleet in dir.
func Remove(hurry context.Context, dir string) error {
	if err := Sweep(hurry, dir); err != nil {
		return err
	}
	folders, err := foldersOf(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range folders {
		errs = append(errs, os.RemoveAll(f))
	}
	return errors.Join(errs...)
}

// Alive reports whether this very process lives; one that ended and was not yet
// waited for does not.
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

// graceful is how long an engine may take to end after SIGTERM before it is
// killed: three times what the slowest was seen to take.
const graceful = 10 * time.Second

// Sweep ends every engine whose state is under dir: with SIGTERM, and with
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
		err = fmt.Errorf("%d engines under %s have not ended %s after SIGKILL, the first is pid %d", len(left), dir, graceful, left[0].PID)
	}
	return err
}

// waitGone waits a bounded time until no engine under dir lives.
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

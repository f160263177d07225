package pool

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestTheFolderOfSocketsOfAnotherIsRefused: with a long state folder it is in /tmp, where any user of
// the machine may have made it first. A link there leads to what that user chose.
func TestTheFolderOfSocketsOfAnotherIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		make    func(at string) error
		refused bool
	}{
		"none yet":       {make: func(string) error { return nil }},
		"of this user":   {make: func(at string) error { return os.Mkdir(at, 0o700) }},
		"open to others": {make: func(at string) error { return os.Mkdir(at, 0o755) }, refused: true},
		"a link":         {make: func(at string) error { return os.Symlink(os.TempDir(), at) }, refused: true},
		"a file":         {make: func(at string) error { return os.WriteFile(at, nil, 0o700) }, refused: true},
		"another user's": {make: func(at string) error {
			if err := os.Mkdir(at, 0o700); err != nil || os.Geteuid() != 0 {
				return err
			}
			return os.Chown(at, 12345, -1)
		}, refused: os.Geteuid() == 0},
	} {
		state := filepath.Join(t.TempDir(), strings.Repeat("s", maxSocketPath)+strconv.Itoa(len(name)))
		if err := os.Mkdir(state, 0o700); err != nil {
			t.Fatal(err)
		}
		at := filepath.Join("/tmp", "metalfleet-"+shortHash(state))
		t.Cleanup(func() { _ = os.RemoveAll(at) })
		if err := tc.make(at); err != nil {
			t.Fatal(err)
		}
		_, err := newFiles(state)
		if again := (files{run: at, logs: state}).restore(); tc.refused != (again != nil) {
			t.Errorf("%s: made again: %v", name, again)
		}
		if tc.refused != (err != nil) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && !(strings.Contains(err.Error(), at) && strings.Contains(err.Error(), "--state")) {
			t.Errorf("%s: %v, want the folder and the next step", name, err)
		}
	}
}

// TestWhatAnEngineLeftAtItsSocketIsRemoved, at its end and when an agent starts. Nothing bounds it.
func TestWhatAnEngineLeftAtItsSocketIsRemoved(t *testing.T) {
	r, _, s := served(t)
	sockets, err := filepath.Glob(filepath.Join(r.dir, "run", "*.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatal(sockets, err)
	}
	left := []string{sockets[0], filepath.Join(r.dir, "run", "an-1.sock"), filepath.Join(r.dir, "run", "other")}
	for _, at := range left {
		if err := errors.Join(os.RemoveAll(at), os.MkdirAll(at, 0o700), os.WriteFile(filepath.Join(at, "own"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(int(s.PID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.boot()
	eventually(t, func() string {
		for _, at := range left {
			if _, err := os.Lstat(at); err == nil {
				return at + " is still there"
			}
		}
		return ""
	})
}

// TestASocketOfALivingEngineStays when another agent starts.
func TestASocketOfALivingEngineStays(t *testing.T) {
	r, _, _ := served(t)
	before, err := filepath.Glob(filepath.Join(r.dir, "run", "*"))
	if err != nil || len(before) != 2 {
		t.Fatal(before, err)
	}
	r.boot()
	for _, at := range before {
		if _, err := os.Lstat(at); err != nil {
			t.Error(err)
		}
	}
}

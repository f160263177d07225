package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestAFullDiskHasRoomForOneChangeMore: of a disk that is full as long as the reserve is there, the
// reserve gives way to a change that gives something back, and is made again.
func TestAFullDiskHasRoomForOneChangeMore(t *testing.T) {
	dir := t.TempDir()
	j, err := Open(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	reserve := filepath.Join(dir, reserveName)
	if err := j.Update(func(s *State) { s.Desired = &Desired{} }); err != nil {
		t.Fatal(err)
	}
	size := func() int64 {
		info, err := os.Stat(reserve)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	if size() < leastReserve {
		t.Fatalf("the reserve has %d bytes after a change, want at least %d", size(), leastReserve)
	}
	for _, c := range []struct {
		cause error
		tries int
	}{{syscall.ENOSPC, 2}, {syscall.EDQUOT, 2}, {syscall.EIO, 1}} {
		tries := 0
		err := withReserve(reserve, 1, func() error {
			if tries++; size() > 0 {
				return fmt.Errorf("write: %w", c.cause)
			}
			return nil
		})
		if tries != c.tries || (err == nil) != (c.tries == 2) || err != nil && !errors.Is(err, c.cause) {
			t.Errorf("after %v it was written %d times (%v), want %d", c.cause, tries, err, c.tries)
		}
		if size() < leastReserve {
			t.Errorf("after %v the reserve has %d bytes", c.cause, size())
		}
	}
}

// TestTheReserveGrowsWithTheJournal: a new file is written before the old one is gone.
func TestTheReserveGrowsWithTheJournal(t *testing.T) {
	reserve := filepath.Join(t.TempDir(), reserveName)
	for _, bytes := range []int{1, leastReserve, 1} {
		keepReserve(reserve, bytes)
		if info, err := os.Stat(reserve); err != nil || info.Size() < int64(2*bytes) {
			t.Errorf("a journal of %d bytes: %v, %v", bytes, info, err)
		}
	}
}

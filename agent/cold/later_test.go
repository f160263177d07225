//go:build !race

package cold_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// slowDisk takes a millisecond for each name, by the clock of the owner.
type slowDisk struct {
	disk.Contained
	now  time.Time
	free int64
	// deepest is the deepest path that was looked at or removed, in folders of the cache.
	deepest int
}

func (s *slowDisk) used(path string) {
	s.now = s.now.Add(time.Millisecond)
	s.deepest = max(s.deepest, strings.Count(path[len(s.Dir):], string(filepath.Separator)))
}

func (s *slowDisk) Free(string) (int64, error) { return s.free, nil }

func (s *slowDisk) Stat(path string) (disk.Info, error) {
	s.used(path)
	return s.Contained.Stat(path)
}

func (s *slowDisk) ReadDir(path string) ([]disk.Info, error) {
	s.used(path)
	return s.Contained.ReadDir(path)
}

func (s *slowDisk) Remove(path string) error {
	s.used(path)
	return s.Contained.Remove(path)
}

// slow opens the cache again on such a disk.
func (e *takenOver) slow() *slowDisk {
	e.Helper()
	s := &slowDisk{Contained: disk.Contained{Dir: e.options.Dir}, now: time.Now(), free: 1 << 42}
	e.options.FS, e.options.Now = s, func() time.Time { return s.now }
	e.lease.End()
	e.open()
	var err error
	if e.lease, err = e.owner.Lease(e.origin, nil); err != nil {
		e.Fatal(err)
	}
	return s
}

// folders makes folders in a chain of that many.
func folders(at string, depth, names int) error {
	at = filepath.Join(at, strings.Repeat("d/", depth))
	err := os.MkdirAll(at, 0o700)
	for i := range names {
		err = errors.Join(err, os.Mkdir(filepath.Join(at, strconv.Itoa(i)), 0o700))
	}
	return err
}

func TestWhatAnEngineLeftKeepsOthersFromTheCacheForSecondsOnly(t *testing.T) {
	for _, at := range []string{"..", ".", filepath.Join("tmp", "EPOCH")} {
		t.Run(at, func(t *testing.T) {
			e := newTakenOver(t)
			s := e.slow()
			left := filepath.Join(e.namespace, strings.Replace(at, "EPOCH", e.lease.Current().Epoch, 1), "left")
			if err := folders(left, 20, 1800); err != nil {
				t.Fatal(err)
			}
			e.owner.Overfull()
			last := filepath.Join(left, strings.Repeat("d/", 20), "z")
			e.write(last)
			if err := os.Truncate(last, 1<<40); err != nil {
				t.Fatal(err)
			}
			s.free -= 1 << 40
			for n, call := 0, e.lease.End; n == 0 || e.owner.Snapshot().Waiting; n, call = n+1, e.owner.Tick {
				began := s.now
				call()
				if took := s.now.Sub(began); took > 4*time.Second || n > 20 {
					t.Fatalf("call %d took %v", n, took)
				}
				if got := e.owner.Overfull(); got != nil {
					t.Errorf("an engine is ended for what the earlier one left: %v", got)
				}
			}
			if p := e.owner.Snapshot().Problem; p != "" {
				t.Error(p)
			}
			if _, err := os.Lstat(left); err == nil {
				t.Error("it is left")
			}
		})
	}
}

func TestDepthOfFoldersCostsNothing(t *testing.T) {
	for name, find := range map[string]func(e *takenOver, s *slowDisk){
		"an end":  func(e *takenOver, _ *slowDisk) { e.lease.End() },
		"a start": func(e *takenOver, _ *slowDisk) { e.open() },
		"a look": func(e *takenOver, s *slowDisk) {
			e.owner.Overfull()
			s.free -= 1 << 40
			e.owner.Overfull()
		},
		"a clear": func(e *takenOver, _ *slowDisk) { _, _ = e.owner.ClearAll() },
	} {
		t.Run(name, func(t *testing.T) {
			e := newTakenOver(t)
			s := e.slow()
			if err := errors.Join(folders(filepath.Join(e.namespace, "left"), 240, 10), folders(filepath.Join(e.namespace, "..", "left"), 240, 10)); err != nil {
				t.Fatal(err)
			}
			s.deepest = 0
			find(e, s)
			if s.deepest > 32 {
				t.Errorf("a path has %d folders", s.deepest)
			}
		})
	}
}

//go:build !race

package cold_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

const (
	large = 1 << 20
	names = 200
)

// vanish writes one large block, has it entered in the books, and does the same with it under many names.
func (e *takenOver) vanish(next func(e *takenOver, from, to string) error) {
	e.Helper()
	e.fill(e.path(0))
	for i := range names {
		l := e.lease.Report(blocks.Report{Epoch: e.lease.Current().Epoch, WantedBytes: 2 * large, LeastBytes: 2 * large})
		e.lease.Report(blocks.Report{Epoch: l.Epoch, Persisted: []blocks.File{{Key: key("a", i), Bytes: large}}})
		if err := next(e, e.path(i), e.path(i+1)); err != nil {
			e.Fatal(err)
		}
	}
}

func (e *takenOver) fill(path string) {
	e.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, large), 0o600)); err != nil {
		e.Fatal(err)
	}
}

// ways in which an engine has blocks in the books that are not on the disk.
var ways = map[string]func(e *takenOver, from, to string) error{
	"renamed": func(_ *takenOver, from, to string) error {
		return errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.Rename(from, to))
	},
	"cut": func(e *takenOver, from, to string) error {
		e.fill(to)
		return os.Truncate(from, 0)
	},
}

// TestBlocksThatVanishedFreeNothing: no download gets room that is not there.
func TestBlocksThatVanishedFreeNothing(t *testing.T) {
	for name, next := range ways {
		t.Run(name, func(t *testing.T) {
			e := newTakenOver(t)
			defer e.lease.End()
			e.vanish(next)
			if freed := e.owner.GiveWay(names / 2 * large); freed > 2*large {
				t.Errorf("%d bytes are made free, of one file of %d bytes", freed, large)
			}
		})
	}
}

// TestBlocksThatVanishLeaveTheBooks, and their engine is ended if they do so again.
func TestBlocksThatVanishLeaveTheBooks(t *testing.T) {
	for name, next := range ways {
		t.Run(name, func(t *testing.T) {
			e := newTakenOver(t)
			defer e.lease.End()
			e.vanish(next)
			if folders := e.owner.Overfull(); len(folders) != 0 {
				t.Errorf("engines of %v are ended after files were removed once", folders)
			}
			if s := e.owner.Snapshot(); s.UsedBytes > 3*large {
				t.Errorf("%d files of %d bytes are in the books", s.Files, s.UsedBytes)
			}
			e.vanish(next)
			if folders := e.owner.Overfull(); len(folders) != 1 || folders[0] != filepath.Dir(e.namespace) {
				t.Errorf("engines of %v are ended, want those of %s", folders, filepath.Dir(e.namespace))
			}
		})
	}
}

// TestFilesOfTheCacheMayBeRemovedByHand, now and then.
func TestFilesOfTheCacheMayBeRemovedByHand(t *testing.T) {
	now := time.Now()
	e := newTakenOver(t)
	e.lease.End()
	e.options.Now = func() time.Time { return now }
	e.open()
	var err error
	if e.lease, err = e.owner.Lease(e.origin, nil); err != nil {
		t.Fatal(err)
	}
	defer e.lease.End()
	e.granted(3)
	for range 3 {
		e.write(e.path(0))
		e.claims(1)
		if err := os.Remove(e.path(0)); err != nil {
			t.Fatal(err)
		}
		if folders := e.owner.Overfull(); len(folders) != 0 || e.owner.Snapshot().Files != 0 {
			t.Errorf("engines of %v are ended, %d files are in the books", folders, e.owner.Snapshot().Files)
		}
		now = now.Add(time.Hour)
	}
}

//go:build !race

package cold_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// roomy is a disk whose free space the test sets, and which counts the folders that are read.
type roomy struct {
	disk.Contained
	free int64
	read int
}

func (r *roomy) Free(string) (int64, error) { return r.free, nil }

// full gives a file the space of its size, without writing it.
func full(i disk.Info) disk.Info {
	i.Allocated = max(i.Allocated, blocks.Takes(i.Bytes))
	return i
}

func (r *roomy) Stat(path string) (disk.Info, error) {
	i, err := r.Contained.Stat(path)
	return full(i), err
}

func (r *roomy) ReadDir(path string) ([]disk.Info, error) {
	r.read++
	infos, err := r.Contained.ReadDir(path)
	for n, i := range infos {
		infos[n] = full(i)
	}
	return infos, err
}

// TestAFolderThatTakesMoreThanItWasGrantedIsFound: an engine that was taken over fills the disk
// while it runs. Its folder alone is named, and nothing of it is left after its end.
func TestAFolderThatTakesMoreThanItWasGrantedIsFound(t *testing.T) {
	for name, write := range map[string]func(e *takenOver) string{
		"next to the blocks":  func(e *takenOver) string { return filepath.Join(filepath.Dir(e.namespace), "own") },
		"among the blocks":    func(e *takenOver) string { return filepath.Join(e.namespace, "own", "deep", "file") },
		"as a block":          func(e *takenOver) string { return e.block(1) },
		"as a reported block": func(e *takenOver) string { return e.block(2) },
		"in its epoch": func(e *takenOver) string {
			return filepath.Join(blocks.EpochFolder(filepath.Dir(e.namespace), blocks.NamespaceOf(e.origin), e.lease.Current().Epoch), "own")
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newTakenOver(t)
			fs := &roomy{Contained: disk.Contained{Dir: e.options.Dir}, free: 1 << 42}
			e.options.FS = fs
			e.lease.End()
			e.open()
			honest, err := e.owner.Lease(origin("b"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if e.lease, err = e.owner.Lease(e.origin, nil); err != nil {
				t.Fatal(err)
			}
			report := blocks.Report{Epoch: e.lease.Current().Epoch, WantedBytes: 1 << 20, LeastBytes: 1 << 20}
			e.lease.Report(report)
			if got := e.owner.Overfull(); got != nil {
				t.Fatalf("%v before anything was written", got)
			}
			at := write(e)
			e.write(at)
			if err := os.Truncate(at, 1<<40); err != nil {
				t.Fatal(err)
			}
			if name == "as a reported block" {
				report.WantedBytes, report.Persisted = 0, []blocks.File{{Key: e.key(2), Bytes: page}}
				e.lease.Report(report)
			}
			fs.read = 0
			if got := e.owner.Overfull(); got != nil || fs.read > 0 {
				t.Errorf("%v while the disk is as free as before, after %d folders were read", got, fs.read)
			}
			fs.free -= 1 << 40
			want := []string{filepath.Dir(e.namespace)}
			if got := e.owner.Overfull(); !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			e.leavesNothing(at)
			honest.End()
			e.untouched("after the end")
		})
	}
}

// leavesNothing ends the engine, and checks that a file of it is removed and that its folder is not named again.
func (e *takenOver) leavesNothing(file string) {
	e.Helper()
	e.lease.End()
	for e.owner.GiveWay(1<<41) > 0 {
	}
	if _, err := os.Stat(file); err == nil {
		e.Error("the file is still there after the engine ended")
	}
	for range 2 {
		if got := e.owner.Overfull(); got != nil {
			e.Errorf("%v after that", got)
		}
	}
}

func (e *takenOver) key(n int) kv.Key {
	return kv.Root(e.origin, kv.Salt{}).Next([]int32{int32(n)})
}

// block is the path of a block.
func (e *takenOver) block(n int) string {
	return blocks.Path(filepath.Dir(e.namespace), blocks.NamespaceOf(e.origin), e.key(n))
}

// TestAFolderThatTakesWhatItWasGrantedIsLeftAlone, however much others take of the disk.
func TestAFolderThatTakesWhatItWasGrantedIsLeftAlone(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		for n := range 8 {
			e.put(n)
		}
		for range 8 {
			m.f.Occupy(m.f.Used()/2 + 100<<20)
			if got := m.w.Overfull(); got != nil {
				t.Errorf("%v", got)
			}
		}
		for n := range 8 {
			if !e.has(n) {
				t.Errorf("block %d is gone", n)
			}
		}
		e.stop()
	})
}

// TestTheNextEngineIsNotEndedForWhatAnEarlierOneLeft: the first one was taken over.
func TestTheNextEngineIsNotEndedForWhatAnEarlierOneLeft(t *testing.T) {
	for name, leave := range map[string]func(e *takenOver) error{
		"a file among the blocks": func(e *takenOver) error {
			at := filepath.Join(e.namespace, "own")
			e.write(at)
			return os.Truncate(at, 1<<40)
		},
		"a file that is no block": func(e *takenOver) error {
			e.write(e.block(1))
			return os.Truncate(e.block(1), 1<<40)
		},
		"a path that is too long":       func(e *takenOver) error { return deep(e.namespace, 2000) },
		"a link in place of its epochs": func(e *takenOver) error { e.link(blocks.Temporary); return nil },
		"a link to its own folder in place of its epochs": func(e *takenOver) error {
			at := filepath.Join(e.namespace, blocks.Temporary)
			return errors.Join(os.RemoveAll(at), os.Symlink(blocks.Shards()[1], at))
		},
		"a file in place of its epochs": func(e *takenOver) error {
			at := filepath.Join(e.namespace, blocks.Temporary)
			return errors.Join(os.RemoveAll(at), os.WriteFile(at, nil, 0o600))
		},
		"a folder that is not empty in place of the name of an ended epoch": func(e *takenOver) error {
			e.write(filepath.Join(e.namespace, blocks.Temporary, ".gone-"+e.lease.Current().Epoch, "own"))
			return nil
		},
		"a link to a folder of its own in place of a folder": func(e *takenOver) error {
			at := filepath.Join(e.namespace, blocks.Shards()[0])
			return errors.Join(os.RemoveAll(at), os.Symlink(blocks.Shards()[1], at))
		},
		"a link in place of all": func(e *takenOver) error {
			return errors.Join(os.RemoveAll(e.namespace), os.Symlink(e.state, e.namespace))
		},
		"a file in place of all": func(e *takenOver) error {
			return errors.Join(os.RemoveAll(e.namespace), os.WriteFile(e.namespace, nil, 0o600))
		},
		"a link in place of a folder": func(e *takenOver) error {
			e.link(blocks.Shards()[0])
			at := filepath.Join(e.namespace, "own")
			e.write(at)
			return os.Truncate(at, 1<<40)
		},
	} {
		t.Run(name, func(t *testing.T) { newTakenOver(t).leaves(leave) })
	}
}

// leaves requires that the end of an engine that left something ends no later one, which has
// the whole cache.
func (e *takenOver) leaves(leave func(e *takenOver) error) {
	e.Helper()
	fs := &roomy{Contained: disk.Contained{Dir: e.options.Dir}, free: 1 << 42}
	e.options.FS = fs
	e.lease.End()
	e.open()
	var err error
	if e.lease, err = e.owner.Lease(e.origin, nil); err != nil {
		e.Fatal(err)
	}
	e.owner.Overfull()
	if err := leave(e); err != nil {
		e.Fatal(err)
	}
	fs.free -= 1 << 40
	e.owner.Overfull()
	e.lease.End()
	e.owner.Tick()
	for n := range 3 {
		next, err := e.owner.Lease(e.origin, nil)
		if err != nil {
			e.Fatalf("engine %d: %v", n, err)
		}
		if got := e.owner.Overfull(); got != nil {
			e.Errorf("engine %d is ended: %v", n, got)
		}
		next.End()
		e.owner.Tick()
	}
	if s := e.owner.Snapshot(); s.GrantedBytes != 0 || s.Problem != "" {
		e.Errorf("%+v", s)
	}
}

// deep makes folders in folders until their names are that long together.
func deep(at string, bytes int) error {
	root, err := os.OpenRoot(at)
	for name := strings.Repeat("d", 99); err == nil && bytes > 0; bytes -= len(name) + 1 {
		var next *os.Root
		if err = root.Mkdir(name, 0o700); err == nil {
			next, err = root.OpenRoot(name)
		}
		err = errors.Join(err, root.Close())
		root = next
	}
	if err == nil {
		err = root.Close()
	}
	return err
}

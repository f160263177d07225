//go:build !race

package cold_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

// takenOver is a cache with an engine that was taken over: it changes what it likes in the
// folder of its model, and nothing elsewhere.
type takenOver struct {
	*testing.T
	options cold.Options
	owner   *cold.Owner
	origin  kv.Origin
	lease   *cold.Lease
	// namespace is the folder of its blocks, and state one that it cannot change.
	namespace, state string
}

func newTakenOver(t *testing.T) *takenOver {
	dir := filepath.Join(t.TempDir(), "kv")
	e := &takenOver{T: t, options: cold.Options{FS: disk.Contained{Dir: dir}, Dir: dir}, origin: origin("a"), state: t.TempDir()}
	e.write(filepath.Join(e.state, "weights", "model"))
	e.write(filepath.Join(e.state, "identity.json"))
	e.open()
	e.namespace = blocks.Folder(blocks.ModelFolder(dir, e.origin.Model), blocks.NamespaceOf(e.origin))
	var err error
	if e.lease, err = e.owner.Lease(e.origin, nil); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *takenOver) open() {
	e.Helper()
	var err error
	if e.owner, err = cold.Open(e.options); err != nil {
		e.Fatal(err)
	}
}

func (e *takenOver) write(path string) {
	e.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
		e.Fatal(err)
	}
}

// link puts a link to the other folder in place of one of its own.
func (e *takenOver) link(name string) {
	e.Helper()
	at := filepath.Join(e.namespace, name)
	if err := errors.Join(os.RemoveAll(at), os.Symlink(e.state, at)); err != nil {
		e.Fatal(err)
	}
}

// untouched requires that the other folder is as it was.
func (e *takenOver) untouched(after string) {
	e.Helper()
	for _, path := range []string{"weights/model", "identity.json"} {
		if _, err := os.Stat(filepath.Join(e.state, path)); err != nil {
			e.Errorf("%s: %v", after, err)
		}
	}
	if all, err := os.ReadDir(e.state); err != nil || len(all) != 2 {
		e.Errorf("%s the folder has %v, %v", after, all, err)
	}
}

// TestAttackLinksInTheFolderOfAModel: the agent is not confined as the engine is, and removes
// and makes files by paths that the engine can change.
func TestAttackLinksInTheFolderOfAModel(t *testing.T) {
	e := newTakenOver(t)
	e.link(blocks.Temporary)
	if _, err := e.owner.ClearAll(); err != nil {
		t.Error(err)
	}
	e.untouched("after its cache was cleared")
	e.link(blocks.Temporary)
	e.lease.End()
	e.open()
	e.untouched("after a start")
	if s := e.owner.Snapshot(); s.Problem != "" {
		t.Error(s.Problem)
	}
	for _, shard := range blocks.Shards() {
		e.link(shard)
	}
	next, err := e.owner.Lease(e.origin, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, shard := range blocks.Shards() {
		if i, err := os.Lstat(filepath.Join(e.namespace, shard)); err != nil || !i.IsDir() {
			t.Errorf("a lease on a folder elsewhere: %v, %v", i, err)
		}
	}
	next.End()
	if _, err := e.owner.Keep(nil); err != nil {
		t.Error(err)
	}
	e.untouched("after the model was removed")
}

// TestALinkInPlaceOfTheFolderOfAModelIsRemovedAlone: all that the agent does next leaves the other
// folder as it was.
func TestALinkInPlaceOfTheFolderOfAModelIsRemovedAlone(t *testing.T) {
	fs := &roomy{free: 1 << 42}
	for name, do := range map[string]func(e *takenOver, model string) error{
		"its lease ends": func(e *takenOver, _ string) error { e.lease.End(); return nil },
		"a start":        func(e *takenOver, _ string) error { e.open(); return nil },
		"a lease":        func(e *takenOver, _ string) error { _, err := e.owner.Lease(e.origin, nil); return err },
		"a lease of another kind": func(e *takenOver, _ string) error {
			e.origin.Layout = "another"
			_, err := e.owner.Lease(e.origin, nil)
			return err
		},
		"its folder is weighed": func(e *takenOver, model string) error {
			fs.free -= 1 << 40
			if got := e.owner.Overfull(); !slices.Equal(got, []string{model}) {
				return fmt.Errorf("its engine continues: %v", got)
			}
			return nil
		},
		"its cache is cleared": func(e *takenOver, _ string) error { _, err := e.owner.Clear(blocks.NamespaceOf(e.origin)); return err },
		"all are cleared":      func(e *takenOver, _ string) error { _, err := e.owner.ClearAll(); return err },
		"it stays assigned": func(e *takenOver, _ string) error {
			_, err := e.owner.Keep(map[string]bool{e.origin.Model: true})
			return err
		},
		"it is not assigned": func(e *takenOver, _ string) error { e.lease.End(); _, err := e.owner.Keep(nil); return err },
		"the next engine": func(e *takenOver, model string) error {
			removed, err := cold.Prepare(e.options.FS, e.options.Dir, e.origin.Model)
			if info, missing := os.Lstat(model); !removed || missing != nil || !info.IsDir() {
				err = errors.Join(err, missing, fmt.Errorf("removed %t: %v", removed, info))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newTakenOver(t)
			e.lease.End()
			fs.Contained, e.options.FS = disk.Contained{Dir: e.options.Dir}, fs
			e.open()
			var err error
			if e.lease, err = e.owner.Lease(e.origin, nil); err != nil {
				t.Fatal(err)
			}
			e.owner.Overfull()
			model := filepath.Dir(e.namespace)
			if err := errors.Join(os.RemoveAll(model), os.Symlink(e.state, model)); err != nil {
				t.Fatal(err)
			}
			if err := do(e, model); err != nil {
				t.Error(err)
			}
			if info, err := os.Lstat(model); err == nil && !info.IsDir() {
				t.Error("the link is still there")
			}
			if s := e.owner.Snapshot(); name != "the next engine" && !strings.Contains(s.Problem, model) {
				t.Errorf("problem %q, want one that names %s", s.Problem, model)
			}
			e.untouched("after " + name)
		})
	}
}

// TestAttackAFolderThatIsSwappedForALink: what is listed is no longer there when it is evicted.
func TestAttackAFolderThatIsSwappedForALink(t *testing.T) {
	e := newTakenOver(t)
	e.write(filepath.Join(e.namespace, "own", "identity.json"))
	e.open()
	if s := e.owner.Snapshot(); s.ForeignFiles != 1 {
		t.Fatalf("%d files are no blocks, want 1", s.ForeignFiles)
	}
	e.link("own")
	e.owner.GiveWay(1 << 30)
	e.untouched("after an eviction")
}

// TestAttackAPipeInPlaceOfAFile: to open it waits for the engine, while all others wait for the
// cache, and downloads for the disk.
func TestAttackAPipeInPlaceOfAFile(t *testing.T) {
	e := newTakenOver(t)
	e.origin.Layout = "another"
	folder := blocks.Folder(filepath.Dir(e.namespace), blocks.NamespaceOf(e.origin))
	pipe := filepath.Join(folder, blocks.OriginFile)
	if err := errors.Join(os.MkdirAll(folder, 0o700), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.owner.Lease(e.origin, nil); err == nil {
		t.Error("a lease with a pipe in place of its origin")
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if _, err := e.owner.Lease(e.origin, nil); err == nil {
		t.Error("a lease with a pipe that the engine reads")
	}
}

// TestAttackAFolderThatCannotBeRead: an engine takes the rights to a folder of its blocks away, and
// the caches of all other models are as they were.
func TestAttackAFolderThatCannotBeRead(t *testing.T) {
	for name, unreadable := range map[string]string{"its model's": folder("a"), "its blocks'": blocks.Folder(folder("a"), blocks.NamespaceOf(origin("a")))} {
		play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
			for _, model := range []string{"a", "b"} {
				e := m.engine(model)
				e.put(1)
				e.stop()
			}
			after := m.f.Restart()
			after.Inject(func(op faultfs.Op) faultfs.Fault {
				if op.Kind == faultfs.ReadDir && op.Path == unreadable {
					return faultfs.Fault{Err: fs.ErrPermission}
				}
				return faultfs.Fault{}
			})
			again := newMac(t, after, blocks.Budget{})
			e := again.engine("b")
			if !e.has(1) {
				t.Errorf("%s folder: the block of another model is lost", name)
			}
			if err := e.tier.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if s := again.w.Snapshot(); s.Files != 1 || !strings.Contains(s.Problem, "Cannot read") {
				t.Errorf("%s folder: %d files are known, problem %q", name, s.Files, s.Problem)
			}
		})
	}
}

// TestFilesNextToTheBlocksOfAnEngineAreRemoved: an engine that was taken over writes where no
// block lies, so that the disk is full of what counts nowhere.
func TestFilesNextToTheBlocksOfAnEngineAreRemoved(t *testing.T) {
	e := newTakenOver(t)
	model := filepath.Dir(e.namespace)
	sibling := e.origin
	sibling.Layout = "another"
	other, err := e.owner.Lease(sibling, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.write(filepath.Join(model, "before"))
	e.lease.End()
	e.open() // which finds it
	if e.lease, err = e.owner.Lease(e.origin, nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"own", "folder/own", strings.Repeat("a", 64) + "/own"} {
		e.write(filepath.Join(model, path))
	}
	if err := os.Symlink(e.state, filepath.Join(model, "link")); err != nil {
		t.Fatal(err)
	}
	e.lease.End()
	all, err := os.ReadDir(model)
	if err != nil || len(all) != 2 {
		t.Errorf("%d names in the folder of the model, want those of its two kinds of blocks; %v: %v", len(all), err, all)
	}
	if s := e.owner.Snapshot(); s.ForeignFiles != 0 || s.UsedBytes != 0 || s.Problem != "" {
		t.Errorf("%+v", s)
	}
	e.untouched("after the engine ended")
	other.End()
}

// TestTheAgentListsABoundedNumberOfFilesOfAnEngine: each takes half a KiB of the agent's memory,
// and an engine that was taken over makes a million in a minute.
func TestTheAgentListsABoundedNumberOfFilesOfAnEngine(t *testing.T) {
	const files = 20_000
	for name, tc := range map[string]struct {
		find func(e *takenOver)
		want int
	}{
		"after its end": {func(e *takenOver) { e.lease.End() }, 0},
		"after a start": {func(e *takenOver) { e.open() }, 1 << 14},
	} {
		e := newTakenOver(t)
		for i := range files {
			at := filepath.Join(e.namespace, "own", strconv.Itoa(i%3), strconv.Itoa(i))
			if i < 3 {
				if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Link(filepath.Join(e.state, "identity.json"), at); err != nil {
				t.Fatal(err)
			}
		}
		tc.find(e)
		if s := e.owner.Snapshot(); s.ForeignFiles != tc.want || s.Problem != "" {
			t.Errorf("%s: %d files are listed, want %d; problem %q", name, s.ForeignFiles, tc.want, s.Problem)
		}
	}
}

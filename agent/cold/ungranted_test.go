//go:build !race

package cold_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// forges writes valid blocks of an origin from one number up to another, with holes in place of their payloads.
func (e *takenOver) forges(o kv.Origin, from, to int, payload int64) (paths []string) {
	e.Helper()
	n := blocks.NamespaceOf(o)
	for i := from; i < to; i++ {
		k := kv.Root(o, kv.Salt{Tenant: strconv.Itoa(i)}).Next([]int32{int32(i)})
		head := blocks.Header{Key: k, Namespace: n, PayloadBytes: payload}.Encode()
		at := blocks.Path(blocks.ModelFolder(e.options.Dir, o.Model), n, k)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, head[:], 0o600), os.Truncate(at, blocks.FileBytes(payload))); err != nil {
			e.Fatal(err)
		}
		paths = append(paths, at)
	}
	return paths
}

// there counts the files that exist.
func there(paths []string) (n int) {
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			n++
		}
	}
	return n
}

// bounded opens the cache again with a bound of files, on a disk with room.
func (e *takenOver) bounded(files int) {
	e.Helper()
	e.lease.End()
	e.options.FS, e.options.Files = &roomy{Contained: disk.Contained{Dir: e.options.Dir}, free: 1 << 42}, files
	e.open()
}

// leased opens a stream of an engine, which is granted room for some of the smallest files.
func (e *takenOver) leased(o kv.Origin, files int64) *cold.Lease {
	e.Helper()
	l, err := e.owner.Lease(o, nil)
	if err != nil {
		e.Fatal(err)
	}
	if got := l.Report(blocks.Report{Epoch: l.Current().Epoch, WantedBytes: files * page, LeastBytes: files * page}); got.GrantedBytes != files*page {
		e.Fatalf("%d bytes are granted", got.GrantedBytes)
	}
	return l
}

// TestOnlyWhatWasGrantedIsLeftOfAnEngine: one that was taken over writes far more blocks than it may,
// names another origin at each load, and reports none.
func TestOnlyWhatWasGrantedIsLeftOfAnEngine(t *testing.T) {
	const files, granted = 200, 10
	e := newTakenOver(t)
	e.bounded(files)
	for load := range 3 {
		o := e.origin
		o.Numerics = strconv.Itoa(load)
		lease := e.leased(o, granted)
		paths := e.forges(o, 0, 2*files, 0)
		lease.End()
		want := granted * (load + 1)
		if s := e.owner.Snapshot(); s.Files != want || s.UsedBytes != int64(want)*page || s.GrantedBytes != 0 {
			t.Errorf("load %d: %d files of %d bytes are in the books, want %d", load, s.Files, s.UsedBytes, want)
		}
		if n := there(paths); n != granted {
			t.Errorf("load %d: %d files are left, want %d", load, n, granted)
		}
	}
}

// TestABlockThatGrewIsRemoved: no engine was granted what it takes more.
func TestABlockThatGrewIsRemoved(t *testing.T) {
	e := newTakenOver(t)
	e.bounded(0)
	lease := e.leased(e.origin, 1)
	at := e.forges(e.origin, 0, 1, 0)
	lease.End()
	lease = e.leased(e.origin, 2)
	e.forges(e.origin, 0, 1, 3*page)
	lease.End()
	if s := e.owner.Snapshot(); s.Files != 0 || there(at) != 0 {
		t.Errorf("%d files of %d bytes are in the books", s.Files, s.UsedBytes)
	}
}

// TestTheEndOfAnEngineLeavesWhatAnotherWrites: both use one namespace, and one has not reported yet.
func TestTheEndOfAnEngineLeavesWhatAnotherWrites(t *testing.T) {
	e := newTakenOver(t)
	e.bounded(0)
	honest, other := e.leased(e.origin, 3), e.leased(e.origin, 2)
	paths := e.forges(e.origin, 0, 9, 0)
	other.End()
	if s := e.owner.Snapshot(); s.Files != 2 || s.GrantedBytes != 3*page || there(paths) != 5 {
		t.Errorf("%d files are in the books and %d on the disk, want 2 and 5; %d bytes may be written", s.Files, there(paths), s.GrantedBytes)
	}
	honest.End()
	if s := e.owner.Snapshot(); s.Files != 5 || s.GrantedBytes != 0 || there(paths) != 5 {
		t.Errorf("%d files are in the books and %d on the disk, want 5", s.Files, there(paths))
	}
}

// TestAStartBoundsWhatALivingEngineLeft: the agent ended first, so that no stream did.
func TestAStartBoundsWhatALivingEngineLeft(t *testing.T) {
	const files = 200
	e := newTakenOver(t)
	e.bounded(files)
	honest := e.forges(origin("b"), 0, 60, 0)
	lease := e.leased(origin("b"), 60)
	lease.End()
	e.leased(e.origin, 1)
	paths := e.forges(e.origin, 0, 2*files, 0)
	e.open()
	if s := e.owner.Snapshot(); s.Files != files || there(paths)+there(honest) != files {
		t.Errorf("%d files are in the books and %d on the disk, want %d", s.Files, there(paths)+there(honest), files)
	}
	if n := there(honest); n != len(honest) {
		t.Errorf("%d of %d blocks of another model are left", n, len(honest))
	}
}

// TestAModelHasFewNamespacesThatNoEngineUses: an engine that was taken over makes others between two
// starts of the agent, or at each load.
func TestAModelHasFewNamespacesThatNoEngineUses(t *testing.T) {
	const most, made = 8, 12
	e := newTakenOver(t)
	e.bounded(0)
	e.leased(e.origin, 1)
	for i := range made {
		o := e.origin
		o.Numerics = strconv.Itoa(i)
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		folder := blocks.Folder(blocks.ModelFolder(e.options.Dir, o.Model), blocks.NamespaceOf(o))
		if err := errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, blocks.OriginFile), b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	e.forges(e.origin, 0, 1, 0)
	e.open()
	if n := len(e.owner.Snapshot().Namespaces); n != most {
		t.Errorf("%d namespaces after a start, want %d", n, most)
	}
	used := e.leased(e.origin, 1)
	for i := range made {
		o := e.origin
		o.Layout = strconv.Itoa(i)
		e.leased(o, 1).End()
	}
	if n := len(e.owner.Snapshot().Namespaces); n != most+1 {
		t.Errorf("%d namespaces after many loads, want %d", n, most+1)
	}
	if s := e.owner.Snapshot(); s.Files != 1 || s.Problem != "" {
		t.Errorf("%d files are left of the namespace in use: %s", s.Files, s.Problem)
	}
	used.End()
}

// TestBlocksThatNobodyGrantedKeepOthersFromTheCacheForSecondsOnly: they are removed in parts.
func TestBlocksThatNobodyGrantedKeepOthersFromTheCacheForSecondsOnly(t *testing.T) {
	const forged, granted = 1600, 10
	e := newTakenOver(t)
	s := e.slow()
	e.lease.End()
	e.lease = e.leased(e.origin, granted)
	paths := e.forges(e.origin, 0, forged, 0)
	for n, call := 0, e.lease.End; n == 0 || e.owner.Snapshot().Waiting; n, call = n+1, e.owner.Tick {
		began := s.now
		call()
		if took := s.now.Sub(began); took > 4*time.Second || n > 20 {
			t.Fatalf("call %d took %v", n, took)
		}
	}
	if s := e.owner.Snapshot(); s.Files != granted || there(paths) != granted || s.Problem != "" {
		t.Errorf("%d files are in the books and %d on the disk, want %d: %s", s.Files, there(paths), granted, s.Problem)
	}
}

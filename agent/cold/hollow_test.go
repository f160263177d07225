//go:build !race

package cold_test

import (
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// real is a disk with room that reports what files really take.
type real struct {
	disk.Contained
	free int64
}

func (r *real) Free(string) (int64, error) { return r.free, nil }

// TestABlockWithHolesIsNoSpaceThatCanBeFree: its size takes nothing of the disk, so its removal makes
// no room, and an engine could fill it later.
func TestABlockWithHolesIsNoSpaceThatCanBeFree(t *testing.T) {
	const each, count = 64 << 20, 4
	for name, find := range map[string]func(e *takenOver, keys []kv.Key){
		"after its end": func(e *takenOver, _ []kv.Key) { e.lease.End() },
		"after a start": func(e *takenOver, _ []kv.Key) { e.open() },
		"in a report": func(e *takenOver, keys []kv.Key) {
			r := blocks.Report{Epoch: e.lease.Current().Epoch}
			for _, k := range keys {
				r.Persisted = append(r.Persisted, blocks.File{Key: k, Bytes: each})
			}
			e.lease.Report(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newTakenOver(t)
			e.lease.End()
			e.options.FS = &real{Contained: disk.Contained{Dir: e.options.Dir}, free: 1 << 42}
			e.open()
			e.lease = e.leased(e.origin, 2*count*each/page)
			var keys []kv.Key
			for _, at := range e.forges(e.origin, 0, count, each) {
				k, ok := blocks.ParseName(filepath.Base(filepath.Dir(at)), filepath.Base(at))
				if !ok {
					t.Fatal(at)
				}
				keys = append(keys, k)
			}
			find(e, keys)
			if s := e.owner.Snapshot(); s.UsedBytes > 1<<20 {
				t.Errorf("%d bytes are in the books", s.UsedBytes)
			}
			if freed := e.owner.GiveWay(1 << 40); freed > 1<<20 {
				t.Errorf("%d bytes became free", freed)
			}
		})
	}
}

// TestABlockThatGotHolesFreesWhatItHas: an engine that was taken over made them after its report.
func TestABlockThatGotHolesFreesWhatItHas(t *testing.T) {
	for name, free := range map[string]func(e *takenOver) (int64, error){
		"evicted": func(e *takenOver) (int64, error) { return e.owner.GiveWay(1 << 40), nil },
		"cleared": func(e *takenOver) (int64, error) { return e.owner.Clear(blocks.NamespaceOf(e.origin)) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newTakenOver(t)
			defer e.lease.End()
			const size = 1 << 20
			e.granted(2 * size / page)
			if err := os.WriteFile(e.path(0), make([]byte, size), 0o600); err != nil {
				t.Fatal(err)
			}
			e.claims(1)
			if s := e.owner.Snapshot(); s.UsedBytes != size {
				t.Fatalf("%d bytes are in the books, want %d", s.UsedBytes, size)
			}
			if err := os.Truncate(e.path(0), 0); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(e.path(0), size); err != nil {
				t.Fatal(err)
			}
			if freed, err := free(e); err != nil || freed > page {
				t.Errorf("%d bytes became free, %v", freed, err)
			}
		})
	}
}

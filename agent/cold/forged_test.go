//go:build !race

package cold_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

// granted gives the engine room for some of the smallest files.
func (e *takenOver) granted(files int64) blocks.Lease {
	e.Helper()
	l := e.lease.Report(blocks.Report{Epoch: e.lease.Current().Epoch, WantedBytes: files * page, LeastBytes: files * page})
	if l.GrantedBytes != files*page {
		e.Fatalf("%d bytes are granted", l.GrantedBytes)
	}
	return l
}

// path of a block.
func (e *takenOver) path(n int) string {
	return blocks.Path(filepath.Dir(e.namespace), blocks.NamespaceOf(e.origin), key("a", n))
}

// claims reports blocks.
func (e *takenOver) claims(n int) {
	r := blocks.Report{Epoch: e.lease.Current().Epoch}
	for i := range n {
		r.Persisted = append(r.Persisted, blocks.File{Key: key("a", i), Bytes: 1})
	}
	e.lease.Report(r)
}

// TestABlockThatCannotBeLookedAtEntersNoBooks: an engine that was taken over puts files in place of
// the folders of its blocks, and invents blocks: each would take memory of the agent, and none could be
// removed.
func TestABlockThatCannotBeLookedAtEntersNoBooks(t *testing.T) {
	e := newTakenOver(t)
	defer e.lease.End()
	e.granted(200)
	for _, shard := range blocks.Shards() {
		at := filepath.Join(e.namespace, shard)
		if err := errors.Join(os.RemoveAll(at), os.WriteFile(at, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	e.claims(100)
	if s := e.owner.Snapshot(); s.Files != 0 || s.UsedBytes != 0 || s.GrantedBytes != 200*page {
		t.Errorf("%d files of %d bytes are in the books, and %d bytes may still be written", s.Files, s.UsedBytes, s.GrantedBytes)
	}
}

// TestOnlyBlocksWithinTheGrantEnterTheBooks: they are bounded by what is granted.
func TestOnlyBlocksWithinTheGrantEnterTheBooks(t *testing.T) {
	e := newTakenOver(t)
	defer e.lease.End()
	e.granted(3)
	for i := range 100 {
		e.write(e.path(i))
	}
	e.claims(100)
	if s := e.owner.Snapshot(); s.Files != 3 || s.UsedBytes != 3*page || s.GrantedBytes != 0 {
		t.Errorf("%d files of %d bytes are in the books, and %d bytes may still be written", s.Files, s.UsedBytes, s.GrantedBytes)
	}
}

// TestWhatAnEngineReplacedLeavesTheBooks: no download waits for room that cannot be made.
func TestWhatAnEngineReplacedLeavesTheBooks(t *testing.T) {
	for name, replace := range map[string]func(e *takenOver, block string) error{
		"its block": func(_ *takenOver, block string) error {
			return errors.Join(os.Remove(block), os.MkdirAll(filepath.Join(block, "full"), 0o700))
		},
		"the folder of blocks": func(_ *takenOver, block string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(block)), os.WriteFile(filepath.Dir(block), nil, 0o600))
		},
		"the folder of blocks by a link": func(e *takenOver, block string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(block)), os.Symlink(e.state, filepath.Dir(block)))
		},
		"all folders": func(e *takenOver, _ string) error {
			return errors.Join(os.RemoveAll(e.namespace), os.WriteFile(e.namespace, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newTakenOver(t)
			defer e.lease.End()
			e.granted(1)
			e.write(e.path(0))
			e.claims(1)
			if s := e.owner.Snapshot(); s.Files != 1 {
				t.Fatalf("%d files are in the books", s.Files)
			}
			if err := replace(e, e.path(0)); err != nil {
				t.Fatal(err)
			}
			e.owner.GiveWay(1 << 40)
			if s := e.owner.Snapshot(); s.Files != 0 || s.UsedBytes != 0 || s.Problem != "" {
				t.Errorf("%d files of %d bytes are in the books: %s", s.Files, s.UsedBytes, s.Problem)
			}
			e.untouched("after its block was evicted")
		})
	}
}

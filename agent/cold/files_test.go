package cold_test

import (
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

// TestAttackManySmallBlocks lets an engine write far more blocks than the cache may have.
// They stay within the bound, also after a restart, and another model keeps its own.
func TestAttackManySmallBlocks(t *testing.T) {
	const files, others = 200, 20
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(64 << 20)
		open := func(files int) *cold.Owner {
			w, err := cold.Open(cold.Options{FS: f, Dir: dir, Files: files})
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		m := &mac{t: t, f: f, w: open(files)}
		other := m.engine("b")
		for n := range others {
			other.put(n)
		}
		evil := m.engine("evil")
		for n := range 3 * files {
			if got := evil.put(n); got == kv.Dropped {
				t.Fatalf("block %d was dropped, with old ones to make room", n)
			}
			if got := m.w.Snapshot().Files; got > files {
				t.Fatalf("%d files after %d blocks, want at most %d", got, n, files)
			}
		}
		if got := m.w.Snapshot().Files; got < files/2 || !evil.has(3*files-1) || evil.has(0) {
			t.Errorf("of %d files not the oldest went", got)
		}
		for n := range others {
			if !other.has(n) {
				t.Errorf("block %d of another model went", n)
			}
		}
		other.stop()
		evil.stop()
		if got := open(50).Snapshot().Files; got != 50 {
			t.Errorf("%d files after a restart with a bound of 50", got)
		}
	})
}

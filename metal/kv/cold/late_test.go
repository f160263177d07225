package cold_test

import (
	"io/fs"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

// TestAFencedWriterLeavesTheBlockOfAnother: the file that it would rename is gone with its epoch, and
// another engine of the namespace may have put the same block in place.
func TestAFencedWriterLeavesTheBlockOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 30)
		tier := open(t, f, 1<<20, 1<<30)
		path := cold.Path(dir, tier.Namespace(), key(1))
		w, err := f.Create(path)
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		renamed := 0
		f.Inject(func(op faultfs.Op) (fault faultfs.Fault) {
			if op.Kind == faultfs.Rename {
				renamed++
				fault.Err = fs.ErrNotExist
			}
			return fault
		})
		tier.Put(key(1), payload(1, 1))
		synctest.Wait()
		if _, err := f.Stat(path); err != nil || renamed != 1 {
			t.Errorf("after %d renames: %v", renamed, err)
		}
		closeTier(t, tier)
	})
}

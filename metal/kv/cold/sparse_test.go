package cold_test

import (
	"math"
	"path"
	"testing"

	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

// sparse reports each file as one of the largest size that has no blocks on the disk.
type sparse struct{ *faultfs.FS }

func (f sparse) Stat(at string) (disk.Info, error) {
	i, err := f.FS.Stat(at)
	if err == nil && i.Mode.IsRegular() {
		i.Bytes, i.Allocated = math.MaxInt64, 1
	}
	return i, err
}

// TestASparseFileOfTheLargestSizeFreesNoBytes: an engine sets the size of a file as it likes. What is
// freed enters the status of a Mac, which has no negative figures.
func TestASparseFileOfTheLargestSizeFreesNoBytes(t *testing.T) {
	f, n := faultfs.New(1<<30), cold.Namespace{1}
	epochs := path.Join(cold.Folder(dir, n), cold.Temporary)
	for _, name := range []string{"a", "b", "c"} {
		if err := f.MkdirAll(path.Join(epochs, name)); err != nil {
			t.Fatal(err)
		}
		w, err := f.Create(path.Join(epochs, name, "file"))
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	freed, err := cold.FenceAll(sparse{f}, dir, n)
	if err != nil || freed < 0 || freed > 3*4096 {
		t.Errorf("%d bytes of three files without blocks are freed: %v", freed, err)
	}
}

func TestTheSpaceOfAFileOfAnySizeIsPositive(t *testing.T) {
	for _, bytes := range []int64{1, math.MaxInt64 - 4096, math.MaxInt64 - 4094, math.MaxInt64} {
		if takes := cold.Takes(bytes); takes < 4096 || 2*takes < takes {
			t.Errorf("a file of %d bytes takes %d", bytes, takes)
		}
	}
}

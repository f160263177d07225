//go:build !race

package cold_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// TestAFolderWithSpaceThatWasAllocatedInAdvanceIsFound: a file has more space than its size takes,
// next to the blocks or as one of them.
func TestAFolderWithSpaceThatWasAllocatedInAdvanceIsFound(t *testing.T) {
	const ahead = 512 << 20
	e := newTakenOver(t)
	fs := &roomy{Contained: disk.Contained{Dir: e.options.Dir}, free: 2 << 30}
	e.options.FS = fs
	e.lease.End()
	e.open()
	var err error
	if e.lease, err = e.owner.Lease(e.origin, nil); err != nil {
		t.Fatal(err)
	}
	if got := e.owner.Overfull(); got != nil {
		t.Fatalf("%v before anything was written", got)
	}
	at := e.block(1)
	e.write(at)
	file, err := os.OpenFile(at, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, ahead); err != nil {
		t.Fatal(err)
	}
	used := e.owner.Snapshot().UsedBytes
	e.lease.Report(blocks.Report{Epoch: e.lease.Current().Epoch, Persisted: []blocks.File{{Key: e.key(1), Bytes: page}}})
	if got := e.owner.Snapshot().UsedBytes; got != used {
		t.Errorf("the block counts as %d bytes although no engine was granted its space", got-used)
	}
	fs.free -= ahead
	if got, want := e.owner.Overfull(), []string{filepath.Dir(e.namespace)}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

//go:build !race

package cold_test

import (
	"encoding/binary"
	"io/fs"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// removing is a disk that counts what is removed, and signals the first.
type removing struct {
	disk.Contained
	begun   chan struct{}
	removed atomic.Int64
}

func (r *removing) Remove(string) error {
	if r.removed.Add(1) == 1 {
		close(r.begun)
	}
	runtime.Gosched()
	return fs.ErrNotExist
}

// TestAReportOfManyDamagedBlocksLeavesOthersTheirTurn: an engine that was taken over reports many
// again and again, which the agent looks for one by one.
func TestAReportOfManyDamagedBlocksLeavesOthersTheirTurn(t *testing.T) {
	const damaged, most = 100_000, 50_000
	e := newTakenOver(t)
	e.lease.End()
	disk := &removing{Contained: disk.Contained{Dir: e.options.Dir}, begun: make(chan struct{})}
	e.options.FS = disk
	e.open()
	var err error
	if e.lease, err = e.owner.Lease(e.origin, nil); err != nil {
		t.Fatal(err)
	}
	report := blocks.Report{Epoch: e.lease.Current().Epoch}
	for i := range damaged {
		var k kv.Key
		binary.LittleEndian.PutUint64(k[:], uint64(i))
		report.Damaged = append(report.Damaged, k)
	}
	var other sync.WaitGroup
	other.Go(func() {
		<-disk.begun
		e.owner.SetBudget(func() blocks.Budget {
			if n := disk.removed.Load(); n > most {
				t.Errorf("another had its turn after %d of %d damaged blocks, want at most %d", n, damaged, most)
			}
			return blocks.Budget{}
		})
	})
	e.lease.Report(report)
	other.Wait()
	if n := disk.removed.Load(); n != damaged {
		t.Errorf("%d of %d damaged blocks were removed", n, damaged)
	}
	e.lease.End()
}

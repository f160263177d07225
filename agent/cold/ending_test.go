//go:build !race

package cold_test

import (
	"io/fs"
	"testing"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

// TestAnEngineHasNoOtherLeaseUntilItsLastOneEnded: it may write what each was granted, and one that was taken over
// keeps a lease from ending. The grants would be taken from those of others.
func TestAnEngineHasNoOtherLeaseUntilItsLastOneEnded(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		var epochs int
		m.f.Inject(func(op faultfs.Op) faultfs.Fault {
			if op.Kind == faultfs.Rename {
				return faultfs.Fault{Err: fs.ErrExist}
			}
			return faultfs.Fault{}
		})
		for range 100 {
			l, err := m.w.Lease(origin("bad"), nil)
			if err != nil {
				continue
			}
			epochs++
			l.Report(blocks.Report{Epoch: l.Current().Epoch, WantedBytes: 1 << 40, LeastBytes: 1})
			l.End()
		}
		if s := m.w.Snapshot(); epochs != 1 || s.GrantedBytes > s.LimitBytes/4 {
			t.Errorf("%d leases hold %d of %d bytes", epochs, s.GrantedBytes, s.LimitBytes)
		}
		other, err := m.w.Lease(origin("good"), nil)
		if err != nil {
			t.Fatal(err)
		}
		m.f.Inject(nil)
		m.w.Tick()
		again, err := m.w.Lease(origin("bad"), nil)
		if err != nil {
			t.Fatal(err)
		}
		again.End()
		other.End()
	})
}

// TestSumsOfCountersDoNotOverflow, however many leases an engine ends with counters that it made up.
func TestSumsOfCountersDoNotOverflow(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		const most = 1 << 50 // of one report
		for range 9000 {
			l, err := m.w.Lease(origin("a"), nil)
			if err != nil {
				t.Fatal(err)
			}
			c := blocks.Counters{Accepted: most, Read: most, Missed: most, WrittenBytes: most, Queued: most}
			for site := range c.Dropped {
				c.Dropped[site] = most
			}
			l.Report(blocks.Report{Epoch: l.Current().Epoch, Counters: c})
			l.End()
		}
		s := m.w.Snapshot().Blocks
		if s.Accepted <= 0 || s.Read <= 0 || s.Missed <= 0 || s.WrittenBytes <= 0 || s.DroppedTotal() <= 0 {
			t.Errorf("%+v", s)
		}
	})
}

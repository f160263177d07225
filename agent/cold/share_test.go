package cold_test

import (
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

// bounded is an engine of a model whose blocks may take so many bytes.
func (m *mac) bounded(model, numerics string, most func() int64) *engine {
	m.t.Helper()
	o := kv.Origin{Model: model, Numerics: numerics, Layout: "16 tokens"}
	l, err := m.w.Lease(o, most)
	if err != nil {
		m.t.Fatal(err)
	}
	e := &engine{m, model, blocks.Open(blocks.Options{FS: m.f, Origin: o, QueueBytes: 16 << 10}), l}
	if err := e.tier.Attach(l.Current()); err != nil {
		m.t.Fatal(err)
	}
	m.engines = append(m.engines, e)
	return e
}

// of is what blocks of a model take.
func (m *mac) of(model string) (bytes int64) {
	for _, n := range m.w.Snapshot().Namespaces {
		if n.Model == model {
			bytes += n.Bytes
		}
	}
	return bytes
}

// The share covers all versions of a model; only its own oldest blocks are
// evicted. The largest current share among its engines counts.
func TestModelStaysWithinItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMac(t, faultfs.New(4<<20), blocks.Budget{})
		other := m.engine("b")
		for n := range 10 {
			other.put(n)
		}
		var most atomic.Int64
		most.Store(8 * fileBytes)
		old := m.bounded("a", "ref 1", most.Load)
		for n := range 4 {
			old.put(n)
		}
		old.stop()
		a := m.bounded("a", "ref 2", most.Load)
		for n := range 30 {
			if got := a.put(n); got == kv.Dropped {
				t.Errorf("block %d was dropped, with old ones to make room", n)
			}
			if taken := m.of("a"); taken > most.Load() {
				t.Errorf("block %d: %d bytes of a model that may have %d", n, taken, most.Load())
			}
		}
		if !a.has(29) || a.has(0) {
			t.Error("not the oldest blocks went")
		}
		for n := range 10 {
			if !other.has(n) {
				t.Errorf("block %d of another model went", n)
			}
		}
		most.Store(3 * fileBytes)
		m.w.Tick()
		if m.of("a") > 3*fileBytes {
			t.Errorf("%d bytes are left after less was allowed", m.of("a"))
		}
		most.Store(fileBytes / 2) // not one block
		m.w.Tick()
		n := 100
		for ; n < 110 && a.put(n) != kv.Dropped; n++ { // what was granted before stays granted
		}
		if n > 103 || !a.lease.Current().Final {
			t.Errorf("%d blocks larger than all that is allowed: %+v", n-100, a.lease.Current())
		}
		twin := m.bounded("a", "ref 2", func() int64 { return 8 * fileBytes })
		m.w.Tick()
		if got := a.put(200); got == kv.Dropped {
			t.Error("the larger figure of two engines does not count")
		}
		twin.stop()
		a.stop()
		other.stop()
	})
}

func TestShareHoldsWhileBlocksCannotBeDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMac(t, faultfs.New(4<<20), blocks.Budget{})
		const most = 8 * fileBytes
		a := m.bounded("a", "ref 1", func() int64 { return most })
		m.f.Inject(func(op faultfs.Op) faultfs.Fault {
			if op.Kind == faultfs.Remove {
				return faultfs.Fault{Err: syscall.EIO}
			}
			return faultfs.Fault{}
		})
		for n := range 20 {
			a.put(n)
		}
		if taken := m.of("a"); taken > most || taken == 0 {
			t.Errorf("%d bytes of a model that may have %d", taken, most)
		}
		m.f.Inject(nil)
		a.stop()
	})
}

package cold_test

import (
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

// bounded returns an engine of a model whose blocks may use most bytes.
func (m *mac) bounded(model, numerics string, most func() int64) *engine {
	m.t.Helper()
	o := kv.Origin{Model: model, Numerics: numerics, Layout: "16 tokens"}
	l, err := m.w.Lease(o, most)
	if err != nil {
		m.t.Fatal(err)
	}
	e := &engine{m: m, model: model, tier: blocks.Open(blocks.Options{FS: m.f, Origin: o, QueueBytes: 16 << 10}), lease: l}
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

// tenantKey is a block of a tenant's request.
func tenantKey(model, tenant string, n int) kv.Key {
	return kv.Root(origin(model), kv.Salt{Tenant: tenant}).Next([]int32{int32(n)})
}

// save puts a tenant's block, with as many reports as it needs.
func (e *engine) save(tenant string, n int) {
	e.m.t.Helper()
	for range 5 {
		got := e.tier.Put(tenantKey(e.model, tenant, n), payload(n))
		e.report()
		if got != kv.Dropped {
			return
		}
	}
	e.m.t.Errorf("block %d of tenant %q was dropped", n, tenant)
}

// kept counts a tenant's first n blocks that are on the disk.
func (e *engine) kept(tenant string, n int) (files int) {
	for i := range n {
		if _, ok := e.tier.Size(tenantKey(e.model, tenant, i)); ok {
			files++
		}
	}
	return files
}

// A tenant alone fills the disk. One that comes later gets as much, from the tenant
// that has the most, and those with less than an equal share lose nothing.
func TestTenantsShareTheDisk(t *testing.T) {
	play(t, 1<<30, blocks.Budget{LimitBytes: 40 * fileBytes}, func(t *testing.T, m *mac) {
		a, b := m.engine("a"), m.engine("b")
		for n := range 60 {
			a.save("hog", n)
		}
		if files := a.kept("hog", 60); files < 30 { // the others are granted and not written yet
			t.Errorf("a tenant alone has %d files of 40", files)
		}
		for n := range 5 {
			a.save("small", n)
			b.save("", n) // without a tenant, the share is the model's
		}
		for n := range 200 { // the hog does not stop, and with a second model takes no second share
			a.save("hog", 100+n)
			b.save("hog", 100+n)
		}
		if a.kept("small", 5) != 5 || b.kept("", 5) != 5 {
			t.Errorf("of 5 blocks each, %d of a tenant and %d of a model are left", a.kept("small", 5), b.kept("", 5))
		}
		for n := range 60 {
			b.save("late", n)
		}
		if hog, late := a.kept("hog", 400)+b.kept("hog", 400), b.kept("late", 60); late < 9 || hog < 9 {
			t.Errorf("of 40 files, of which two tenants have 10, the third has %d and the last one %d", hog, late)
		}
		if a.kept("small", 5) != 5 || b.kept("", 5) != 5 {
			t.Error("tenants with less than an equal share lost blocks")
		}
	})
}

// TestAModelHasOneShareForAllChatTemplates: its blocks of each template lie in another folder.
func TestAModelHasOneShareForAllChatTemplates(t *testing.T) {
	play(t, 1<<30, blocks.Budget{LimitBytes: 40 * fileBytes}, func(t *testing.T, m *mac) {
		other := m.engine("other/m/1")
		for n := range 12 {
			other.save("", n)
		}
		for _, model := range []string{"team/m/1", "team/m/2", "team/m/3"} {
			edited := m.engine(model)
			for n := range 30 {
				edited.save("", n)
			}
			edited.stop()
		}
		if got := other.kept("", 12); got != 12 {
			t.Errorf("of 12 blocks, where half of the disk has room for 20, %d are left", got)
		}
	})
}

// The share of a model's blocks that a deployment sets is shared in the same way.
func TestTenantsShareWhatAModelMayHold(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		a := m.bounded("a", "ref 1", func() int64 { return 20 * fileBytes })
		for n := range 5 {
			a.save("small", n)
		}
		for n := range 60 {
			a.save("hog", n)
		}
		if a.kept("small", 5) != 5 || a.kept("hog", 60) < 12 {
			t.Errorf("%d of 5 blocks are left, and %d of the other tenant", a.kept("small", 5), a.kept("hog", 60))
		}
	})
}

// A tenant that used nothing for a day has no share against others, also where the
// agent restarted meanwhile.
func TestAnIdleTenantsBlocksAreEvictedFirst(t *testing.T) {
	for _, restart := range []bool{false, true} {
		play(t, 1<<30, blocks.Budget{LimitBytes: 20 * fileBytes}, func(t *testing.T, m *mac) {
			a := m.engine("a")
			for n := range 5 {
				a.save("away", n)
				a.save("reader", n)
			}
			for range 25 {
				time.Sleep(time.Hour)
				if err := a.tier.Read(t.Context(), tenantKey("a", "reader", 0), make([]byte, len(payload(0)))); err != nil {
					t.Fatal(err)
				}
				a.report()
			}
			if restart {
				a.stop()
				m = newMac(t, m.f.Restart(), blocks.Budget{LimitBytes: 20 * fileBytes})
				a = m.engine("a")
			}
			for n := range 40 {
				a.save("busy", n)
			}
			if a.kept("away", 5) != 0 || a.kept("reader", 5) != 5 {
				t.Errorf("restart %t: %d blocks of an idle tenant are left, and %d of one that reads", restart, a.kept("away", 5), a.kept("reader", 5))
			}
			a.stop()
		})
	}
}

// TestATenantWhoseBlocksWereUsedInTheFutureBecomesIdle: the clock was ahead when they were written.
func TestATenantWhoseBlocksWereUsedInTheFutureBecomesIdle(t *testing.T) {
	play(t, 1<<30, blocks.Budget{LimitBytes: 20 * fileBytes}, func(t *testing.T, m *mac) {
		a := m.engine("a")
		for n := range 5 {
			a.save("away", n)
		}
		a.stop()
		for _, at := range m.f.Files(dir) {
			if err := m.f.SetTime(at, time.Now().Add(1000*time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the second start finds the right times
			m = newMac(t, m.f.Restart(), blocks.Budget{LimitBytes: 20 * fileBytes})
			time.Sleep(13 * time.Hour)
		}
		a = m.engine("a")
		for n := range 40 {
			a.save("busy", n)
		}
		if n := a.kept("away", 5); n != 0 {
			t.Errorf("%d blocks of an idle tenant are left", n)
		}
		a.stop()
	})
}

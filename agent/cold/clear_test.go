package cold_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
	"metalfleet.dev/metalfleet/test/race"
	"metalfleet.dev/metalfleet/test/seed"
)

func TestClearReportsTheBytesFreedOnDisk(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		a, b := m.engine("a"), m.engine("b")
		for n := range 7 {
			a.put(n)
			b.put(n)
		}
		before := m.taken()
		freed, err := m.w.Clear(a.tier.Namespace())
		if err != nil || freed != 7*fileBytes || before-m.taken() != freed {
			t.Errorf("%d bytes, the disk has %d fewer: %v", freed, before-m.taken(), err)
		}
		if a.has(1) || !b.has(1) {
			t.Error("not what was named was cleared")
		}
		m.check()
		b.stop()
		if freed, err := m.w.ClearAll(); err != nil || freed != 7*fileBytes || m.taken() != 0 {
			t.Errorf("all: %d bytes: %v", freed, err)
		}
		if freed, err := m.w.ClearAll(); err != nil || freed != 0 {
			t.Errorf("again: %d bytes: %v", freed, err)
		}
		if s := m.w.Snapshot(); s.UsedBytes != 0 || s.Files != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Queued and half-written blocks do not reappear, the engine continues in a new
// epoch, and its reports about the old epoch are ignored.
func TestClearIsFinalWhileAnEngineWrites(t *testing.T) {
	for _, kind := range []faultfs.Kind{faultfs.Create, faultfs.Write, faultfs.Sync, faultfs.Rename} {
		t.Run(string(kind), func(t *testing.T) {
			play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
				e := m.engine("a")
				e.put(0)
				release := make(chan struct{})
				epoch := e.lease.Current().Epoch
				m.f.Inject(func(op faultfs.Op) faultfs.Fault {
					if op.Kind == kind && strings.Contains(op.Path, "tmp/"+epoch+"/") {
						<-release
					}
					return faultfs.Fault{}
				})
				e.tier.Put(key("a", 1), payload(1))
				e.tier.Put(key("a", 2), payload(2))
				synctest.Wait()
				if _, err := m.w.Clear(e.tier.Namespace()); err != nil {
					t.Fatal(err)
				}
				<-e.lease.Changed()
				stale := e.tier.Report()
				stale.WantedBytes = 8 * fileBytes
				stale.Persisted = append(stale.Persisted, blocks.File{Key: key("a", 1), Bytes: fileBytes})
				l := e.lease.Report(stale)
				close(release)
				synctest.Wait()
				if s := m.w.Snapshot(); m.taken() != 0 || s.UsedBytes != 0 || l.Epoch == epoch || s.GrantedBytes != l.GrantedBytes {
					t.Errorf("%d bytes appeared; %+v", m.taken(), s)
				}
				if err := e.tier.Attach(l); err != nil {
					t.Fatal(err)
				}
				if got := e.put(2); got != kv.Queued {
					t.Errorf("afterwards: %v", got)
				}
				if s := m.w.Snapshot(); s.UsedBytes != fileBytes || !e.has(2) || e.has(1) {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// Its lease ends, its temporary files are deleted, and blocks it renamed
// without reporting are found.
func TestKilledEngineLeavesNoPartialFiles(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		e.put(0)
		e.tier.Put(key("a", 1), payload(1))
		synctest.Wait() // on disk, and not reported
		release := make(chan struct{})
		m.f.Inject(func(op faultfs.Op) faultfs.Fault {
			if op.Kind == faultfs.Sync {
				<-release
			}
			return faultfs.Fault{}
		})
		e.tier.Put(key("a", 2), payload(2))
		synctest.Wait()
		e.lease.End()
		if s := m.w.Snapshot(); s.UsedBytes != 2*fileBytes || s.GrantedBytes != 0 || m.taken() != 2*fileBytes || s.Waiting {
			t.Errorf("%d bytes on the disk; %+v", m.taken(), s)
		}
		if l := e.lease.Report(e.tier.Report()); l.Epoch != "" {
			t.Errorf("a lease that ended answers %+v", l)
		}
		e.lease.End() // once more is nothing
		close(release)
		synctest.Wait()
		if m.taken() != 2*fileBytes {
			t.Errorf("%d bytes on the disk", m.taken())
		}
	})
}

// The bytes stay charged until the deletion succeeds.
func TestFailedDeletionIsRetried(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		e.put(0)
		m.f.Inject(func(op faultfs.Op) faultfs.Fault {
			if op.Kind == faultfs.Rename {
				return faultfs.Fault{Err: fs.ErrPermission}
			}
			return faultfs.Fault{}
		})
		e.lease.End()
		s := m.w.Snapshot()
		if s.GrantedBytes == 0 || !s.Waiting || s.Problem == "" {
			t.Errorf("%+v", s)
		}
		m.f.Inject(nil)
		m.w.Tick()
		if s := m.w.Snapshot(); s.GrantedBytes != 0 || s.Waiting || s.Problem != "" {
			t.Errorf("%+v", s)
		}
	})
}

// A namespace is deleted once its model is known to be gone and no engine
// writes to it.
func TestOrphanedNamespacesAreDeleted(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		for _, model := range []string{"gone", "kept", "unnamed"} {
			e := m.engine(model)
			e.put(1)
			e.stop()
		}
		unnamed := blocks.NamespaceOf(origin("unnamed"))
		if err := m.f.Remove(path.Join(blocks.Folder(folder("unnamed"), unnamed), blocks.OriginFile)); err != nil {
			t.Fatal(err)
		}
		again := newMac(t, m.f.Restart(), blocks.Budget{}) // an agent that never saw their engines
		again.w.Tick()
		if again.taken() != 2*fileBytes {
			t.Errorf("before it is known what is wanted, %d bytes stay", again.taken())
		}
		e := again.engine("running")
		e.put(1)
		freed, err := again.w.Keep(map[string]bool{"kept": true})
		if err != nil || freed != fileBytes || again.taken() != 2*fileBytes {
			t.Errorf("%d bytes came back, %d stay: %v", freed, again.taken(), err)
		}
		if s := again.w.Snapshot(); len(s.Namespaces) != 2 || s.UsedBytes != 2*fileBytes {
			t.Errorf("%+v", s)
		}
		e.stop()
		if freed, err := again.w.Keep(map[string]bool{"kept": true}); err != nil || freed != fileBytes {
			t.Errorf("once its engine is gone %d bytes came back: %v", freed, err)
		}
		if infos, err := again.f.ReadDir(dir); err != nil || len(infos) != 2 {
			t.Errorf("left %v: %v", infos, err)
		}
	})
}

// TestTheOwnerComesBackAfterACrashAtEveryOperation of itself or of an engine:
// what is on the disk is in the books, nothing half is, and a block is whole.
func TestTheOwnerComesBackAfterACrashAtEveryOperation(t *testing.T) {
	seed := seed.Of(t)
	every := int64(1)
	if race.Enabled {
		every = 7
	}
	for at := int64(1); !t.Failed(); at += every {
		crashed := false
		synctest.Test(t, func(t *testing.T) {
			f := faultfs.New(1 << 20)
			f.CrashAt(at)
			life(t, f)
			_, err := f.Stat("/")
			crashed = errors.Is(err, faultfs.ErrCrashed)
			r := rand.New(rand.NewPCG(seed, uint64(at)))
			for _, after := range []*faultfs.FS{f.Restart(), f.PowerLoss(r), f.PowerLoss(r)} {
				recover(t, after, at)
			}
		})
		if !crashed {
			if at < 100 {
				t.Errorf("only %d operations", at)
			}
			return
		}
	}
}

// life runs a short history of an owner and two engines: saves, evictions, a
// clear, an end. Errors are ignored.
func life(t *testing.T, f *faultfs.FS) {
	w, err := cold.Open(cold.Options{FS: f, Dir: dir, Budget: blocks.Budget{LimitBytes: 6 * fileBytes}})
	if err != nil {
		return
	}
	for _, model := range []string{"a", "b"} {
		l, err := w.Lease(origin(model), nil)
		if err != nil {
			return
		}
		tier := blocks.Open(blocks.Options{FS: f, Origin: origin(model), QueueBytes: 3 * fileBytes})
		for n := range 5 {
			_ = tier.Attach(l.Current())
			tier.Put(key(model, n), payload(n))
			synctest.Wait()
			_ = tier.Attach(l.Report(tier.Report()))
			tier.Put(key(model, n), payload(n))
			synctest.Wait()
		}
		_ = tier.Close(t.Context())
		if c := tier.Counters(); !c.Balanced() {
			t.Errorf("does not add up: %+v", c)
		}
		l.End()
	}
	_, _ = w.Clear(blocks.NamespaceOf(origin("a")))
}

// recover opens what a crash left.
func recover(t *testing.T, f *faultfs.FS, at int64) {
	t.Helper()
	m := newMac(t, f, blocks.Budget{LimitBytes: 6 * fileBytes})
	m.check()
	if s := m.w.Snapshot(); s.UsedBytes != m.taken() || s.UsedBytes > s.LimitBytes {
		t.Errorf("crash at %d: %d bytes on the disk: %+v", at, m.taken(), s)
	}
	for _, p := range f.Files(dir) {
		if strings.Contains(p, "/"+blocks.Temporary+"/") {
			t.Errorf("crash at %d: %s was left", at, p)
		}
	}
	for _, model := range []string{"a", "b"} {
		e := m.engine(model)
		for n := range 5 {
			dst := make([]byte, len(payload(n)))
			if err := e.tier.Read(t.Context(), key(model, n), dst); err == nil && !bytes.Equal(dst, payload(n)) {
				t.Errorf("crash at %d: wrong bytes", at)
			}
		}
		if got := e.put(77); got != kv.Queued {
			t.Errorf("crash at %d: nothing can be saved: %v", at, got)
		}
		e.stop()
	}
}

func TestTheSeriesSayWhatTheSnapshotSays(t *testing.T) {
	play(t, 1<<30, blocks.Budget{LimitBytes: 4 * fileBytes}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		for n := range 9 {
			e.put(n)
		}
		e.stop()
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(m.w.Collector())
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, s := range f.GetMetric() {
				name := strings.TrimPrefix(f.GetName(), "metalfleet_agent_cache_")
				for _, l := range s.GetLabel() {
					name += " " + l.GetValue()
				}
				got[name] = s.GetGauge().GetValue() + s.GetCounter().GetValue()
			}
		}
		s := m.w.Snapshot()
		for name, want := range map[string]int64{
			"bytes limit": 4 * fileBytes, "bytes used": s.UsedBytes, "bytes granted": 0, "bytes backlog": 0, "bytes free": s.FreeBytes,
			"files block": int64(s.Files), "files foreign": 0, "evictions_total": s.Evictions, "evicted_bytes_total": s.EvictedBytes,
			"blocks_total persisted": 9, "blocks_total failed": 0, "blocks_total dropped_grant": s.Blocks.Dropped[blocks.AtGrant],
			"written_bytes_total payload": 9 * int64(len(payload(0))), "written_bytes_total all": 9 * (blocks.HeaderBytes + int64(len(payload(0)))),
		} {
			if v, ok := got[name]; !ok || v != float64(want) {
				t.Errorf("%s = %v, want %d", name, v, want)
			}
		}
		if s.Evictions == 0 {
			t.Error("nothing was evicted")
		}
	})
}

package cold_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

const (
	dir  = "/cache"
	page = 4096
)

func origin(model string) kv.Origin {
	return kv.Origin{Model: model, Numerics: "ref 1", Layout: "16 tokens"}
}

func key(model string, n int) kv.Key {
	return kv.Root(origin(model), kv.Salt{}).Next([]int32{int32(n)})
}

// folder of a model's blocks.
func folder(model string) string { return blocks.ModelFolder(dir, model) }

// payload fills two pages with its header.
func payload(n int) []byte { return bytes.Repeat([]byte{byte(n), byte(n >> 8), 7}, 2000) }

const fileBytes = 2 * page

// mac is an owner with its engines.
type mac struct {
	t       testing.TB
	f       *faultfs.FS
	w       *cold.Owner
	engines []*engine
}

// engine is an engine's tier, and its lease.
type engine struct {
	m     *mac
	model string
	tier  *blocks.Tier
	lease *cold.Lease
}

func newMac(t testing.TB, f *faultfs.FS, b blocks.Budget) *mac {
	t.Helper()
	w, err := cold.Open(cold.Options{FS: f, Dir: dir, Budget: b})
	if err != nil {
		t.Fatal(err)
	}
	return &mac{t: t, f: f, w: w}
}

func (m *mac) engine(model string) *engine {
	m.t.Helper()
	l, err := m.w.Lease(origin(model), nil)
	if err != nil {
		m.t.Fatal(err)
	}
	e := &engine{m: m, model: model, tier: blocks.Open(blocks.Options{FS: m.f, Origin: origin(model), QueueBytes: 64 << 10}), lease: l}
	if err := e.tier.Attach(l.Current()); err != nil {
		m.t.Fatal(err)
	}
	m.engines = append(m.engines, e)
	return e
}

// report carries a report to the owner and its answer back.
func (e *engine) report() blocks.Lease {
	e.m.t.Helper()
	synctest.Wait()
	l := e.lease.Report(e.tier.Report())
	if err := e.tier.Attach(l); err != nil {
		e.m.t.Fatal(err)
	}
	e.m.check()
	return l
}

// put saves a block; where the grant has no room it asks for more, a few times.
func (e *engine) put(n int) kv.Saved {
	e.m.t.Helper()
	for range 5 {
		if got := e.tier.Put(key(e.model, n), payload(n)); got != kv.Dropped {
			e.report()
			return got
		}
		e.report()
	}
	return kv.Dropped
}

func (e *engine) has(n int) bool {
	_, ok := e.tier.Size(key(e.model, n))
	return ok
}

// stop ends the engine's process, then its lease.
func (e *engine) stop() {
	e.m.t.Helper()
	if err := e.tier.Close(e.m.t.Context()); err != nil {
		e.m.t.Error(err)
	}
	e.lease.End()
	e.m.check()
}

// taken is what all files of the cache take of the disk.
func (m *mac) taken() int64 {
	var sum int64
	for _, at := range m.f.Files(dir) {
		if name := path.Base(at); name != cold.Marker && name != blocks.OriginFile {
			sum += blocks.Takes(m.f.Length(at))
		}
	}
	return sum
}

// check compares the disk with what the owner knows.
func (m *mac) check() {
	m.t.Helper()
	s := m.w.Snapshot()
	if taken := m.taken(); taken > s.LimitBytes+s.BacklogBytes {
		m.t.Errorf("%d bytes on the disk, the limit is %d with %d above it", taken, s.LimitBytes, s.BacklogBytes)
	}
	if !s.Blocks.Balanced() {
		m.t.Errorf("does not add up: %+v", s.Blocks)
	}
	var blocks int
	var bytes int64
	for _, n := range s.Namespaces {
		blocks += n.Blocks
		bytes += n.Bytes
	}
	if s.ForeignFiles == 0 && (blocks != s.Files || bytes != s.UsedBytes) {
		m.t.Errorf("namespaces hold %d files with %d bytes: %+v", blocks, bytes, s)
	}
}

func play(t *testing.T, capacity int64, b blocks.Budget, test func(t *testing.T, m *mac)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMac(t, faultfs.New(capacity), b)
		defer func() {
			for _, e := range m.engines {
				_ = e.tier.Close(context.Background())
			}
		}()
		test(t, m)
	})
}

func TestBlocksSurviveEngineAndAgent(t *testing.T) {
	play(t, 1<<20, blocks.Budget{}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		for n := range 10 {
			if got := e.put(n); got != kv.Queued {
				t.Fatalf("block %d: %v", n, got)
			}
		}
		e.stop()
		again := newMac(t, m.f.Restart(), blocks.Budget{})
		if s := again.w.Snapshot(); s.Files != 10 || s.UsedBytes != 10*fileBytes || s.ForeignFiles != 0 || s.Namespaces[0].Model != "a" {
			t.Errorf("after a restart: %+v", s)
		}
		e = again.engine("a")
		for n := range 10 {
			dst := make([]byte, len(payload(n)))
			if err := e.tier.Read(t.Context(), key("a", n), dst); err != nil || !bytes.Equal(dst, payload(n)) {
				t.Errorf("block %d: %v", n, err)
			}
		}
		other := again.engine("b")
		if other.has(1) {
			t.Error("an engine of another origin finds it")
		}
		e.stop()
		other.stop()
	})
}

func TestAllEnginesShareOneDiskBudget(t *testing.T) {
	play(t, 1<<30, blocks.Budget{LimitBytes: 20 * fileBytes}, func(t *testing.T, m *mac) {
		engines := []*engine{m.engine("a"), m.engine("b"), m.engine("b"), m.engine("a"), m.engine("a"), m.engine("a")}
		for n := range 60 {
			e := engines[n%6]
			if got := e.put(n); got != kv.Queued {
				t.Fatalf("block %d: %v", n, got)
			}
		}
		s := m.w.Snapshot()
		if s.LimitBytes != 20*fileBytes || s.UsedBytes+s.GrantedBytes > s.LimitBytes || s.UsedBytes < 10*fileBytes || s.Evictions == 0 {
			t.Errorf("%+v", s)
		}
		if engines[0].has(0) || !engines[5].has(59) {
			t.Error("not the oldest use went")
		}
		for round := range 20 { // all of them write what they were granted
			for n := range 10 {
				for i, e := range engines {
					e.tier.Put(key(e.model, 1000*(i+1)+10*round+n), payload(n))
				}
			}
			synctest.Wait()
			if taken := m.taken(); taken > 20*fileBytes {
				t.Fatalf("%d bytes on the disk", taken)
			}
			for _, e := range engines {
				e.report()
			}
		}
		s = m.w.Snapshot()
		if a, b := s.Namespaces[0], s.Namespaces[1]; a.Bytes+b.Bytes != s.UsedBytes || a.Engines+b.Engines != 6 {
			t.Errorf("%+v", s.Namespaces)
		}
	})
}

// A writer finds the space free; no deletion waits in a queue.
func TestEvictionFinishesBeforeSpaceIsGranted(t *testing.T) {
	play(t, 1<<30, blocks.Budget{LimitBytes: 4 * fileBytes}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		for n := range 4 {
			e.put(n)
		}
		e.tier.Put(key("a", 9), payload(9))
		before := m.w.Snapshot()
		e.report() // one report, and the room is there
		after := m.w.Snapshot()
		if after.Evictions == before.Evictions || after.UsedBytes+after.GrantedBytes > after.LimitBytes || after.GrantedBytes < fileBytes {
			t.Errorf("before %+v\nafter %+v", before, after)
		}
		if got := e.tier.Put(key("a", 9), payload(9)); got != kv.Queued && got != kv.Held {
			t.Errorf("after the grant: %v", got)
		}
	})
}

// When the limit falls, nothing is granted until the excess is deleted.
func TestBacklogDrains32FilesAtATime(t *testing.T) {
	play(t, 1000*fileBytes, blocks.Budget{FloorBytes: 150 * fileBytes}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		for n := range 300 {
			e.put(n)
		}
		m.f.Occupy(980*fileBytes - m.f.Used()) // other programs fill the disk
		time.Sleep(blocks.FreeFor)
		for n := range 20 { // what was granted is used up
			e.tier.Put(key("a", 300+n), payload(n))
		}
		had := e.lease.Current().GrantedBytes
		if l := e.report(); l.GrantedBytes != had || l.Final || m.w.Snapshot().BacklogBytes == 0 {
			t.Fatalf("granted %d, now %+v: %+v", had, l, m.w.Snapshot())
		}
		for round := 0; ; round++ {
			before := m.w.Snapshot()
			taken, granted := m.taken(), before.GrantedBytes
			m.w.Tick()
			after := m.w.Snapshot()
			m.check()
			if went := (taken - m.taken()) / fileBytes; went > 32 {
				t.Fatalf("round %d: %d files went", round, went)
			}
			if after.BacklogBytes > 0 && after.GrantedBytes > granted {
				t.Fatalf("round %d: granted before room was made: %+v", round, after)
			}
			if after.BacklogBytes == 0 {
				if round < 3 || after.UsedBytes+after.GrantedBytes > after.LimitBytes || after.Waiting {
					t.Errorf("after %d rounds: %+v", round, after)
				}
				break
			} else if !after.Waiting {
				t.Fatal("the backlog is not processed")
			}
		}
		if got := e.put(1000); got != kv.Queued {
			t.Errorf("once there is room: %v", got)
		}
	})
}

func TestNewBudgetAppliesImmediately(t *testing.T) {
	play(t, 1<<20, blocks.Budget{LimitBytes: 20 * fileBytes}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		for n := range 10 {
			if got := e.put(n); got != kv.Queued {
				t.Fatalf("block %d: %v", n, got)
			}
		}
		e.stop()
		m.w.SetBudget(func() blocks.Budget { return blocks.Budget{LimitBytes: 4 * fileBytes} })
		if s := m.w.Snapshot(); s.LimitBytes != 4*fileBytes || s.BacklogBytes != 6*fileBytes || !s.Waiting {
			t.Errorf("before anything went: %+v", s)
		}
		m.w.Tick()
		if s := m.w.Snapshot(); s.Files != 4 || s.BacklogBytes != 0 {
			t.Errorf("after it went: %+v", s)
		}
		m.check()
	})
}

func TestFreeSpaceFloorIsKept(t *testing.T) {
	play(t, 100*fileBytes, blocks.Budget{LimitBytes: 1 << 40, FloorBytes: 60 * fileBytes}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		for n := range 100 {
			e.put(n)
			if free, _ := m.f.Free("/"); free < 60*fileBytes {
				t.Fatalf("%d bytes are left free", free)
			}
		}
		if s := m.w.Snapshot(); s.UsedBytes < 30*fileBytes {
			t.Errorf("%+v", s)
		}
	})
}

// The cached figure is dropped as soon as an engine runs out of disk space.
func TestFreeSpaceIsReadAgainAfterDiskFull(t *testing.T) {
	play(t, 100*fileBytes, blocks.Budget{}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		e.put(0)
		m.f.Occupy(99*fileBytes - page)
		if s := m.w.Snapshot(); s.LimitBytes < 90*fileBytes {
			t.Fatalf("%+v", s)
		}
		e.tier.Put(key("a", 1), payload(1))
		e.report()
		s := m.w.Snapshot()
		if s.Blocks.FullDisk != 1 || s.LimitBytes > 2*fileBytes {
			t.Errorf("%+v", s)
		}
		for _, at := range m.f.Files(dir) {
			if strings.Contains(at, blocks.Temporary+"/") {
				t.Errorf("%s was left", at)
			}
		}
	})
}

func TestAnUnknownFreeSpaceAllowsNothing(t *testing.T) {
	play(t, 100*fileBytes, blocks.Budget{LimitBytes: 50 * fileBytes}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		m.f.Inject(func(op faultfs.Op) faultfs.Fault {
			if op.Kind == faultfs.Free {
				return faultfs.Fault{Err: syscall.EIO}
			}
			return faultfs.Fault{}
		})
		time.Sleep(blocks.FreeFor)
		if got := e.put(1); got != kv.Dropped {
			t.Errorf("on a disk that says nothing: %v", got)
		}
		if s := m.w.Snapshot(); s.GrantedBytes != 0 || s.Problem == "" {
			t.Errorf("%+v", s)
		}
	})
}

func TestOrderOfUseSurvivesAgentRestart(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		for n := range 8 {
			e.put(n)
			time.Sleep(time.Minute)
		}
		if err := e.tier.Read(t.Context(), key("a", 0), make([]byte, len(payload(0)))); err != nil {
			t.Fatal(err)
		}
		e.report()
		e.stop()
		again := newMac(t, m.f.Restart(), blocks.Budget{LimitBytes: 3 * fileBytes})
		e = again.engine("a")
		for n, want := range map[int]bool{0: true, 1: false, 5: false, 6: true, 7: true} {
			if e.has(n) != want {
				t.Errorf("block %d is there: %t", n, !want)
			}
		}
		e.stop()
	})
}

// TestForeignFilesCountAndGoFirst: files of another version, with damaged
// headers, or unrelated ones.
func TestForeignFilesCountAndGoFirst(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		for n := range 6 {
			e.put(n)
		}
		e.stop()
		n := e.tier.Namespace()
		if err := errors.Join(
			m.f.Rot(blocks.Path(folder("a"), n, key("a", 0)), 64), // the version
			m.f.Rot(blocks.Path(folder("a"), n, key("a", 1)), 200),
			m.f.Rename(blocks.Path(folder("a"), n, key("a", 2)), path.Join(blocks.Folder(folder("a"), n), "0", "note.txt")),
			m.f.MkdirAll(dir+"/some/where"),
			m.f.Rename(blocks.Path(folder("a"), n, key("a", 3)), dir+"/some/where/x"),
		); err != nil {
			t.Fatal(err)
		}
		again := newMac(t, m.f.Restart(), blocks.Budget{})
		if s := again.w.Snapshot(); s.Files != 6 || s.ForeignFiles != 4 || s.UsedBytes != 6*fileBytes {
			t.Errorf("%+v", s)
		}
		again = newMac(t, m.f.Restart(), blocks.Budget{LimitBytes: 2 * fileBytes})
		if s := again.w.Snapshot(); s.Files != 2 || s.ForeignFiles != 0 || s.Evictions != 4 || again.taken() != 2*fileBytes {
			t.Errorf("%+v", s)
		}
		e = again.engine("a")
		if !e.has(4) || !e.has(5) {
			t.Error("a sound block went before foreign files")
		}
		e.stop()
	})
}

// Engines of two models have folders next to each other, and what one of them puts into
// its own in the name of the other is dropped.
func TestEachModelHasAFolderOfItsOwn(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		a, b := m.engine("a"), m.engine("b")
		a.put(1)
		b.put(1)
		for _, e := range []*engine{a, b} {
			if got := e.lease.Current().Dir; got != folder(e.model) {
				t.Errorf("the engine of model %s writes to %s, want %s", e.model, got, folder(e.model))
			}
		}
		for _, at := range m.f.Files(dir) {
			if !strings.HasPrefix(at, folder("a")+"/") && !strings.HasPrefix(at, folder("b")+"/") && path.Base(at) != cold.Marker {
				t.Errorf("%s is in no model's folder", at)
			}
		}
		n := b.tier.Namespace()
		a.stop()
		b.stop()
		if err := m.f.Rename(blocks.Folder(folder("b"), n), blocks.Folder(folder("a"), n)); err != nil {
			t.Fatal(err)
		}
		again := newMac(t, m.f.Restart(), blocks.Budget{})
		if s := again.w.Snapshot(); s.Files != 1 || len(s.Namespaces) != 1 || s.Namespaces[0].Model != "a" || again.taken() != fileBytes {
			t.Errorf("%d bytes on the disk, %+v", again.taken(), s)
		}
	})
}

// Blocks of the layout without folders of models are dropped.
func TestBlocksOfTheOldLayoutAreDropped(t *testing.T) {
	play(t, 1<<30, blocks.Budget{}, func(t *testing.T, m *mac) {
		a := m.engine("a")
		a.put(1)
		a.stop()
		n := a.tier.Namespace()
		if err := m.f.Rename(blocks.Folder(folder("a"), n), blocks.Folder(dir, n)); err != nil {
			t.Fatal(err)
		}
		again := newMac(t, m.f.Restart(), blocks.Budget{})
		if s := again.w.Snapshot(); s.Files != 0 || again.taken() != 0 {
			t.Errorf("%d bytes on the disk, %+v", again.taken(), s)
		}
		if _, err := again.f.Stat(blocks.Folder(dir, n)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the old folder: %v", err)
		}
	})
}

func TestAFolderThatIsNoCacheIsRefused(t *testing.T) {
	f := faultfs.New(1 << 20)
	if err := f.MkdirAll(dir + "/photos"); err != nil {
		t.Fatal(err)
	}
	if _, err := cold.Open(cold.Options{FS: f, Dir: dir}); err == nil || !strings.Contains(err.Error(), "not a metalfleet cache") {
		t.Errorf("opened: %v", err)
	}
	if _, err := cold.Prepare(f, dir, "a"); err == nil {
		t.Error("a model's folder was made there")
	}
	m, err := f.Create(dir + "/" + cold.Marker)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := cold.Open(cold.Options{FS: f, Dir: dir}); err != nil {
		t.Errorf("a marked one: %v", err)
	}
}

// TestALinkIsNeverFollowed: it counts as a foreign file and is removed alone.
func TestALinkIsNeverFollowed(t *testing.T) {
	root := t.TempDir()
	cache, outside := path.Join(root, "cache"), path.Join(root, "outside")
	os := disk.OS{}
	if err := errors.Join(os.MkdirAll(cache), os.MkdirAll(outside)); err != nil {
		t.Fatal(err)
	}
	w, err := os.Create(path.Join(outside, "kept"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cold.Open(cold.Options{FS: os, Dir: cache}); err != nil {
		t.Fatal(err)
	}
	n := blocks.NamespaceOf(origin("a"))
	_, prepared := cold.Prepare(os, cache, "a")
	if err := errors.Join(w.Close(), prepared, syscall.Symlink(outside, blocks.Folder(blocks.ModelFolder(cache, "a"), n)), syscall.Symlink(outside, path.Join(cache, "x"))); err != nil {
		t.Fatal(err)
	}
	o, err := cold.Open(cold.Options{FS: os, Dir: cache})
	if err != nil {
		t.Fatal(err)
	}
	if s := o.Snapshot(); s.ForeignFiles != 2 {
		t.Errorf("%+v", s)
	}
	if o, err = cold.Open(cold.Options{FS: os, Dir: cache, Budget: blocks.Budget{LimitBytes: 1}}); err != nil {
		t.Fatal(err)
	}
	if s := o.Snapshot(); s.Evictions != 2 || s.Files != 0 {
		t.Errorf("%+v", s)
	}
	if _, err := os.Stat(path.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
	if infos, err := os.ReadDir(cache); err != nil || len(infos) != 2 {
		t.Errorf("left %v: %v", infos, err)
	}
}

func TestAFileThatCannotBeRemovedStaysInTheBooks(t *testing.T) {
	play(t, 1<<30, blocks.Budget{LimitBytes: 6 * fileBytes}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		stuck := blocks.Path(folder("a"), e.tier.Namespace(), key("a", 0))
		m.f.Inject(func(op faultfs.Op) faultfs.Fault {
			if op.Kind == faultfs.Remove && op.Path == stuck {
				return faultfs.Fault{Err: fs.ErrPermission}
			}
			return faultfs.Fault{}
		})
		for n := range 30 {
			e.put(n)
		}
		s := m.w.Snapshot()
		if s.UnlinkFailures == 0 || s.UsedBytes != m.taken() || !e.has(0) || !e.has(29) || s.Evictions < 20 {
			t.Errorf("%+v", s)
		}
		m.f.Inject(nil)
	})
}

func TestABlockThatCanNeverFitIsNotWaitedFor(t *testing.T) {
	play(t, 1<<30, blocks.Budget{LimitBytes: fileBytes - 1}, func(t *testing.T, m *mac) {
		e := m.engine("a")
		e.tier.Put(key("a", 1), payload(1))
		if l := e.report(); !l.Final || l.GrantedBytes != 0 {
			t.Errorf("told %+v", l)
		}
		began := time.Now()
		if got := e.tier.Put(key("a", 1), payload(1)); got != kv.Dropped || time.Since(began) != 0 {
			t.Errorf("%v after %s", got, time.Since(began))
		}
		if s := m.w.Snapshot(); s.Waiting {
			t.Error("a request that cannot be met keeps waiting")
		}
	})
}

// TestTheSystemsDiskHoldsWhatIsSaved: the same life on files of this machine.
func TestTheSystemsDiskHoldsWhatIsSaved(t *testing.T) {
	root := path.Join(t.TempDir(), "cache")
	open := func() *cold.Owner {
		w, err := cold.Open(cold.Options{FS: disk.OS{}, Dir: root, Budget: blocks.Budget{LimitBytes: 8 * fileBytes}})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := open()
	save := func(from, to int) {
		l, err := w.Lease(origin("a"), nil)
		if err != nil {
			t.Fatal(err)
		}
		tier := blocks.Open(blocks.Options{FS: disk.OS{}, Origin: origin("a"), QueueBytes: 1 << 20})
		for n := from; n < to; n++ {
			for try := 0; tier.Put(key("a", n), payload(n)) == kv.Dropped; try++ {
				if try == 5 {
					t.Fatalf("block %d is never taken", n)
				}
				if err := tier.Attach(l.Report(tier.Report())); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := tier.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.Report(tier.Report())
		l.End()
	}
	save(0, 6)
	w = open()
	save(4, 12)
	s := w.Snapshot()
	if s.UsedBytes > s.LimitBytes || s.Files < 4 || s.Evictions == 0 || s.Blocks.Persisted != 6 || s.Blocks.Known != 2 || s.Problem != "" {
		t.Errorf("%+v", *s)
	}
	if freed, err := w.ClearAll(); err != nil || freed != s.UsedBytes {
		t.Errorf("%d bytes came back of %d: %v", freed, s.UsedBytes, err)
	}
	if _, err := w.Keep(nil); err != nil {
		t.Error(err)
	}
	if infos, err := (disk.OS{}).ReadDir(root); err != nil || len(infos) != 1 {
		t.Errorf("left %v: %v", infos, err)
	}
}

package cold_test

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"path"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
	"metalfleet.dev/metalfleet/test/seed"
)

// clean does what an owner does to clear a namespace: it ends the epoch, then
// removes what lies under a name.
func clean(t *testing.T, f *faultfs.FS, n cold.Namespace, epoch string) {
	t.Helper()
	if _, err := cold.Fence(f, dir, n, epoch); err != nil {
		t.Fatal(err)
	}
	for _, s := range cold.Shards() {
		if _, err := cold.RemoveTree(f, path.Join(cold.Folder(dir, n), s)); err != nil {
			t.Fatal(err)
		}
		if err := f.MkdirAll(path.Join(cold.Folder(dir, n), s)); err != nil {
			t.Fatal(err)
		}
	}
}

// The writer is stopped before each of its operations, the owner clears, the
// writer continues; nothing is left afterwards, and the accounting is right.
func TestClearIsFinalWhereverTheWriterIs(t *testing.T) {
	kinds := map[faultfs.Kind]int{}
	for at := int64(1); ; at++ {
		done := false
		synctest.Test(t, func(t *testing.T) {
			f := faultfs.New(1 << 20)
			tier := open(t, f, 1<<20, 1<<20)
			tier.Put(key(9), payload(9, 100)) // one that has its name already
			synctest.Wait()
			release, stopped := make(chan struct{}), make(chan faultfs.Kind, 1)
			ops := f.Ops()
			f.Inject(func(op faultfs.Op) faultfs.Fault {
				if op.Index == ops+at && op.Path != "" && within(op.Path, "e1") {
					stopped <- op.Kind
					<-release
				}
				return faultfs.Fault{}
			})
			tier.Put(key(1), payload(1, 3000))
			tier.Put(key(2), payload(2, 3000))
			synctest.Wait()
			select {
			case kind := <-stopped:
				kinds[kind]++
			default:
				done = f.Ops()-ops < at
			}
			f.Inject(nil)
			clean(t, f, tier.Namespace(), "e1")
			close(release)
			synctest.Wait()
			if left := f.Files("/"); len(left) != 0 {
				t.Errorf("operation %d: %q appeared", at, left)
			}
			c := balanced(t, tier)
			if c.Queued != 0 || c.Failed != 0 || c.Persisted+c.Dropped[cold.AtFence] != 3 {
				t.Errorf("operation %d: %+v", at, c)
			}
			closeTier(t, tier)
		})
		if done || t.Failed() {
			break
		}
	}
	for _, kind := range []faultfs.Kind{faultfs.Create, faultfs.Write, faultfs.Sync, faultfs.Close, faultfs.Rename} {
		if kinds[kind] == 0 {
			t.Errorf("never stopped before %s: %v", kind, kinds)
		}
	}
}

// within says whether a path has a folder of this name.
func within(at, name string) bool {
	for at != "/" && at != "." {
		if path.Base(at) == name {
			return true
		}
		at = path.Dir(at)
	}
	return false
}

// Blocks queued before a clear are not written after it, and the new epoch has
// its whole grant.
func TestNewEpochDropsTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 1<<20, 1<<20)
		g := gate{ch: make(chan struct{}), kind: faultfs.Sync}
		f.Inject(g.fault)
		for n := range 4 {
			tier.Put(key(n), payload(n, 100))
		}
		synctest.Wait()
		clean(t, f, tier.Namespace(), "e1")
		lay(t, f, tier.Namespace(), "e2")
		if err := tier.Attach(cold.Lease{Dir: dir, Epoch: "e2", GrantedBytes: 4096}); err != nil {
			t.Fatal(err)
		}
		if _, ok := tier.Size(key(3)); ok {
			t.Error("what was dropped can be read")
		}
		close(g.ch)
		synctest.Wait()
		if c := balanced(t, tier); c.Dropped[cold.AtFence] != 4 || c.Queued != 0 {
			t.Errorf("%+v", c)
		}
		if left := f.Files("/"); len(left) != 0 {
			t.Errorf("%q appeared", left)
		}
		if got := tier.Put(key(0), payload(0, 100)); got != kv.Queued {
			t.Errorf("in the new epoch: %v", got)
		}
		synctest.Wait()
		if r := tier.Report(); r.Epoch != "e2" || r.SpentBytes != 4096 || len(r.Persisted) != 1 {
			t.Errorf("reported %+v", r)
		}
		closeTier(t, tier)
	})
}

func TestShutdownWritesTheQueueThenNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 1<<20, 1<<20)
		f.Inject(func(op faultfs.Op) faultfs.Fault {
			return faultfs.Fault{Delay: time.Second}
		})
		for n := range 3 {
			go tier.Put(key(n), payload(n, 100))
		}
		time.Sleep(1500 * time.Millisecond)
		closeTier(t, tier)
		if c := balanced(t, tier); c.Persisted != 3 {
			t.Errorf("%+v", c)
		}
		f.Inject(nil)
		before := f.Ops()
		if got := tier.Put(key(5), payload(5, 100)); got != kv.Dropped {
			t.Errorf("after the end: %v", got)
		}
		time.Sleep(time.Minute)
		if left := f.Files("/"); len(left) != 3 || f.Ops() > before+2 {
			t.Errorf("%d operations after the end; %q", f.Ops()-before, left)
		}
	})
}

func TestShutdownIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 1<<20, 1<<20)
		g := gate{ch: make(chan struct{}), kind: faultfs.Sync}
		f.Inject(g.fault)
		for n := range 3 {
			tier.Put(key(n), payload(n, 100))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := tier.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if c := balanced(t, tier); c.Dropped[cold.AtShutdown] != 2 || c.Queued != 1 {
			t.Errorf("%+v", c)
		}
		close(g.ch)
		synctest.Wait()
		if c := balanced(t, tier); c.Queued != 0 || c.Persisted != 0 {
			t.Errorf("%+v", c)
		}
		if left := f.Files("/"); len(left) != 0 {
			t.Errorf("%q appeared after the bound", left)
		}
	})
}

func TestFencingIsIdempotentAndFindsWhatACrashLeft(t *testing.T) {
	f := faultfs.New(1 << 20)
	n := cold.NamespaceOf(origin())
	lay(t, f, n, "e1")
	lay(t, f, n, "e2")
	for _, at := range []string{cold.EpochFolder(dir, n, "e1") + "/a", cold.EpochFolder(dir, n, "e2") + "/b"} {
		w, err := f.Create(at)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write(make([]byte, 5000))
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	f.Inject(func(op faultfs.Op) faultfs.Fault {
		if op.Kind == faultfs.Remove {
			return faultfs.Fault{Err: fs.ErrPermission}
		}
		return faultfs.Fault{}
	})
	if freed, err := cold.Fence(f, dir, n, "e1"); err == nil || freed != 0 {
		t.Errorf("%d bytes went of a folder that stays: %v", freed, err)
	}
	if _, err := f.Stat(cold.EpochFolder(dir, n, "e1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the epoch is open: %v", err)
	}
	f.Inject(nil)
	if freed, err := cold.FenceAll(f, dir, n); err != nil || freed != 2*8192 {
		t.Errorf("%d bytes went: %v", freed, err)
	}
	if freed, err := cold.FenceAll(f, dir, n); err != nil || freed != 0 || f.Used() != 0 {
		t.Errorf("again %d bytes went: %v", freed, err)
	}
	if _, err := cold.Fence(f, dir, n, "../../x"); err == nil {
		t.Error("an epoch leads out of its folder")
	}
}

// TestNoBytesButThoseThatWerePutAreEverReadAfterACrash: the machine stops at
// every operation in turn, as a process that ends and as a loss of power.
func TestNoBytesButThoseThatWerePutAreEverReadAfterACrash(t *testing.T) {
	seed := seed.Of(t)
	for at := int64(1); !t.Failed(); at++ {
		r := rand.New(rand.NewPCG(seed, uint64(at)))
		crashed := false
		synctest.Test(t, func(t *testing.T) {
			f := faultfs.New(1 << 20)
			tier := open(t, f, 1<<20, 1<<20)
			f.CrashAt(f.Ops() + at)
			for n := range 4 {
				tier.Put(key(n), payload(n, 2000+n))
				_ = reads(t, tier, n/2, 2000+n/2)
			}
			_ = tier.Close(t.Context())
			balanced(t, tier)
			_, err := f.Stat("/")
			crashed = errors.Is(err, faultfs.ErrCrashed)
			reported := map[kv.Key]bool{}
			for _, p := range tier.Report().Persisted {
				reported[p.Key] = true
			}
			survivors(t, f.Restart(), reported)
			for range 5 {
				survivors(t, f.PowerLoss(r), nil)
			}
		})
		if !crashed {
			if at < 30 {
				t.Errorf("only %d operations", at)
			}
			return
		}
	}
}

// survivors opens a disk after a crash as an owner does: no epoch continues,
// and each block is complete or absent. The blocks in must have to be present.
func survivors(t *testing.T, f *faultfs.FS, must map[kv.Key]bool) {
	t.Helper()
	n := cold.NamespaceOf(origin())
	if _, err := cold.FenceAll(f, dir, n); err != nil {
		t.Fatal(err)
	}
	lay(t, f, n, "e2")
	tier := cold.Open(cold.Options{FS: f, Origin: origin(), QueueBytes: 1 << 20})
	defer closeTier(t, tier)
	if err := tier.Attach(cold.Lease{Dir: dir, Epoch: "e2", GrantedBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := reads(t, tier, i, 2000+i); err != nil && must[key(i)] {
			t.Errorf("block %d was persisted: %v", i, err)
		}
		if got := tier.Put(key(i), payload(i, 2000+i)); got == kv.Dropped {
			t.Errorf("block %d cannot be written again", i)
		}
	}
	synctest.Wait()
	for i := range 4 {
		if err := reads(t, tier, i, 2000+i); err != nil {
			t.Errorf("block %d, written again: %v", i, err)
		}
	}
	for _, at := range f.Files("/") {
		if within(at, cold.Temporary) {
			t.Errorf("%s was left", at)
		}
	}
}

// TestTheErrorOfManyFilesThatStayIsShort: an engine that was taken over leaves a folder from which
// nothing can be removed. The text of joined errors takes the square of their number.
func TestTheErrorOfManyFilesThatStayIsShort(t *testing.T) {
	for name, remove := range map[string]func(f *faultfs.FS, n cold.Namespace) error{
		"a folder": func(f *faultfs.FS, n cold.Namespace) error {
			_, err := cold.RemoveTree(f, cold.Folder(dir, n))
			return err
		},
		"of all epochs": func(f *faultfs.FS, n cold.Namespace) error { _, err := cold.FenceAll(f, dir, n); return err },
	} {
		f, n := faultfs.New(1<<30), cold.Namespace{1}
		at := path.Join(cold.Folder(dir, n), cold.Temporary)
		if err := f.MkdirAll(at); err != nil {
			t.Fatal(err)
		}
		for i := range manyFiles {
			w, err := f.Create(path.Join(at, strconv.Itoa(i)))
			if err == nil {
				err = w.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		f.Inject(func(op faultfs.Op) (fault faultfs.Fault) {
			if op.Kind == faultfs.Remove {
				fault.Err = fs.ErrPermission
			}
			return fault
		})
		err := remove(f, n)
		if !errors.Is(err, fs.ErrPermission) || len(err.Error()) > 1024 {
			t.Errorf("%s: the error is %v, of %d bytes", name, errors.Is(err, fs.ErrPermission), len(err.Error()))
		}
	}
}

const manyFiles = 1000

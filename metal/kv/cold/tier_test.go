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

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

const dir = "/cache"

func origin() kv.Origin { return kv.Origin{Model: "sha256:ab", Numerics: "ref 1", Layout: "16 tokens"} }

func key(n int) kv.Key { return kv.Root(origin(), kv.Salt{}).Next([]int32{int32(n)}) }

// payload of a key: nothing else ever belongs under it.
func payload(n, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(n*31 + i*7 + i>>8)
	}
	return b
}

// lay makes the folders of a namespace and of an epoch, as the owner does.
func lay(t testing.TB, f disk.FS, n cold.Namespace, epoch string) {
	t.Helper()
	for _, s := range cold.Shards() {
		if err := f.MkdirAll(path.Join(cold.Folder(dir, n), s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.MkdirAll(cold.EpochFolder(dir, n, epoch)); err != nil {
		t.Fatal(err)
	}
}

// open opens a tier with a lease of an epoch.
func open(t testing.TB, f disk.FS, queue, granted int64) *cold.Tier {
	t.Helper()
	tier := cold.Open(cold.Options{FS: f, Origin: origin(), QueueBytes: queue})
	lay(t, f, tier.Namespace(), "e1")
	if err := tier.Attach(cold.Lease{Dir: dir, Epoch: "e1", GrantedBytes: granted}); err != nil {
		t.Fatal(err)
	}
	return tier
}

func closeTier(t testing.TB, tier *cold.Tier) {
	t.Helper()
	if err := tier.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func balanced(t testing.TB, tier *cold.Tier) cold.Counters {
	t.Helper()
	c := tier.Counters()
	if !c.Balanced() || c.Queued < 0 || c.QueuedBytes < 0 {
		t.Errorf("does not add up: %+v", c)
	}
	return c
}

// gate lets operations of a kind wait until it is opened.
type gate struct {
	ch   chan struct{}
	kind faultfs.Kind
}

func (g gate) fault(op faultfs.Op) faultfs.Fault {
	if op.Kind == g.kind {
		<-g.ch
	}
	return faultfs.Fault{}
}

// reads reads a block and compares it with its payload.
func reads(t testing.TB, tier *cold.Tier, n, size int) error {
	t.Helper()
	dst := make([]byte, size)
	err := tier.Read(t.Context(), key(n), dst)
	if err == nil && !bytes.Equal(dst, payload(n, size)) {
		t.Fatalf("block %d: wrong bytes", n)
	}
	return err
}

func TestWhatIsPutIsReadAfterTheEngineCameBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(64 << 20)
		a := open(t, f, 32<<20, 32<<20)
		for n, size := range []int{0, 1, 4096, 3 << 20} {
			if got := a.Put(key(n), payload(n, size)); got != kv.Queued {
				t.Fatalf("block %d: %v", n, got)
			}
		}
		closeTier(t, a)
		b := open(t, f, 32<<20, 0)
		defer closeTier(t, b)
		for n, size := range []int{0, 1, 4096, 3 << 20} {
			if bytes, ok := b.Size(key(n)); !ok || bytes != int64(size) {
				t.Errorf("block %d: %d bytes, %t", n, bytes, ok)
			}
			if err := reads(t, b, n, size); err != nil {
				t.Errorf("block %d: %v", n, err)
			}
			if got := b.Put(key(n), payload(n, size)); got != kv.Held {
				t.Errorf("block %d is written again: %v", n, got)
			}
		}
		if err := b.Read(t.Context(), key(1), make([]byte, 2)); err == nil || errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("a buffer of another size: %v", err)
		}
		if err := reads(t, b, 9, 1); !errors.Is(err, kv.ErrAbsent) {
			t.Errorf("what was never put: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.Read(ended, key(3), make([]byte, 3<<20)); !errors.Is(err, context.Canceled) {
			t.Errorf("a read that was cancelled: %v", err)
		}
		if c := balanced(t, b); c.Known != 4 || c.Accepted != 0 || c.Damaged != 0 {
			t.Errorf("%+v", c)
		}
	})
}

func TestQueuedAndPersistedAreCountedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 1<<20, 1<<20)
		g := gate{ch: make(chan struct{}), kind: faultfs.Rename}
		f.Inject(g.fault)
		for n := range 5 {
			tier.Put(key(n), payload(n, 100))
		}
		synctest.Wait()
		if c := balanced(t, tier); c.Accepted != 5 || c.Queued != 5 || c.Persisted != 0 || c.QueuedBytes != 500 || c.CopiedBytes != 500 {
			t.Errorf("while the disk waits: %+v", c)
		}
		if r := tier.Report(); len(r.Persisted) != 0 || r.SpentBytes != 0 {
			t.Errorf("reported: %+v", r)
		}
		close(g.ch)
		synctest.Wait()
		if c := balanced(t, tier); c.Queued != 0 || c.Persisted != 5 || c.PersistedBytes != 5*4096 || c.PayloadBytes != 500 || c.WrittenBytes != 5*228 {
			t.Errorf("afterwards: %+v", c)
		}
		if r := tier.Report(); len(r.Persisted) != 5 || r.SpentBytes != 5*4096 || r.Persisted[2] != (cold.File{Key: key(2), Bytes: 4096}) {
			t.Errorf("reported: %+v", r)
		}
		if r := tier.Report(); len(r.Persisted) != 0 || r.SpentBytes != 5*4096 {
			t.Errorf("reported again: %+v", r)
		}
		closeTier(t, tier)
	})
}

func TestQueuedBlockCanBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 1<<20, 1<<20)
		g := gate{ch: make(chan struct{}), kind: faultfs.Create}
		f.Inject(g.fault)
		for n := range 3 { // one is being written, two wait
			p := payload(n, 100)
			tier.Put(key(n), p)
			clear(p) // the caller's bytes are its own again
		}
		synctest.Wait()
		for n := range 3 {
			if bytes, ok := tier.Size(key(n)); !ok || bytes != 100 {
				t.Errorf("block %d: %d bytes, %t", n, bytes, ok)
			}
			if err := reads(t, tier, n, 100); err != nil {
				t.Errorf("block %d: %v", n, err)
			}
			if got := tier.Put(key(n), payload(n, 100)); got != kv.Held {
				t.Errorf("block %d is queued twice: %v", n, got)
			}
		}
		if c := balanced(t, tier); c.Read != 3 || c.Pending != 3 || c.Known != 3 || c.Accepted != 3 {
			t.Errorf("%+v", c)
		}
		if err := tier.Read(t.Context(), key(0), nil); err == nil {
			t.Error("a buffer of another size is taken")
		}
		close(g.ch)
		closeTier(t, tier)
	})
}

func TestPutWaitsForSpaceUpToItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 250, 1<<20)
		g := gate{ch: make(chan struct{}), kind: faultfs.Create}
		f.Inject(g.fault)
		tier.Put(key(0), payload(0, 100))
		tier.Put(key(1), payload(1, 100))
		began := time.Now()
		if got := tier.Put(key(2), payload(2, 100)); got != kv.Dropped || time.Since(began) != 250*time.Millisecond {
			t.Errorf("%v after %s", got, time.Since(began))
		}
		if c := balanced(t, tier); c.Dropped[cold.AtQueue] != 1 || c.DroppedTotal() != 1 {
			t.Errorf("%+v", c)
		}
		began = time.Now()
		time.AfterFunc(100*time.Millisecond, func() { close(g.ch) })
		if got := tier.Put(key(3), payload(3, 100)); got != kv.Queued || time.Since(began) != 100*time.Millisecond {
			t.Errorf("%v after %s, when there was room", got, time.Since(began))
		}
		closeTier(t, tier)
	})
}

func TestEveryLostBlockIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := cold.Open(cold.Options{FS: f, Origin: origin(), QueueBytes: 1000})
		lost := func(site cold.Site, want int64) {
			t.Helper()
			c := balanced(t, tier)
			if c.Dropped[site] != want {
				t.Errorf("at %s: %+v", site, c)
			}
		}
		tier.Put(key(0), payload(0, 100))
		lost(cold.AtDetached, 1)
		lay(t, f, tier.Namespace(), "e1")
		if err := tier.Attach(cold.Lease{Dir: dir, Epoch: "e1", GrantedBytes: 4096}); err != nil {
			t.Fatal(err)
		}
		tier.Put(key(0), payload(0, 1001))
		lost(cold.AtSize, 1)
		g := gate{ch: make(chan struct{}), kind: faultfs.Create}
		f.Inject(g.fault)
		tier.Put(key(1), payload(1, 100))
		began := time.Now()
		tier.Put(key(2), payload(2, 100)) // the grant is used up: one Put waits
		tier.Put(key(3), payload(3, 100))
		if waited := time.Since(began); waited != 250*time.Millisecond {
			t.Errorf("two waited %s for a grant, want one", waited)
		}
		lost(cold.AtGrant, 2)
		if r := tier.Report(); r.WantedBytes != 4096 || r.LeastBytes != 4096 {
			t.Errorf("wants %d, at least %d", r.WantedBytes, r.LeastBytes)
		}
		tier.Detach()
		close(g.ch)
		synctest.Wait()
		lost(cold.AtFence, 1)
		if err := tier.Attach(cold.Lease{Dir: dir, Epoch: "e1", GrantedBytes: 8192}); err == nil {
			t.Error("an epoch that ended continues, with all of its grant")
		}
		lay(t, f, tier.Namespace(), "e2")
		if err := tier.Attach(cold.Lease{Dir: dir, Epoch: "e2", GrantedBytes: 4096, Final: true}); err != nil {
			t.Fatal(err)
		}
		tier.Put(key(4), payload(4, 100))
		synctest.Wait()
		began = time.Now()
		tier.Put(key(5), payload(5, 100))
		if time.Since(began) != 0 {
			t.Error("a Put waited for a grant that will not come")
		}
		lost(cold.AtGrant, 3)
		closeTier(t, tier)
		tier.Put(key(6), payload(6, 100))
		lost(cold.AtShutdown, 1)
		if c := balanced(t, tier); c.Persisted != 1 || c.Accepted != 8 {
			t.Errorf("%+v", c)
		}
	})
}

func TestFileSizeIsKnownBeforeWriting(t *testing.T) {
	root := t.TempDir()
	for _, size := range []int{0, 1, 3967, 3968, 3969, 100_000} {
		synctest.Test(t, func(t *testing.T) {
			tier := cold.Open(cold.Options{FS: disk.OS{}, Origin: origin(), QueueBytes: 1 << 20})
			for _, s := range append(cold.Shards(), cold.Temporary+"/e1") {
				if err := (disk.OS{}).MkdirAll(path.Join(cold.Folder(root, tier.Namespace()), s)); err != nil {
					t.Fatal(err)
				}
			}
			estimate := cold.Takes(cold.FileBytes(int64(size)))
			if err := tier.Attach(cold.Lease{Dir: root, Epoch: "e1", GrantedBytes: estimate}); err != nil {
				t.Fatal(err)
			}
			if got := tier.Put(key(size), payload(size, size)); got != kv.Queued {
				t.Fatalf("%d bytes: %v under a grant of the estimate", size, got)
			}
			closeTier(t, tier)
			info, err := disk.OS{}.Stat(cold.Path(root, tier.Namespace(), key(size)))
			if err != nil || info.Bytes > estimate || estimate-info.Bytes >= 4096 {
				t.Errorf("%d bytes: estimated %d, a file of %d: %v", size, estimate, info.Bytes, err)
			}
			if r := tier.Report(); r.SpentBytes != estimate {
				t.Errorf("%d bytes: %d spent, want %d", size, r.SpentBytes, estimate)
			}
		})
	}
}

func TestFullDiskDropsTheBlockAndReportsIt(t *testing.T) {
	for name, errno := range map[string]syscall.Errno{"no space": syscall.ENOSPC, "a quota": syscall.EDQUOT} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := faultfs.New(1 << 20)
				tier := open(t, f, 1<<20, 1<<20)
				f.Inject(func(op faultfs.Op) faultfs.Fault {
					if op.Kind == faultfs.Write {
						return faultfs.Fault{Err: errno, Keep: 17}
					}
					return faultfs.Fault{}
				})
				tier.Put(key(1), payload(1, 1000))
				synctest.Wait()
				if c := balanced(t, tier); c.Failed != 1 || c.FullDisk != 1 || c.Persisted != 0 || c.WrittenBytes != 17 {
					t.Errorf("%+v", c)
				}
				if left := f.Files("/"); len(left) != 0 {
					t.Errorf("left %q", left)
				}
				if r := tier.Report(); r.SpentBytes != 0 || len(r.Persisted) != 0 || r.Counters.FullDisk != 1 {
					t.Errorf("reported %+v", r)
				}
				if err := reads(t, tier, 1, 1000); !errors.Is(err, kv.ErrAbsent) {
					t.Errorf("it is still there: %v", err)
				}
				f.Inject(nil)
				if got := tier.Put(key(1), payload(1, 1000)); got != kv.Queued {
					t.Errorf("once there is space: %v", got)
				}
				closeTier(t, tier)
			})
		})
	}
}

func TestWhatCannotBeWrittenLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		kind   faultfs.Kind
		fault  faultfs.Fault
		leaves int64 // files, because they cannot be removed either
	}{
		"a short write":              {kind: faultfs.Write, fault: faultfs.Fault{Err: syscall.EIO, Keep: 3}, leaves: 0},
		"no permission":              {kind: faultfs.Create, fault: faultfs.Fault{Err: fs.ErrPermission}, leaves: 0},
		"bytes that are not durable": {kind: faultfs.Sync, fault: faultfs.Fault{Err: syscall.EIO}, leaves: 0},
		"a close that fails":         {kind: faultfs.Close, fault: faultfs.Fault{Err: syscall.EIO}, leaves: 0},
		"a rename that fails":        {kind: faultfs.Rename, fault: faultfs.Fault{Err: syscall.EIO}, leaves: 0},
		"a torn rename":              {kind: faultfs.Rename, fault: faultfs.Fault{Err: syscall.EIO, Torn: true}, leaves: 0},
		"a short write that stays":   {kind: faultfs.Write, fault: faultfs.Fault{Err: syscall.EIO, Keep: 3}, leaves: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := faultfs.New(1 << 20)
				tier := open(t, f, 1<<20, 1<<20)
				f.Inject(func(op faultfs.Op) faultfs.Fault {
					switch {
					case op.Kind == c.kind:
						return c.fault
					case op.Kind == faultfs.Remove && c.leaves > 0:
						return faultfs.Fault{Err: fs.ErrPermission}
					}
					return faultfs.Fault{}
				})
				tier.Put(key(1), payload(1, 1000))
				synctest.Wait()
				f.Inject(nil)
				if got := balanced(t, tier); got.Failed != 1 || got.FullDisk != 0 {
					t.Errorf("%+v", got)
				}
				if r := tier.Report(); r.SpentBytes != 4096*c.leaves {
					t.Errorf("%d bytes spent for %d files", r.SpentBytes, c.leaves)
				}
				if left := f.Files("/"); int64(len(left)) != c.leaves {
					t.Errorf("left %q", left)
				}
				if err := reads(t, tier, 1, 1000); err == nil {
					t.Error("it can be read")
				}
				closeTier(t, tier)
			})
		})
	}
}

func TestADamagedFileIsForgottenAndReported(t *testing.T) {
	const size = 5000
	for name, harm := range map[string]func(f *faultfs.FS, n cold.Namespace, at string) error{
		"a bit of the payload": func(f *faultfs.FS, _ cold.Namespace, at string) error { return f.Rot(at, 8*(cold.HeaderBytes+size/2)) },
		"a bit of the header":  func(f *faultfs.FS, _ cold.Namespace, at string) error { return f.Rot(at, 8*40) },
		"another version":      func(f *faultfs.FS, _ cold.Namespace, at string) error { return f.Rot(at, 8*8+3) },
		"another block's file": func(f *faultfs.FS, n cold.Namespace, at string) error { return f.Rename(cold.Path(dir, n, key(2)), at) },
		"a file that was cut": func(f *faultfs.FS, _ cold.Namespace, at string) error {
			return rewrite(f, at, func(b []byte) []byte { return b[:len(b)-1] })
		},
		"a file with more": func(f *faultfs.FS, _ cold.Namespace, at string) error {
			return rewrite(f, at, func(b []byte) []byte { return append(b, 0) })
		},
		"half a header": func(f *faultfs.FS, _ cold.Namespace, at string) error {
			return rewrite(f, at, func(b []byte) []byte { return b[:60] })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := faultfs.New(1 << 20)
				tier := open(t, f, 1<<20, 1<<20)
				tier.Put(key(1), payload(1, size))
				tier.Put(key(2), payload(2, size))
				synctest.Wait()
				tier.Report()
				if err := harm(f, tier.Namespace(), cold.Path(dir, tier.Namespace(), key(1))); err != nil {
					t.Fatal(err)
				}
				if err := reads(t, tier, 1, size); !errors.Is(err, kv.ErrCorrupt) {
					t.Fatalf("read: %v", err)
				}
				if err := reads(t, tier, 1, size); !errors.Is(err, kv.ErrAbsent) {
					t.Errorf("read again: %v", err)
				}
				if r := tier.Report(); len(r.Damaged) != 1 || r.Damaged[0] != key(1) || r.Counters.Damaged != 1 {
					t.Errorf("reported %+v", r)
				}
				time.Sleep(time.Second)
				if got := tier.Put(key(1), payload(1, size)); got != kv.Queued {
					t.Errorf("written again: %v", got)
				}
				synctest.Wait()
				if err := reads(t, tier, 1, size); err != nil {
					t.Errorf("read after writing again: %v", err)
				}
				closeTier(t, tier)
			})
		})
	}
}

// rewrite puts other bytes in a file's place.
func rewrite(f *faultfs.FS, at string, change func([]byte) []byte) error {
	r, err := f.Open(at)
	if err != nil {
		return err
	}
	info, err := r.Stat()
	if err != nil {
		return err
	}
	b := make([]byte, info.Bytes)
	if _, err := r.ReadAt(b, 0); err != nil {
		return err
	}
	w, err := f.Create(at)
	if err != nil {
		return err
	}
	_, err = w.Write(change(b))
	return errors.Join(err, w.Close())
}

// TestAFileOfAnotherNamespaceIsNeverRead: each file contains a digest of model,
// numerics and layout, so that the folder it lies in does not matter.
func TestAFileOfAnotherNamespaceIsNeverRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 1<<20, 1<<20)
		tier.Put(key(1), payload(1, 100))
		closeTier(t, tier)
		other := cold.Open(cold.Options{FS: f, Origin: kv.Origin{Model: "sha256:cd"}, QueueBytes: 1 << 20})
		defer closeTier(t, other)
		lay(t, f, other.Namespace(), "e2")
		if err := f.Rename(cold.Path(dir, tier.Namespace(), key(1)), cold.Path(dir, other.Namespace(), key(1))); err != nil {
			t.Fatal(err)
		}
		if err := other.Attach(cold.Lease{Dir: dir, Epoch: "e2"}); err != nil {
			t.Fatal(err)
		}
		if err := reads(t, other, 1, 100); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("read: %v", err)
		}
	})
}

// TestAFileThatCannotBeOpenedIsNotCondemned: the disk said nothing of its bytes.
func TestAFileThatCannotBeOpenedIsNotCondemned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 1<<20, 1<<20)
		tier.Put(key(1), payload(1, 100))
		synctest.Wait()
		f.Inject(func(op faultfs.Op) faultfs.Fault {
			if op.Kind == faultfs.Open {
				return faultfs.Fault{Err: syscall.EMFILE}
			}
			return faultfs.Fault{}
		})
		if err := reads(t, tier, 1, 100); !errors.Is(err, kv.ErrAbsent) || !errors.Is(err, syscall.EMFILE) {
			t.Errorf("read: %v", err)
		}
		f.Inject(nil)
		if err := reads(t, tier, 1, 100); err != nil {
			t.Error(err)
		}
		if r := tier.Report(); len(r.Damaged) != 0 {
			t.Errorf("reported %+v", r.Damaged)
		}
		closeTier(t, tier)
	})
}

func TestNoFileIsOutsideItsFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		tier := open(t, f, 1<<20, 1<<20)
		for _, epoch := range []string{"", "../x", "a/b"} {
			if err := tier.Attach(cold.Lease{Dir: dir, Epoch: epoch}); err == nil {
				t.Errorf("epoch %q is taken", epoch)
			}
		}
		for n := range 20 {
			tier.Put(key(n), payload(n, 10))
		}
		closeTier(t, tier)
		for _, at := range f.Files("/") {
			name := path.Base(at)
			if k, ok := cold.ParseName(path.Base(path.Dir(at)), name); !ok || cold.Path(dir, tier.Namespace(), k) != at || !strings.HasPrefix(at, dir) {
				t.Errorf("a file at %s", at)
			}
		}
	})
}

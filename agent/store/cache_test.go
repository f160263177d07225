package store

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

const gib = int64(1) << 30

// filledDisk is a disk of 1 TiB whose free space is made up: the cache's files are
// sparse ones of their size.
type filledDisk struct {
	disk.OS
	used *atomic.Int64
}

func (d filledDisk) disk() (Disk, error) {
	return Disk{Free: 1024*gib - d.used.Load(), Total: 1024 * gib}, nil
}

func (d filledDisk) Free(string) (int64, error) { return 1024*gib - d.used.Load(), nil }

// full gives a file the space of its size.
func full(i disk.Info) disk.Info {
	i.Allocated = max(i.Allocated, blocks.Takes(i.Bytes))
	return i
}

func (d filledDisk) Stat(path string) (disk.Info, error) {
	i, err := d.OS.Stat(path)
	return full(i), err
}

func (d filledDisk) ReadDir(path string) ([]disk.Info, error) {
	infos, err := d.OS.ReadDir(path)
	for n, i := range infos {
		infos[n] = full(i)
	}
	return infos, err
}

func (d filledDisk) Remove(p string) error {
	if i, err := os.Lstat(p); err == nil && i.Mode().IsRegular() {
		d.used.Add(-blocks.Takes(i.Size()))
	}
	return os.Remove(p)
}

// ownedCache is a cache with one engine that fills all it is granted.
type ownedCache struct {
	t   *testing.T
	d   filledDisk
	w   *cold.Owner
	l   *cold.Lease
	now time.Time
	n   uint64
	// spent of what was granted, and wrote what is not reported yet.
	spent int64
	wrote []blocks.File
}

func (c *ownedCache) Bytes() int64              { return c.w.Snapshot().UsedBytes }
func (c *ownedCache) GiveWay(bytes int64) int64 { return c.w.GiveWay(bytes) }

func openCache(t *testing.T, d filledDisk, s *Store) *ownedCache {
	t.Helper()
	c := &ownedCache{t: t, d: d, now: time.Now()}
	var err error
	c.w, err = cold.Open(cold.Options{FS: d, Dir: filepath.Join(t.TempDir(), "kv"), Budget: blocks.Budget{FloorBytes: 10 * gib}, Files: 1 << 30, Others: s.Reserved, Now: func() time.Time { return c.now }})
	if err != nil {
		t.Fatal(err)
	}
	if c.l, err = c.w.Lease(kv.Origin{Model: "sha256:evil", Numerics: "ref", Layout: "x"}, func() int64 { return 1 << 50 }); err != nil {
		t.Fatal(err)
	}
	return c
}

// fill writes blocks of 4 GiB for two minutes.
func (c *ownedCache) fill() {
	c.t.Helper()
	size := blocks.FileBytes(4 * gib)
	takes := blocks.Takes(size)
	o := blocks.NamespaceOf(kv.Origin{Model: "sha256:evil", Numerics: "ref", Layout: "x"})
	for range 120 {
		c.now = c.now.Add(time.Second)
		c.w.Tick()
		lease := c.l.Report(blocks.Report{Epoch: c.l.Current().Epoch, Persisted: c.wrote, WantedBytes: 4 * takes, LeastBytes: takes})
		for c.wrote = nil; lease.GrantedBytes-c.spent >= takes; c.spent += takes {
			c.n++
			var id kv.Key
			binary.LittleEndian.PutUint64(id[8:], c.n)
			f, err := os.Create(blocks.Path(lease.Dir, o, id))
			if err == nil {
				err = f.Truncate(size)
				f.Close()
			}
			if err != nil {
				c.t.Fatal(err)
			}
			c.d.used.Add(takes)
			c.wrote = append(c.wrote, blocks.File{Key: id, Bytes: takes})
		}
	}
}

func (c *ownedCache) free() int64 {
	d, _ := c.d.disk()
	return d.Free
}

// TestAttackTheDiskCacheTakesTheDiskOfWeights lets a deployment with a limit of 1 PiB write
// all it can. Unused weights stay, and a download gets the disk.
func TestAttackTheDiskCacheTakesTheDiskOfWeights(t *testing.T) {
	repo, rec := repository()
	stand := &hubtest.Hub{}
	stand.Put("org/model", repo)
	s := overHub(t, stand)
	d := filledDisk{used: &atomic.Int64{}}
	s.opt.Disk, s.opt.Marks, s.opt.Spared = d.disk, Marks{High: 90, Low: 85}, wants()
	mustEnsure(t, s, rec)
	c := openCache(t, d, s)
	s.opt.Cache = c

	d.used.Store(500 * gib)
	c.fill()
	if free := c.free(); free < 1024*gib/10 || c.Bytes() < 380*gib {
		t.Errorf("%d GiB are free, and the cache has %d; want it to fill the disk up to the high watermark", free/gib, c.Bytes()/gib)
	}
	for range 8 { // others take the space
		d.used.Add(50 * gib)
		c.fill()
	}
	if err := s.Collect(); err != nil {
		t.Fatal(err)
	}
	wantStored(t, s, rec) // others use less than the watermark
	if free := c.free(); free < 61*gib || c.Bytes() < 32*gib {
		t.Errorf("%d GiB are free, and the cache has %d; want about half of what others leave for each", free/gib, c.Bytes()/gib)
	}
	if got := s.Status().ReclaimableBytes; got != c.Bytes()+rec.Bytes() {
		t.Errorf("%d bytes are reclaimable, want those of the cache and of unused weights", got)
	}

	f := &sharedDownload{downloadKey: downloadKey{digest: "sha256:another"}}
	s.downloads[f.downloadKey] = f
	had := c.Bytes()
	wantReason(t, s.makeRoom(f, 500*gib), v1alpha1.ReasonDiskFull)
	if c.Bytes() != had || s.promised() != 0 {
		t.Errorf("a download that cannot fit takes %d bytes of the cache and keeps %d", had-c.Bytes(), s.promised())
	}
	if err := s.makeRoom(f, 100*gib); err != nil {
		t.Fatalf("a download of 100 GiB on a disk of which others use 900 of 1024: %v", err)
	}
	wantStored(t, s, rec) // blocks are cheaper
	c.fill()
	if free := c.free(); free < 100*gib+diskMargin {
		t.Errorf("%d GiB are free, less than the download will write", free/gib)
	}
}

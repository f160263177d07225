package faultfs_test

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk/disktest"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
)

func TestTheDiskInMemoryPassesTheSuite(t *testing.T) {
	disktest.Run(t, func(*testing.T) (disk.FS, string) { return faultfs.New(1 << 20), "/" })
}

// put writes a file; sync makes its bytes durable.
func put(t *testing.T, f *faultfs.FS, name, text string, sync bool) error {
	t.Helper()
	w, err := f.Create(name)
	if err != nil {
		return err
	}
	if _, err := w.Write([]byte(text)); err != nil {
		return errors.Join(err, w.Close())
	}
	if sync {
		if err := w.Sync(); err != nil {
			return err
		}
	}
	return w.Close()
}

func text(t *testing.T, f *faultfs.FS, name string) string {
	t.Helper()
	r, err := f.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "absent"
	} else if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	n, _ := r.ReadAt(b, 0)
	return string(b[:n])
}

func TestAFullDiskTakesWhatFits(t *testing.T) {
	f := faultfs.New(10)
	if err := put(t, f, "/a", "123456", true); err != nil {
		t.Fatal(err)
	}
	if err := put(t, f, "/b", "123456", true); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote past the end: %v", err)
	}
	if got := text(t, f, "/b"); got != "1234" || f.Used() != 10 {
		t.Errorf("kept %q, %d bytes used", got, f.Used())
	}
	if err := errors.Join(f.Remove("/a"), f.Remove("/b")); err != nil || f.Used() != 0 {
		t.Errorf("%d bytes used when all is gone: %v", f.Used(), err)
	}
	w, err := f.Create("/open")
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Write([]byte("123"))
	if err := errors.Join(err, f.Remove("/open")); err != nil || f.Used() != 3 {
		t.Errorf("%d bytes used by a file that is open and has no name: %v", f.Used(), err)
	}
	if err := w.Close(); err != nil || f.Used() != 0 {
		t.Errorf("%d bytes used once it is closed: %v", f.Used(), err)
	}
	f.Occupy(4)
	if free, err := f.Free("/"); free != 6 || err != nil {
		t.Errorf("%d free with other users: %v", free, err)
	}
}

func TestFaultsHappenWhereTheyAreAsked(t *testing.T) {
	f := faultfs.New(1 << 10)
	f.Inject(func(op faultfs.Op) faultfs.Fault {
		switch {
		case op.Kind == faultfs.Write && op.Path == "/short":
			return faultfs.Fault{Err: syscall.EIO, Keep: 2}
		case op.Kind == faultfs.Rename && op.To == "/torn":
			return faultfs.Fault{Err: syscall.EIO, Torn: true}
		case op.Kind == faultfs.Open && op.Path == "/closed":
			return faultfs.Fault{Err: fs.ErrPermission}
		}
		return faultfs.Fault{}
	})
	if err := put(t, f, "/short", "hello", true); !errors.Is(err, syscall.EIO) || text(t, f, "/short") != "he" {
		t.Errorf("a short write left %q: %v", text(t, f, "/short"), err)
	}
	if err := put(t, f, "/a", "hello!", true); err != nil {
		t.Fatal(err)
	}
	if err := f.Rename("/a", "/torn"); !errors.Is(err, syscall.EIO) || text(t, f, "/torn") != "hel" || text(t, f, "/a") != "hello!" {
		t.Errorf("a torn rename left %q and %q: %v", text(t, f, "/a"), text(t, f, "/torn"), err)
	}
	if _, err := f.Open("/closed"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("opened: %v", err)
	}
	if err := f.Rot("/a", 8); err != nil || text(t, f, "/a") != "hdllo!" {
		t.Errorf("rot left %q: %v", text(t, f, "/a"), err)
	}
}

func TestASlowDiskTakesTheTestsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 10)
		f.Inject(func(op faultfs.Op) faultfs.Fault {
			if op.Kind == faultfs.Write {
				return faultfs.Fault{Delay: time.Hour}
			}
			return faultfs.Fault{}
		})
		began := time.Now()
		if err := put(t, f, "/a", "x", true); err != nil || time.Since(began) != time.Hour {
			t.Errorf("took %s: %v", time.Since(began), err)
		}
	})
}

func TestAfterACrashNothingWorksAndHalfAWriteIsThere(t *testing.T) {
	f := faultfs.New(1 << 10)
	f.CrashAt(2) // create, write
	if err := put(t, f, "/a", "hello!", true); !errors.Is(err, faultfs.ErrCrashed) {
		t.Fatal(err)
	}
	if _, err := f.Stat("/a"); !errors.Is(err, faultfs.ErrCrashed) {
		t.Errorf("a crashed machine answers: %v", err)
	}
	if got := text(t, f.Restart(), "/a"); got != "hel" {
		t.Errorf("the process left %q", got)
	}
}

// TestAPowerLossKeepsWhatWasSynced: over many of them everything happens that
// may, and nothing else.
func TestAPowerLossKeepsWhatWasSynced(t *testing.T) {
	f := faultfs.New(1 << 10)
	if err := errors.Join(put(t, f, "/safe", "durable", true), f.SyncDir("/"), put(t, f, "/bytes", "synced", true), put(t, f, "/none", "unsynced", false)); err != nil {
		t.Fatal(err)
	}
	if err := f.Rename("/bytes", "/name"); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for seed := range uint64(200) {
		g := f.PowerLoss(rand.New(rand.NewPCG(seed, 0)))
		if got := text(t, g, "/safe"); got != "durable" {
			t.Fatalf("seed %d: what was synced is %q", seed, got)
		}
		bytes, name, none := text(t, g, "/bytes"), text(t, g, "/name"), text(t, g, "/none")
		if bytes != "absent" && bytes != "synced" || name != "absent" && name != "synced" || name == "synced" && none == "absent" {
			t.Fatalf("seed %d: %q %q %q: out of order, or bytes lost that were synced", seed, bytes, name, none)
		}
		switch {
		case none == "unsynced":
			seen["whole"] = true
		case len(none) == len("unsynced"):
			seen["garbage"] = true
		case none != "absent":
			seen["cut"] = true
		}
		seen["renamed "+name] = true
	}
	for _, what := range []string{"whole", "garbage", "cut", "renamed absent", "renamed synced"} {
		if !seen[what] {
			t.Errorf("never seen: %s", what)
		}
	}
}

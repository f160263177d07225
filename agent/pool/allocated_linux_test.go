package pool

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// TestALogThatIsAllocatedInAdvanceIsBounded: the size of such a log is 0, however much of the
// disk it takes. Its engine filled the disk, and nothing gave the space back.
func TestALogThatIsAllocatedInAdvanceIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0123456789ab.log")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := unix.Fallocate(int(log.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 2*overrunLogBytes); err != nil {
		t.Fatal(err)
	}
	if bytes, err := boundLog(path); err != nil || bytes <= overrunLogBytes {
		t.Errorf("the log takes %d bytes (%v), want at least %d", bytes, err, int64(overrunLogBytes))
	}
	info, err := log.Stat()
	if err != nil || disk.Allocated(info) > maxLogBytes {
		t.Errorf("the log still takes %d bytes (%v)", disk.Allocated(info), err)
	}
}

// TestALogWithALeaseIsNotWaitedFor: a file is opened once the kernel has broken its lease, 45 seconds
// later, and no engine is measured meanwhile.
func TestALogWithALeaseIsNotWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0123456789ab.log")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := log.Truncate(maxLogBytes + 1); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(log.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("a lease, which the file system of the folder for temporary files must have: %v", err)
	}
	if bytes, err := boundLog(path); !errors.Is(err, unix.EWOULDBLOCK) || bytes != maxLogBytes+1 {
		t.Errorf("the log takes %d bytes (%v), want %d and an error at once", bytes, err, maxLogBytes+1)
	}
}

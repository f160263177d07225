package journal

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// The reserve is a file that is removed while a change that gives something back is written to a
// full disk. It has several times the bytes of the journal, because a new file is written before
// the old one is gone.
const (
	reserveName  = "journal.reserve"
	leastReserve = 1 << 20
	reserveTimes = 4
)

// Release is Update for a change that gives something back: an assignment, an engine, weights. On a
// full disk it uses the reserve, because what fills the disk may stay as long as the journal
// names it.
func (j *Journal) Release(change func(*State)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.update(change, j.release)
}

// release replaces the file by this one, on a full disk with the reserve.
func (j *Journal) release(b []byte) error {
	return withReserve(j.reserve(), len(b), func() error { return replaceFile(j.path, b) })
}

// Full reports whether a change was not written because the disk is full.
func Full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

func (j *Journal) reserve() string { return filepath.Join(filepath.Dir(j.path), reserveName) }

// withReserve writes, and once more without the reserve if the disk is full. Then the reserve is
// made again.
func withReserve(reserve string, bytes int, write func() error) error {
	err := write()
	if !Full(err) || os.Remove(reserve) != nil {
		return err
	}
	err = write()
	keepReserve(reserve, bytes)
	return err
}

// keepReserve makes a reserve for a journal of this many bytes, unless there is one. It is missing
// while the disk has no room for it.
func keepReserve(reserve string, bytes int) {
	want := max(leastReserve, reserveTimes*bytes)
	if info, err := os.Stat(reserve); err == nil && info.Size() >= int64(want/2) {
		return
	}
	content := make([]byte, want)
	_, _ = rand.Read(content) // never fails; zeros may take no room on a disk
	f, err := os.OpenFile(reserve, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return
	}
	_, err = f.Write(content)
	if errors.Join(err, f.Sync(), f.Close()) != nil {
		_ = os.Remove(reserve)
	}
}

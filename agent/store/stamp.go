package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// stamp shows whether a file may have changed since it was hashed.
type stamp struct {
	Bytes         int64  `json:"bytes"`
	ModifiedNanos int64  `json:"modifiedNanos"`
	Inode         uint64 `json:"inode"`
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{Bytes: info.Size(), ModifiedNanos: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.Inode = st.Ino
	}
	return s
}

// settled reports whether a change after now would change the stamp: a file
// written within the last clock tick could change again without a new stamp.
func (s stamp) settled(now time.Time) bool {
	return now.UnixNano()-s.ModifiedNanos > int64(100*time.Millisecond)
}

// sumFile hashes an open file from its start.
func sumFile(ctx context.Context, f *os.File, report func(done int64)) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	h, buf := sha256.New(), make([]byte, 1<<20)
	for done, shown := int64(0), time.Now(); ; {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		done += int64(n)
		if now := time.Now(); report != nil && now.Sub(shown) > 200*time.Millisecond {
			shown = now
			report(done)
		}
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// writeAtomic replaces a file under root atomically and durably.
func writeAtomic(root *os.Root, name string, content []byte) error {
	tmp := name + ".new"
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = root.Rename(tmp, name)
	}
	return err
}

// syncDir makes the names in a folder durable.
func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

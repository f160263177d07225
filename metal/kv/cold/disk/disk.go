// Package disk is the part of a file system that the cache on disk needs.
//
// FS is the interface; OS implements it with this machine's file system, and
// package faultfs with a simulated one. It has no append, no links and no
// locks; a symbolic link is listed but never followed.
//
// Start reading at FS.
package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// FS is a file system. Errors are those of package os: callers ask errors.Is
// for fs.ErrNotExist, fs.ErrPermission, syscall.ENOSPC and syscall.EDQUOT. Its
// methods may be called from several goroutines.
type FS interface {
	// Create opens a file for writing, empty, in a folder that exists.
	Create(path string) (Writer, error)
	// Open opens a file for reading.
	Open(path string) (Reader, error)
	// Stat describes what lies at a path, a link as a link.
	Stat(path string) (Info, error)
	// ReadDir lists a folder, sorted by name; MaxNames of one with more.
	ReadDir(path string) ([]Info, error)
	// MkdirAll makes a folder and those above it.
	MkdirAll(path string) error
	// Rename moves a file or a folder; a file that lay there is replaced.
	Rename(from, to string) error
	// Remove removes a file, a link or an empty folder.
	Remove(path string) error
	// SetTime sets the time of a file's last change.
	SetTime(path string, at time.Time) error
	// SyncDir makes what happened to the names in a folder durable.
	SyncDir(path string) error
	// Free returns the number of bytes that can still be written to the file
	// system of a path.
	Free(path string) (int64, error)
}

// Writer is a file that is being written.
type Writer interface {
	io.WriteCloser
	// Sync makes what was written durable.
	Sync() error
}

// Reader is a file that is being read.
type Reader interface {
	io.ReaderAt
	io.Closer
	Stat() (Info, error)
}

// Info describes a file or a folder.
type Info struct {
	Name  string
	Bytes int64
	// Allocated is the space that it has on the disk; 0: not known.
	Allocated int64
	Changed   time.Time
	Mode      fs.FileMode
}

// Allocated returns the space that a file has on the disk, which may be less than its size or
// many times as much, and at least 1; 0 if the system does not report it.
func Allocated(i fs.FileInfo) int64 {
	if st, ok := i.Sys().(*syscall.Stat_t); ok {
		return max(1, st.Blocks*512)
	}
	return 0
}

// OS is the file system of this machine. What it makes only this user reads.
type OS struct{}

// Create implements FS.
func (OS) Create(path string) (Writer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Open implements FS.
func (OS) Open(path string) (Reader, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return file{f}, nil
}

type file struct{ *os.File }

func (f file) Stat() (Info, error) {
	i, err := f.File.Stat()
	if err != nil {
		return Info{}, err
	}
	return infoOf(i), nil
}

// Stat implements FS.
func (OS) Stat(path string) (Info, error) {
	i, err := os.Lstat(path)
	if err != nil {
		return Info{}, err
	}
	return infoOf(i), nil
}

// MaxNames bounds a listing, and its memory. A folder of a cache has half as many files if the
// cache has all that it may have.
const MaxNames = 1 << 16

// ReadDir implements FS.
func (OS) ReadDir(path string) ([]Info, error) {
	d, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close() //nolint:errcheck // read only
	entries, err := d.ReadDir(MaxNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	infos := make([]Info, 0, len(entries))
	for _, e := range entries {
		i, err := e.Info()
		switch {
		case os.IsNotExist(err): // went since
			continue
		case err != nil:
			return nil, err
		}
		infos = append(infos, infoOf(i))
	}
	return infos, nil
}

func infoOf(i fs.FileInfo) Info {
	return Info{Name: i.Name(), Bytes: i.Size(), Allocated: Allocated(i), Changed: i.ModTime(), Mode: i.Mode()}
}

// MkdirAll implements FS.
func (OS) MkdirAll(path string) error { return os.MkdirAll(path, 0o700) }

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements FS.
func (OS) Remove(path string) error { return os.Remove(path) }

// SetTime implements FS.
func (OS) SetTime(path string, at time.Time) error { return os.Chtimes(path, at, at) }

// SyncDir implements FS.
func (OS) SyncDir(path string) error {
	d, err := os.Open(filepath.Clean(path))
	if err != nil {
		return err
	}
	err = d.Sync()
	if closed := d.Close(); err == nil {
		err = closed
	}
	return err
}

// Free implements FS.
func (OS) Free(path string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Contained is the file system of this machine for a program that works in folders which
// another, less trusted one may change at any moment. No path in one of these folders leads
// out of it: a link there that does is an error, as is a pipe in place of a file, and a link in
// place of one of these folders, wherever it leads. Folders without rights for this user get them back.
type Contained struct {
	// Dir is the folder that has those folders, and that the other program cannot change.
	// Dir itself, and all that is outside of it, is reached as by OS.
	Dir string
}

// maxRest bounds the path in a folder, in bytes: its parts are opened one by one, without the
// bound of the system, and of folders in folders each would cost as much as all above it. Trees
// whose top is half as long are removed.
const maxRest = 2048

// in opens the folder of Dir that a path is in, and returns the rest of the path. The root is
// nil for a path that is in none of them. The caller closes it.
func (c Contained) in(path string) (root *os.Root, rest string, err error) {
	inner, ok := strings.CutPrefix(filepath.Clean(path), filepath.Clean(c.Dir)+string(filepath.Separator))
	folder, rest, deep := strings.Cut(inner, string(filepath.Separator))
	if !ok || !deep {
		return nil, "", nil
	}
	if len(rest) > maxRest {
		return nil, "", &os.PathError{Op: "open", Path: rest[:maxRest], Err: syscall.ENAMETOOLONG}
	}
	at := filepath.Join(c.Dir, folder)
	if root, err = openFolder(at); errors.Is(err, fs.ErrPermission) && c.unlock(at) {
		root, err = openFolder(at)
	}
	return root, rest, err
}

// openFolder is os.OpenRoot without following a link in place of the folder.
func openFolder(path string) (*os.Root, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	there, err := os.Lstat(path)
	opened, failed := root.Stat(".")
	if err = errors.Join(err, failed); err == nil && !os.SameFile(there, opened) {
		err = &os.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
	}
	if err != nil {
		_ = root.Close() // nothing was written through it
		return nil, err
	}
	return root, nil
}

// holds reports whether a path is a folder of Dir.
func (c Contained) holds(path string) bool {
	return filepath.Dir(filepath.Clean(path)) == filepath.Clean(c.Dir)
}

// unlock gives this user the rights to a folder of Dir, which the other program may have taken
// away, and reports whether it did.
func (c Contained) unlock(path string) bool {
	if !c.holds(path) {
		return false
	}
	dir, err := os.OpenRoot(c.Dir) // a link out of it is not followed
	if err != nil {
		return false
	}
	defer dir.Close() //nolint:errcheck // nothing was written through it
	name := filepath.Base(path)
	info, err := dir.Lstat(name)
	return err == nil && info.IsDir() && info.Mode().Perm()&0o700 != 0o700 && dir.Chmod(name, 0o700) == nil
}

// unlockIn is unlock of a folder in root, with root and those above it.
func unlockIn(root *os.Root, rest string) (did bool) {
	parts := strings.Split(rest, string(filepath.Separator))
	for n := range len(parts) + 1 {
		at := cmp.Or(filepath.Join(parts[:n]...), ".")
		info, err := root.Lstat(at)
		if err != nil || !info.IsDir() {
			break
		}
		if info.Mode().Perm()&0o700 != 0o700 {
			did = root.Chmod(at, 0o700) == nil || did
		}
	}
	return did
}

// at calls inside with the folder that a path is in and the rest of the path, or else plain.
func (c Contained) at(path string, plain func() error, inside func(root *os.Root, rest string) error) error {
	root, rest, err := c.in(path)
	if err != nil {
		return err
	}
	if root == nil {
		if err = plain(); errors.Is(err, fs.ErrPermission) && c.unlock(path) {
			err = plain()
		}
		return err
	}
	defer root.Close() //nolint:errcheck // nothing was written through it
	if err = inside(root, rest); errors.Is(err, fs.ErrPermission) && unlockIn(root, rest) {
		err = inside(root, rest)
	}
	return err
}

// Create implements FS.
func (c Contained) Create(path string) (w Writer, err error) {
	err = c.at(path, func() (err error) { w, err = OS{}.Create(path); return err }, func(root *os.Root, rest string) error {
		f, err := regular(root.OpenFile(rest, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600))
		w = f
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Open implements FS.
func (c Contained) Open(path string) (r Reader, err error) {
	err = c.at(path, func() (err error) { r, err = OS{}.Open(path); return err }, func(root *os.Root, rest string) error {
		f, err := regular(root.OpenFile(rest, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0))
		r = file{f}
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// regular refuses what is no file with content of its own.
func regular(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file: %w", f.Name(), fs.ErrInvalid)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}

// Stat implements FS.
func (c Contained) Stat(path string) (i Info, err error) {
	err = c.at(path, func() (err error) { i, err = OS{}.Stat(path); return err }, func(root *os.Root, rest string) error {
		info, err := root.Lstat(rest)
		if err == nil {
			i = infoOf(info)
		}
		return err
	})
	return i, err
}

// ReadDir implements FS.
func (c Contained) ReadDir(path string) (all []Info, err error) {
	err = c.at(path, func() (err error) {
		if !c.holds(path) {
			all, err = OS{}.ReadDir(path)
			return err
		}
		root, err := openFolder(path)
		if err != nil {
			return err
		}
		defer root.Close() //nolint:errcheck // read only
		all, err = list(root, ".")
		return err
	}, func(root *os.Root, rest string) (err error) {
		all, err = list(root, rest)
		return err
	})
	return all, err
}

// list is ReadDir of a folder in root.
func list(root *os.Root, rest string) (all []Info, err error) {
	d, err := root.OpenFile(rest, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close() //nolint:errcheck // read only
	names, err := d.Readdirnames(MaxNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		info, err := root.Lstat(filepath.Join(rest, name))
		switch {
		case os.IsNotExist(err): // it was removed meanwhile
		case err != nil:
			return all, err
		default:
			all = append(all, infoOf(info))
		}
	}
	return all, nil
}

// MkdirAll implements FS.
func (c Contained) MkdirAll(path string) error {
	inner, ok := strings.CutPrefix(filepath.Clean(path), filepath.Clean(c.Dir)+string(filepath.Separator))
	if folder, _, _ := strings.Cut(inner, string(filepath.Separator)); ok {
		at := filepath.Join(c.Dir, folder)
		if err := (OS{}).MkdirAll(at); err != nil {
			return err
		}
		if info, err := os.Lstat(at); err != nil || !info.IsDir() { // a link to a folder is none
			return cmp.Or(err, error(&os.PathError{Op: "mkdir", Path: at, Err: syscall.ENOTDIR}))
		}
	}
	return c.at(path, func() error { return OS{}.MkdirAll(path) }, func(root *os.Root, rest string) error { return root.MkdirAll(rest, 0o700) })
}

// Rename implements FS. Both paths are in the same folder of Dir, or in none.
func (c Contained) Rename(from, to string) error {
	return c.at(from, func() error { return OS{}.Rename(from, to) }, func(root *os.Root, rest string) error {
		target, ok := strings.CutPrefix(filepath.Clean(to), root.Name()+string(filepath.Separator))
		if !ok {
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.EXDEV}
		}
		return root.Rename(rest, target)
	})
}

// Remove implements FS.
func (c Contained) Remove(path string) error {
	return c.at(path, func() error { return OS{}.Remove(path) }, func(root *os.Root, rest string) error { return root.Remove(rest) })
}

// SetTime implements FS.
func (c Contained) SetTime(path string, at time.Time) error {
	return c.at(path, func() error { return OS{}.SetTime(path, at) }, func(root *os.Root, rest string) error { return root.Chtimes(rest, at, at) })
}

// SyncDir implements FS.
func (c Contained) SyncDir(path string) error {
	return c.at(path, func() error { return OS{}.SyncDir(path) }, func(root *os.Root, rest string) error {
		d, err := root.OpenFile(rest, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		err = d.Sync()
		if closed := d.Close(); err == nil {
			err = closed
		}
		return err
	})
}

// Free implements FS.
func (c Contained) Free(path string) (int64, error) { return OS{}.Free(path) }

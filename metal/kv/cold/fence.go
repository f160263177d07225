package cold

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// gone is the prefix of the names of fenced epoch folders; no epoch can have
// such a name.
const gone = ".gone-"

// Fence ends an epoch for good: it renames its folder to a name that no engine
// knows, in one step, and then removes it. After that a writer of the epoch can
// neither create a file nor rename one into place. Files that were renamed into
// place before remain. Fence returns the bytes freed; a file that could not be
// removed is removed by the next call.
func Fence(f disk.FS, dir string, n Namespace, epoch string) (freed int64, err error) {
	if err := CheckEpoch(epoch); err != nil {
		return 0, err
	}
	to := filepath.Join(Folder(dir, n), Temporary, gone+epoch)
	if freed, err = RemoveTree(f, to); err != nil { // an engine may have made it
		return freed, err
	}
	if err := f.Rename(EpochFolder(dir, n, epoch), to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return freed, err
	}
	bytes, err := RemoveTree(f, to)
	return freed + bytes, err
}

// FenceAll ends every epoch of a namespace but those to keep. What an engine put in place of the
// folder of epochs is removed.
func FenceAll(f disk.FS, dir string, n Namespace, keep ...string) (freed int64, err error) {
	at := filepath.Join(Folder(dir, n), Temporary)
	if info, err := f.Stat(at); err == nil && !info.Mode.IsDir() {
		return RemoveTree(f, at)
	}
	err = EachName(f, at, func(i disk.Info) error {
		var bytes int64
		var failed error
		if slices.Contains(keep, i.Name) {
			return nil
		}
		if CheckEpoch(i.Name) == nil {
			bytes, failed = Fence(f, dir, n, i.Name)
		} else {
			bytes, failed = RemoveTree(f, filepath.Join(at, i.Name))
		}
		freed += bytes
		return failed
	})
	if errors.Is(err, fs.ErrNotExist) {
		return freed, nil
	}
	return freed, err
}

// EachName calls do, which removes it, for each name in a folder: for those of a large folder in
// parts, and of 256 parts at most, because an engine may make other names meanwhile. It returns the
// first error, after the rest of that part.
func EachName(f disk.FS, path string, do func(disk.Info) error) (err error) {
	for range 256 {
		infos, failed := f.ReadDir(path)
		err = failed
		for _, i := range infos {
			err = cmp.Or(err, do(i))
		}
		if err != nil || len(infos) < disk.MaxNames {
			break
		}
	}
	return err
}

// maxBelow is how many bytes longer than that of its top a path in a tree may be, and maxLevels how
// many folders deeper. What is deeper is moved up: an engine makes folders in folders whose paths no
// system takes, and each name there takes as long as all folders above it.
const (
	maxBelow  = 512
	maxLevels = 8
)

// RemoveTree removes a file or folder and returns the disk space it used. It
// follows no links. A missing path is not an error; after an error, of which it returns
// the first, it continues with the rest: there may be one for each of a million files.
func RemoveTree(f disk.FS, path string) (freed int64, err error) {
	moved := true
	for n := 0; moved && err == nil && n < 1<<13; n++ {
		var bytes int64
		bytes, moved, err = removeBelow(f, path, path)
		freed += bytes
	}
	return freed, err
}

// removeBelow removes a part of the tree of top, and reports whether it moved another one to top.
func removeBelow(f disk.FS, top, path string) (freed int64, moved bool, err error) {
	info, err := f.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	case info.Mode.IsDir() && (len(path)-len(top) > maxBelow || strings.Count(path[len(top):], string(filepath.Separator)) > maxLevels):
		return 0, true, f.Rename(path, filepath.Join(top, gone+strings.ToLower(rand.Text())))
	case info.Mode.IsDir():
		err = EachName(f, path, func(i disk.Info) error {
			bytes, deep, failed := removeBelow(f, top, filepath.Join(path, i.Name))
			freed, moved = freed+bytes, moved || deep
			return failed
		})
	}
	if err != nil || moved && path == top {
		return freed, moved, err
	}
	if err := f.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return freed, moved, err
	}
	if info.Mode.IsRegular() {
		bytes := Takes(info.Bytes)
		if info.Allocated > 0 { // an engine may have made holes in it
			bytes = min(bytes, info.Allocated)
		}
		freed += bytes
	}
	return freed, moved, nil
}

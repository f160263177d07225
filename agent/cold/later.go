package cold

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"time"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

const (
	// removeFor bounds how long the owner removes what engines left before others use it.
	removeFor = 2 * time.Second
	// removeNames are removed however long that takes: a large folder takes long to list.
	removeNames = 1 << 10
	// maxDepth is the depth of a path in the cache from which on a folder is removed without a look at
	// what it holds: each name there takes as long as all folders above it.
	maxDepth = 16
	// maxBytes is the length of such a path: a disk refuses one that is twice as long.
	maxBytes = 1 << 10
)

// errLater is why what an engine left is still there: Tick removes more.
var errLater = errors.New("the rest is removed later")

// hurried is a file system whose RemoveTree fails with errLater after some time.
type hurried struct {
	disk.FS
	late    func() bool
	removed int
	// later is true after a name was left.
	later bool
}

// Stat implements disk.FS. RemoveTree calls it for each name.
func (h *hurried) Stat(path string) (disk.Info, error) {
	if h.removed >= removeNames && h.late() {
		h.later = true
		return disk.Info{}, errLater
	}
	return h.FS.Stat(path)
}

// Rename implements disk.FS.
func (h *hurried) Rename(from, to string) error {
	h.removed++
	return h.FS.Rename(from, to)
}

// Remove implements disk.FS.
func (h *hurried) Remove(path string) error {
	h.removed++
	return h.FS.Remove(path)
}

// hurry bounds the time of removing until its result is called.
func (w *Owner) hurry() (done func()) {
	until := w.opt.Now().Add(removeFor)
	w.hurried = &hurried{FS: w.opt.FS, late: func() bool { return w.opt.Now().After(until) }}
	return func() { w.hurried = nil }
}

// left reports whether a name was left; nil leaves none.
func (h *hurried) left() bool { return h != nil && h.later }

// removing is the file system for what removes trees.
func (w *Owner) removing() disk.FS {
	if w.hurried != nil {
		return w.hurried
	}
	return w.opt.FS
}

// removeTree removes a file or folder of an engine, or a part of it.
func (w *Owner) removeTree(path string) (freed int64, err error) {
	freed, err = blocks.RemoveTree(w.removing(), path)
	if errors.Is(err, errLater) {
		err = nil // left returns true
	}
	return freed, err
}

// deep reports whether a path in a folder is too deep to look at what is in it.
func deep(dir, path string) bool {
	const separator = string(filepath.Separator)
	dir = filepath.Clean(dir)
	return len(path)-len(dir) > maxBytes || strings.Count(path, separator)-strings.Count(dir, separator) > maxDepth
}

// leftovers has Overfull take what an ended engine left as known: its next one is not to blame.
func (w *Owner) leftovers(all int64) {
	for a := range w.books.accounts {
		if a.ending && w.weighed == math.MaxInt64 {
			w.weighed = all
		}
	}
}

package cold

import (
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"strings"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

const (
	// slack is how much more than it may the folder of a model takes before it is overfull:
	// folders, origins, and what its engines replace.
	slack = 256 << 20
	// fallPart is the part of the free space that others than the cache take before the
	// folders are weighed: that reads all their names.
	fallPart = 16
)

// Overfull returns the folders of the models that take more of the disk than their blocks do and
// their engines were granted, or whose blocks vanish: an engine that was taken over writes and
// removes there what it likes. It reads the folders only after the free space fell for a reason
// that the cache does not know. What is no block is removed; the space is free once the engine has
// closed its files, or ended.
func (w *Owner) Overfull() (folders []string) {
	w.lock()
	defer w.unlock()
	defer w.publish()
	folders = w.vanished()
	free, err := w.opt.FS.Free(w.opt.Dir)
	if err != nil {
		return folders // Tick reports that
	}
	all := free + w.books.index.Total()
	w.weighed = max(w.weighed, all)
	w.leftovers(all)
	if all > w.weighed-w.weighed/fallPart {
		return folders
	}
	infos, err := w.opt.FS.ReadDir(w.opt.Dir)
	if err != nil {
		return folders
	}
	defer w.hurry()()
	w.weighed = all
	for _, i := range infos {
		folder := filepath.Join(w.opt.Dir, i.Name)
		switch {
		case !blocks.IsModelFolder(i.Name):
		case !i.Mode.IsDir(): // its engine put it there
			folders = append(folders, folder)
			if err := w.clearPlace(folder); err != nil {
				w.problem("Failed to clean up what an engine left in the cache", err)
			}
		case w.weigh(folder, w.promised(folder)) < 0:
			folders = append(folders, folder)
			w.clearAway(folder)
			w.clearAll(folder)
			w.weighed = math.MaxInt64 // look again next time
		}
	}
	return folders
}

// promised is how many bytes may be in the folder of a model: blocks, what its engines may write,
// and what is no block and was found at the start.
func (w *Owner) promised(folder string) int64 {
	sum := int64(slack)
	w.books.index.Each(func(e blocks.Entry) bool {
		if strings.HasPrefix(e.Foreign, folder+string(filepath.Separator)) {
			sum += e.Bytes
		}
		return e.Foreign != ""
	})
	for n := range w.origins {
		if w.dir(n) == folder {
			sum += w.books.index.Sum(n).Bytes
		}
	}
	for a := range w.books.accounts {
		if w.dir(a.namespace) == folder {
			sum += a.charge()
		}
	}
	return sum
}

// weigh subtracts from left what lies in a folder, and stops where that is negative. A folder that
// cannot be read because of its engine, or has more names than are read, leaves nothing.
func (w *Owner) weigh(folder string, left int64) int64 {
	infos, err := w.opt.FS.ReadDir(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
		return left
	case byItsEngine(err) || deep(w.opt.Dir, folder) || len(infos) >= disk.MaxNames:
		return -1
	case err != nil:
		w.problem("Cannot read a folder in the cache", err)
		return left
	}
	for _, i := range infos {
		if left < 0 {
			break
		}
		left -= max(smallest, space(i))
		if i.Mode.IsDir() {
			left = w.weigh(filepath.Join(folder, i.Name), left)
		}
	}
	return left
}

// extra is how much more space than twice what its size takes a file has at most: some file
// systems allocate ahead of what is written.
const extra = 64 << 10

// space returns how many bytes of the disk a file takes. One whose space was allocated in advance
// takes more than its size, and one with holes less.
func space(i disk.Info) int64 {
	takes := blocks.Takes(i.Bytes)
	if i.Allocated > 2*takes+extra || hollow(i) {
		return i.Allocated
	}
	return takes
}

// hollow reports whether a file has less than half of its size on the disk, which no block has: it
// would count as space that can be made free, and become full later.
func hollow(i disk.Info) bool {
	return i.Mode.IsRegular() && i.Allocated > 0 && i.Allocated < (blocks.Takes(i.Bytes)-extra)/2
}

// clearAway removes what is no block from the folder of a model.
func (w *Owner) clearAway(folder string) {
	w.opt.Log.Info("The folder of a model in the cache takes more than its engines were granted", "folder", folder)
	w.sweep(folder)
	for n := range w.origins {
		if w.dir(n) != folder {
			continue
		}
		err := w.fenceOthers(n)
		if w.hurried.left() {
			return
		}
		if err = errors.Join(err, w.rescan(n, 0, w.books.chargedIn(n))); w.hurried.left() {
			return
		} else if err != nil {
			w.problem("Failed to clean up what an engine left in the cache", err)
		}
	}
}

// clearAll removes all blocks of a model whose folder still takes too much: its next engines are not to blame.
func (w *Owner) clearAll(folder string) {
	if w.hurried.left() || w.weigh(folder, w.promised(folder)) >= 0 {
		return
	}
	for n := range w.origins {
		if w.dir(n) != folder {
			continue
		}
		if _, err := w.clear(n); err != nil {
			w.problem("Failed to clean up what an engine left in the cache", err)
		}
	}
}

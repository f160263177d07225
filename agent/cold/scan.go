package cold

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// found is a file of the folder. path is set for files that are no blocks of
// ours.
type found struct {
	id    blocks.ID
	path  string
	bytes int64
	used  time.Time
}

// listing bounds what one look at the folders of engines takes into the books.
type listing struct {
	// foreign is how many files that are no blocks may still be listed.
	foreign int
	// blocks is how many blocks may still be listed, and bytes how much more than is known they may take.
	blocks int
	bytes  int64
	// left is how much further blocks may take that stay and are not listed: engines may report them.
	left int64
}

// takes reports whether a block that takes that many bytes more than is known may be listed.
func (l *listing) takes(more int64) bool {
	if l.blocks <= 0 || more > l.bytes {
		return false
	}
	l.blocks--
	l.bytes -= more
	return true
}

// leaves reports whether a block that takes that many bytes more than is known may stay.
func (l *listing) leaves(more int64) bool {
	if more > l.left {
		return false
	}
	l.left -= more
	return true
}

// scan ends all epochs and fills the index: foreign files, then blocks by the
// time of their last use.
func (w *Owner) scan() error {
	w.listing = listing{foreign: maxForeign}
	infos, err := w.opt.FS.ReadDir(w.opt.Dir)
	if err != nil {
		return err
	}
	var all []found
	for _, i := range infos {
		at := filepath.Join(w.opt.Dir, i.Name)
		_, notOld := blocks.ParseNamespace(i.Name)
		switch {
		case i.Name == Marker:
		case i.Mode.IsDir() && blocks.IsModelFolder(i.Name):
			files, err := w.scanModel(at)
			if byItsEngine(err) { // which closes the cache of no other model
				w.problem("Cannot read the folder of a model in the cache", err)
			} else if err != nil {
				return err
			}
			all = w.fit(append(all, files...))
		case blocks.IsModelFolder(i.Name): // and is none
			if err := w.clearPlace(at); err != nil {
				return err
			}
		case i.Mode.IsDir() && notOld == nil:
			all = append(all, w.drop(at, "an earlier version wrote them")...)
		default:
			all = append(all, w.foreign(at)...)
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return a.used.Compare(b.used) })
	for _, f := range all {
		w.enter(f)
	}
	return nil
}

// fit removes the blocks that are more than the books may have, of the models with the most: an engine
// that lived while the agent ended left what it likes.
func (w *Owner) fit(all []found) []found {
	held, over := map[holder]int64{}, int64(-w.books.files)
	for _, f := range all {
		if f.path == "" {
			held[w.books.holderOf(f.id.Namespace, 0)]++
			over++
		}
	}
	if over <= 0 {
		return all
	}
	left := excess(held, func(holder) bool { return false }, over)
	slices.SortStableFunc(all, func(a, b found) int { return a.used.Compare(b.used) })
	return slices.DeleteFunc(all, func(f found) bool {
		h := w.books.holderOf(f.id.Namespace, 0)
		if f.path != "" || left[h] <= 0 {
			return false
		}
		left[h]--
		w.unlink(blocks.Entry{ID: f.id})
		return true
	})
}

// byItsEngine reports whether an engine can cause an error in the folder of its model.
func byItsEngine(err error) bool {
	return slices.ContainsFunc([]error{
		fs.ErrPermission, fs.ErrNotExist, fs.ErrExist, syscall.ELOOP, syscall.ENOTDIR, syscall.EISDIR, syscall.ENAMETOOLONG,
	}, func(e error) bool { return errors.Is(err, e) })
}

func (w *Owner) enter(f found) {
	if f.path != "" {
		w.books.index.AddForeign(f.path, f.bytes)
	} else {
		w.books.index.Add(f.id, f.bytes)
		w.books.used(f.id, f.used)
	}
}

// maxNamespaces is how many namespaces of a model are kept while no engine uses them: those used last. An
// engine that was taken over makes any number.
const maxNamespaces = 8

// namespace is a namespace that a scan found.
type namespace struct {
	id    blocks.Namespace
	files []found
	used  time.Time
}

// scanModel ends the epochs in a model's folder and lists its files. Engines may
// write anything there: a namespace counts only if its origin is of this model.
// What it cannot read because of its engine costs no other namespace of that model.
func (w *Owner) scanModel(folder string) (all []found, problem error) {
	infos, err := w.opt.FS.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	w.listing.blocks, w.listing.bytes = w.books.files, math.MaxInt64
	var kept []namespace
	for _, i := range infos {
		at := filepath.Join(folder, i.Name)
		n, err := blocks.ParseNamespace(i.Name)
		if err != nil || !i.Mode.IsDir() {
			all = append(all, w.foreign(at)...)
			continue
		}
		o, err := w.readOrigin(folder, n)
		if err != nil {
			all = append(all, w.drop(at, err.Error())...)
			continue
		}
		w.origins[n] = o
		_, err = blocks.FenceAll(w.opt.FS, folder, n)
		if err == nil || byItsEngine(err) {
			problem = cmp.Or(problem, err)
			kept, err = w.scanOne(kept, n)
		}
		if err != nil && !byItsEngine(err) {
			return append(all, files(kept)...), err
		}
		problem = cmp.Or(problem, err)
		if len(kept) > maxNamespaces {
			slices.SortStableFunc(kept, func(a, b namespace) int { return a.used.Compare(b.used) })
			all = append(all, w.dropNamespace(folder, kept[0])...)
			kept = slices.Delete(kept, 0, 1)
		}
	}
	return append(all, files(kept)...), problem
}

// scanOne adds a namespace.
func (w *Owner) scanOne(kept []namespace, n blocks.Namespace) ([]namespace, error) {
	all, err := w.scanNamespace(n)
	if err != nil {
		return kept, err
	}
	one := namespace{id: n, files: all}
	for _, f := range all {
		if f.path == "" && f.used.After(one.used) {
			one.used = f.used
		}
	}
	return append(kept, one), nil
}

// files are those of namespaces.
func files(of []namespace) (all []found) {
	for _, n := range of {
		all = append(all, n.files...)
	}
	return all
}

// dropNamespace removes a namespace that was scanned, and lists what is left.
func (w *Owner) dropNamespace(folder string, n namespace) []found {
	for _, f := range n.files {
		if f.path == "" {
			w.listing.blocks++
		} else {
			w.listing.foreign++
		}
	}
	delete(w.origins, n.id)
	return w.drop(blocks.Folder(folder, n.id), "others of its model were used later")
}

// drop removes a folder of blocks that no engine would find, and lists what is left.
func (w *Owner) drop(folder, reason string) []found {
	freed, err := w.removeTree(folder)
	if err != nil {
		w.problem("Failed to remove cached blocks that cannot be used", err)
	}
	w.opt.Log.Info("Removed cached blocks that cannot be used", "folder", folder, "reason", reason, "bytes", freed)
	return w.foreign(folder)
}

// scanNamespace lists the files of a namespace, without the folders of epochs.
func (w *Owner) scanNamespace(n blocks.Namespace) ([]found, error) {
	folder := blocks.Folder(w.dir(n), n)
	infos, err := w.namesOf(n)
	if err != nil {
		return nil, err
	}
	var all []found
	for _, i := range infos {
		at := filepath.Join(folder, i.Name)
		switch {
		case i.Name == blocks.Temporary && i.Mode.IsDir():
		case i.Name == blocks.OriginFile && i.Mode.IsRegular():
			if max(i.Bytes, space(i)) > maxOriginBytes { // its engine wrote it
				err = cmp.Or(w.opt.FS.Remove(at), w.writeOrigin(w.origins[n]))
			}
			if err != nil {
				return nil, err
			}
		case i.Mode.IsDir() && slices.Contains(blocks.Shards(), i.Name):
			files, err := w.opt.FS.ReadDir(at)
			if err != nil {
				return nil, err
			}
			if len(files) >= disk.MaxNames { // which keys do only if an engine chooses them; not all were read
				files, all = nil, append(all, w.drop(at, "too many are in one folder")...)
				if err := w.opt.FS.MkdirAll(at); err != nil {
					return nil, err
				}
			}
			if w.hurried.left() {
				return nil, errLater
			}
			for _, f := range files {
				all = append(all, w.look(n, i.Name, f)...)
				if w.hurried.left() {
					return nil, errLater
				}
			}
		case slices.Contains(blocks.Shards(), i.Name): // in whose place no engine could write
			all = append(all, w.drop(at, "it is no folder")...)
		default:
			all = append(all, w.foreign(at)...)
		}
	}
	return all, nil
}

// namesOf lists the folder of a namespace. Of one with too many names all but the owner's are removed.
func (w *Owner) namesOf(n blocks.Namespace) ([]disk.Info, error) {
	folder := blocks.Folder(w.dir(n), n)
	infos, err := w.opt.FS.ReadDir(folder)
	if err != nil || len(infos) < disk.MaxNames {
		return infos, err
	}
	ours := append(blocks.Shards(), blocks.Temporary, blocks.OriginFile)
	err = blocks.EachName(w.opt.FS, folder, func(i disk.Info) error {
		if slices.Contains(ours, i.Name) {
			return nil
		}
		if w.hurried.left() {
			return errLater
		}
		_, err := w.removeTree(filepath.Join(folder, i.Name))
		return err
	})
	if err != nil {
		return nil, err
	}
	return w.opt.FS.ReadDir(folder)
}

// look classifies a file of a shard by its name, and by its header unless it is
// known. A block that may not be listed is removed.
func (w *Owner) look(n blocks.Namespace, shard string, i disk.Info) []found {
	at := filepath.Join(blocks.Folder(w.dir(n), n), shard, i.Name)
	key, ok := blocks.ParseName(shard, i.Name)
	if !ok || !i.Mode.IsRegular() || hollow(i) {
		return w.foreign(at)
	}
	f := found{id: blocks.ID{Namespace: n, Key: key}, bytes: space(i), used: i.Changed}
	bytes, known := w.books.index.Bytes(f.id)
	if known && bytes == f.bytes {
		return []found{f} // read before
	}
	switch more := max(smallest, f.bytes-bytes); {
	case w.listing.takes(more):
		return w.check(f, at, i)
	case !w.listing.leaves(more):
		w.removeForeign(at)
		return nil
	case known:
		f.bytes = bytes
		return []found{f}
	}
	return nil
}

// check reads the header of a block.
func (w *Owner) check(f found, at string, i disk.Info) []found {
	if now := w.opt.Now(); f.used.After(now) { // by a clock that was ahead
		f.used = now
		if err := w.opt.FS.SetTime(at, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.problem("Failed to record the use of a cached block", err)
		}
	}
	r, err := w.opt.FS.Open(at)
	if err == nil {
		_, err = blocks.CheckFile(r, i, f.id.Namespace, f.id.Key)
		err = errors.Join(err, r.Close())
	}
	if err != nil {
		return w.foreign(at)
	}
	return []found{f}
}

// maxForeign bounds how many files that are no blocks of ours one scan lists: an engine that was
// taken over makes a million in a minute.
const maxForeign = 1 << 14

// foreign lists the files in a path, recursively, that are no blocks of ours, and removes what
// is too many. It follows no link.
func (w *Owner) foreign(path string) []found {
	if w.listing.foreign <= 0 || deep(w.opt.Dir, path) {
		w.removeForeign(path)
		return nil
	}
	i, err := w.opt.FS.Stat(path)
	if err != nil {
		return nil
	}
	if !i.Mode.IsDir() {
		w.listing.foreign--
		return []found{{path: path, bytes: space(i), used: i.Changed}}
	}
	infos, err := w.opt.FS.ReadDir(path)
	if err != nil {
		w.problem("Cannot read a folder in the cache", err)
	}
	var all []found
	for _, i := range infos {
		all = append(all, w.foreign(filepath.Join(path, i.Name))...)
	}
	if len(all) == 0 {
		_ = w.opt.FS.Remove(path) // it takes space, and no list names it
	}
	return all
}

// removeForeign removes a path that may not be listed.
func (w *Owner) removeForeign(path string) {
	if _, err := w.removeTree(path); err != nil && !(deep(w.opt.Dir, path) && byItsEngine(err)) {
		w.problem("Failed to remove files that are no blocks", err)
	}
}

// rescan updates the index from the files of a namespace: an engine that ended
// may have written bytes that it did not report, and other engines may still report
// left. What is more, or no block, is removed: the next engine must not be taken for
// the one that left it.
func (w *Owner) rescan(n blocks.Namespace, bytes, left int64) error {
	w.listing = listing{blocks: math.MaxInt, bytes: bytes, left: left}
	files, err := w.scanNamespace(n)
	if errors.Is(err, fs.ErrNotExist) {
		files = nil
	} else if err != nil {
		return err
	}
	there := map[blocks.Entry]bool{}
	for _, f := range files {
		e := blocks.Entry{ID: f.id, Foreign: f.path, Bytes: f.bytes}
		there[e] = true
		if bytes, known := w.books.index.Bytes(f.id); f.path != "" || !known || bytes != f.bytes {
			w.enter(f)
		}
	}
	below := blocks.Folder(w.dir(n), n) + string(filepath.Separator)
	var lost []blocks.Entry
	w.books.index.Each(func(e blocks.Entry) bool {
		own := strings.HasPrefix(e.Foreign, below) || e.Foreign == "" && e.ID.Namespace == n
		if own && !there[e] {
			lost = append(lost, e)
		}
		return true
	})
	for _, e := range lost {
		w.books.index.Forget(e)
	}
	return nil
}

// fewer removes the namespaces of a model that no engine uses, those used first, so that one more has
// room: each load of an engine may name another.
func (w *Owner) fewer(model string) {
	idle := map[blocks.Namespace]int{} // by the place of the last use
	for n, o := range w.origins {
		if o.Model == model {
			idle[n] = 0
		}
	}
	for a := range w.books.accounts {
		delete(idle, a.namespace)
	}
	if len(idle) < maxNamespaces {
		return
	}
	place := 0
	w.books.index.Each(func(e blocks.Entry) bool {
		place++
		if _, ok := idle[e.ID.Namespace]; ok && e.Foreign == "" {
			idle[e.ID.Namespace] = place
		}
		return true
	})
	first := slices.SortedFunc(maps.Keys(idle), func(a, b blocks.Namespace) int { return idle[a] - idle[b] })
	for _, n := range first[:len(first)-maxNamespaces+1] {
		if _, err := w.clear(n); err != nil {
			w.problem("Failed to remove cached blocks of an engine that is no longer used", err)
		}
	}
}

package cold

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// maxOriginBytes bounds the file with the origin of a namespace.
const maxOriginBytes = 1 << 16

// found is a file of the folder. path is set for files that are no blocks of
// ours.
type found struct {
	id    blocks.ID
	path  string
	bytes int64
	used  time.Time
}

// scan ends all epochs and fills the index: foreign files, then blocks by the
// time of their last use.
func (w *Owner) scan() error {
	w.listed = 0
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
			all = append(all, files...)
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

// byItsEngine reports whether an engine can cause an error in the folder of its model.
func byItsEngine(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG)
}

func (w *Owner) enter(f found) {
	if f.path != "" {
		w.books.index.AddForeign(f.path, f.bytes)
	} else {
		w.books.index.Add(f.id, f.bytes)
		w.books.used(f.id, f.used)
	}
}

// scanModel ends the epochs in a model's folder and lists its files. Engines may
// write anything there: a namespace counts only if its origin is of this model.
func (w *Owner) scanModel(folder string) (all []found, err error) {
	infos, err := w.opt.FS.ReadDir(folder)
	if err != nil {
		return nil, err
	}
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
		if _, err := blocks.FenceAll(w.opt.FS, folder, n); err != nil {
			return all, err
		}
		w.origins[n] = o
		files, err := w.scanNamespace(n)
		if err != nil {
			return all, err
		}
		all = append(all, files...)
	}
	return all, nil
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
	infos, err := w.opt.FS.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var all []found
	for _, i := range infos {
		at := filepath.Join(folder, i.Name)
		switch {
		case i.Name == blocks.Temporary && i.Mode.IsDir(), i.Name == blocks.OriginFile && i.Mode.IsRegular():
		case i.Mode.IsDir() && slices.Contains(blocks.Shards(), i.Name):
			files, err := w.opt.FS.ReadDir(at)
			if err != nil {
				return nil, err
			}
			for _, f := range files {
				all = append(all, w.look(n, i.Name, f)...)
			}
		case slices.Contains(blocks.Shards(), i.Name): // in whose place no engine could write
			all = append(all, w.drop(at, "it is no folder")...)
		default:
			all = append(all, w.foreign(at)...)
		}
	}
	return all, nil
}

// look classifies a file of a shard by its name, and by its header unless it is
// known.
func (w *Owner) look(n blocks.Namespace, shard string, i disk.Info) []found {
	at := filepath.Join(blocks.Folder(w.dir(n), n), shard, i.Name)
	key, ok := blocks.ParseName(shard, i.Name)
	if !ok || !i.Mode.IsRegular() {
		return w.foreign(at)
	}
	f := found{id: blocks.ID{Namespace: n, Key: key}, bytes: space(i), used: i.Changed}
	if now := w.opt.Now(); f.used.After(now) { // by a clock that was ahead
		f.used = now
		if err := w.opt.FS.SetTime(at, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.problem("Failed to record the use of a cached block", err)
		}
	}
	if bytes, known := w.books.index.Bytes(f.id); known && bytes == f.bytes {
		return []found{f} // read before
	}
	r, err := w.opt.FS.Open(at)
	if err == nil {
		_, err = blocks.CheckFile(r, i, n, key)
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
	if w.listed >= maxForeign || deep(w.opt.Dir, path) {
		if _, err := w.removeTree(path); err != nil && !(deep(w.opt.Dir, path) && byItsEngine(err)) {
			w.problem("Failed to remove files that are no blocks", err)
		}
		return nil
	}
	i, err := w.opt.FS.Stat(path)
	if err != nil {
		return nil
	}
	if !i.Mode.IsDir() {
		w.listed++
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

// rescan updates the index from the files of a namespace: an engine that ended
// may have written files that it did not report. What is no block is removed: the
// next engine must not be taken for the one that left it.
func (w *Owner) rescan(n blocks.Namespace) error {
	w.listed = maxForeign
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

// note writes the origin of a namespace.
func (w *Owner) note(o kv.Origin) error {
	n := blocks.NamespaceOf(o)
	if w.origins[n] == o {
		return nil
	}
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if len(b) > maxOriginBytes {
		return fmt.Errorf("origin file has %d bytes, want at most %d", len(b), maxOriginBytes)
	}
	folder := blocks.Folder(blocks.ModelFolder(w.opt.Dir, o.Model), n)
	if err := errors.Join(w.clearPlace(filepath.Dir(folder)), w.opt.FS.MkdirAll(folder)); err != nil {
		return err
	}
	f, err := w.opt.FS.Create(filepath.Join(folder, blocks.OriginFile))
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	w.origins[n] = o
	return nil
}

// readOrigin reads what note wrote in a model's folder.
func (w *Owner) readOrigin(folder string, n blocks.Namespace) (kv.Origin, error) {
	r, err := w.opt.FS.Open(filepath.Join(blocks.Folder(folder, n), blocks.OriginFile))
	if err != nil {
		return kv.Origin{}, err
	}
	defer r.Close()
	i, err := r.Stat()
	if err != nil || !i.Mode.IsRegular() || i.Bytes > maxOriginBytes {
		return kv.Origin{}, fmt.Errorf("cannot use %s of namespace %s: %w", blocks.OriginFile, n, err)
	}
	b := make([]byte, i.Bytes)
	if m, err := r.ReadAt(b, 0); m < len(b) {
		return kv.Origin{}, err
	}
	var o kv.Origin
	if err := json.Unmarshal(b, &o); err != nil {
		return kv.Origin{}, err
	}
	if blocks.NamespaceOf(o) != n || blocks.ModelFolder(w.opt.Dir, o.Model) != folder {
		return kv.Origin{}, fmt.Errorf("%s of namespace %s belongs to another namespace", blocks.OriginFile, n)
	}
	return o, nil
}

package cold

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"time"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// End ends a lease after the engine's process has ended or lost its connection:
// its epoch ends for good, and files that it wrote without a report are found. If
// the disk refuses that, or it takes too long, the grant stays charged and Tick continues.
func (l *Lease) End() {
	w := l.w
	w.lock()
	defer w.unlock()
	defer w.publish()
	if _, open := w.books.accounts[l.account]; open {
		defer w.hurry()()
		w.end(l.account)
	}
}

func (w *Owner) end(a *account) {
	first := !a.ending
	a.ending = true
	err := w.clearPlaces(a.namespace)
	if err == nil {
		_, err = blocks.Fence(w.removing(), w.dir(a.namespace), a.namespace, a.epoch)
	}
	if err == nil {
		err = w.fenceOthers(a.namespace)
	}
	if err == nil {
		w.sweep(w.dir(a.namespace))
	}
	if err == nil && !w.hurried.left() {
		err = w.rescan(a.namespace, a.charge(), w.books.chargedIn(a.namespace)-a.charge())
	}
	if w.hurried.left() {
		if first {
			w.weighed = math.MaxInt64
		}
		return
	}
	if err != nil {
		w.problem("Failed to clean up what an engine left in the cache", err)
		return
	}
	w.books.close(a)
}

// fenceOthers removes what lies next to the epochs of the engines that use a namespace.
func (w *Owner) fenceOthers(n blocks.Namespace) error {
	var keep []string
	for a := range w.books.accounts {
		if a.namespace == n && !a.ending {
			keep = append(keep, a.epoch)
		}
	}
	_, err := blocks.FenceAll(w.removing(), w.dir(n), n, keep...)
	return err
}

// sweep removes what engines left in the folder of their model next to its namespaces: it would
// count nowhere. What cannot be removed is no reason to keep an ended engine's lease.
func (w *Owner) sweep(folder string) {
	removed, freed := map[string]bool{}, int64(0)
	err := blocks.EachName(w.opt.FS, folder, func(i disk.Info) error {
		n, other := blocks.ParseNamespace(i.Name)
		if other == nil && i.Mode.IsDir() && w.dir(n) == folder {
			return nil
		}
		if w.hurried.left() {
			return errLater
		}
		bytes, failed := w.removeTree(filepath.Join(folder, i.Name))
		removed[i.Name], freed = true, freed+bytes
		return failed
	})
	if len(removed) > 0 {
		w.forgetForeign(folder, removed)
		w.opt.Log.Info("Removed what an engine left in the cache next to its blocks", "folder", folder, "names", len(removed), "bytes", freed)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errLater) {
		w.problem("Failed to clean up what an engine left in the cache", err)
	}
}

// forgetForeign drops the files that are no blocks under names in a folder, which were removed.
func (w *Owner) forgetForeign(folder string, names map[string]bool) {
	var gone []blocks.Entry
	w.books.index.Each(func(e blocks.Entry) bool {
		if rest, in := strings.CutPrefix(e.Foreign, folder+string(filepath.Separator)); in {
			if name, _, _ := strings.Cut(rest, string(filepath.Separator)); names[name] {
				gone = append(gone, e)
			}
		}
		return e.Foreign != ""
	})
	for _, e := range gone {
		w.books.index.Forget(e)
	}
}

// Clear removes all blocks of a namespace, even while engines write there: writes
// that began before do not appear afterwards. It returns how many bytes were
// freed, measured file by file, also if some stayed.
func (w *Owner) Clear(n blocks.Namespace) (freed int64, err error) {
	w.lock()
	defer w.unlock()
	defer w.publish()
	return w.clear(n)
}

// ClearAll is Clear of every namespace, and removes foreign files too.
func (w *Owner) ClearAll() (freed int64, err error) {
	w.lock()
	defer w.unlock()
	defer w.publish()
	for n := range w.namespaces() {
		bytes, failed := w.clear(n)
		freed, err = freed+bytes, errors.Join(err, failed)
	}
	var others []blocks.Entry
	w.books.index.Each(func(e blocks.Entry) bool {
		if e.Foreign != "" {
			others = append(others, e)
		}
		return e.Foreign != ""
	})
	for _, e := range others {
		bytes, ok := w.unlink(e)
		freed += bytes
		if !ok {
			err = cmp.Or(err, errors.New(w.books.problem)) // an engine may leave a million of them
		}
	}
	return freed, err
}

// namespaces are those that hold blocks, are leased, or have a name.
func (w *Owner) namespaces() map[blocks.Namespace]bool {
	all := map[blocks.Namespace]bool{}
	for _, n := range w.books.index.Namespaces() {
		all[n] = true
	}
	for n := range w.origins {
		all[n] = true
	}
	for a := range w.books.accounts {
		all[a.namespace] = true
	}
	return all
}

// clear ends the epochs of a namespace, removes its files, and opens new epochs
// for the engines that keep running. It fails after far more names than the cache
// may have: an engine may make them as fast as they are removed.
func (w *Owner) clear(n blocks.Namespace) (freed int64, err error) {
	h := &hurried{FS: w.opt.FS}
	h.late = func() bool { return h.removed > 2*w.books.files }
	defer func(outer *hurried) { w.hurried = outer }(w.hurried)
	w.hurried = h
	if freed, err = w.clearNow(n); h.left() {
		err = errors.Join(err, errLater)
	}
	return freed, err
}

func (w *Owner) clearNow(n blocks.Namespace) (freed int64, err error) {
	if err := w.clearPlace(w.dir(n)); err != nil {
		return 0, err
	}
	folder := blocks.Folder(w.dir(n), n)
	freed, err = blocks.FenceAll(w.removing(), w.dir(n), n) // which keeps nothing else
	leased := false
	for a := range w.books.accounts {
		leased = leased || a.namespace == n
	}
	if leased {
		for _, s := range blocks.Shards() {
			bytes, failed := blocks.RemoveTree(w.removing(), filepath.Join(folder, s))
			freed, err = freed+bytes, errors.Join(err, failed)
		}
	} else {
		_ = w.opt.FS.Remove(filepath.Join(folder, blocks.OriginFile)) // no block, so it does not count
		bytes, failed := blocks.RemoveTree(w.removing(), folder)
		freed, err = freed+bytes, errors.Join(err, failed)
		if failed == nil {
			defer delete(w.origins, n) // it says where the namespace lies
		}
	}
	err = errors.Join(err, w.rescan(n, 0, 0))
	for a, changed := range w.books.accounts {
		if a.namespace != n || a.ending {
			continue
		}
		err = errors.Join(err, w.begin(a))
		signal(changed)
	}
	return freed, err
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Keep sets the models (kv.Origin.Model) whose blocks are still wanted. Namespaces of
// other models that no engine writes to are removed, as are those of unknown
// models. It returns how many bytes that freed. Before its first call nothing
// counts as an orphan.
func (w *Owner) Keep(models map[string]bool) (freed int64, err error) {
	w.lock()
	defer w.unlock()
	defer w.publish()
	leased := map[blocks.Namespace]bool{}
	for a := range w.books.accounts {
		leased[a.namespace] = true
	}
	for n := range w.namespaces() {
		if leased[n] || models[w.origins[n].Model] {
			continue
		}
		bytes, failed := w.clear(n)
		freed, err = freed+bytes, errors.Join(err, failed)
		if failed != nil {
			w.problem("Failed to remove cached blocks of a deleted model", failed)
		}
	}
	return freed, errors.Join(err, w.removeEmpty(models))
}

// removeEmpty removes the folders of models that are not wanted and have no namespace.
// Those of others may wait for an engine that is starting.
func (w *Owner) removeEmpty(models map[string]bool) error {
	keep := map[string]bool{}
	for m := range models {
		keep[blocks.ModelFolder(w.opt.Dir, m)] = true
	}
	for n := range w.namespaces() {
		keep[w.dir(n)] = true
	}
	infos, err := w.opt.FS.ReadDir(w.opt.Dir)
	if err != nil {
		return err
	}
	for _, i := range infos {
		switch at := filepath.Join(w.opt.Dir, i.Name); {
		case !blocks.IsModelFolder(i.Name):
		case !i.Mode.IsDir():
			err = errors.Join(err, w.clearPlace(at))
		case !keep[at]:
			_ = w.opt.FS.Remove(at) // one with foreign files stays until these are evicted
		}
	}
	return err
}

// Tick continues work that could not be done at once: it evicts blocks above the
// budget, at most MaxUnlinks files, ends epochs, and grants what engines wait
// for.
func (w *Owner) Tick() {
	w.lock()
	defer w.unlock()
	defer w.publish()
	w.books.problem = ""
	w.books.forget()
	w.measure()
	w.endRest()
	most := blocks.MaxUnlinks
	most -= w.evict(w.books.limit()-w.books.charged(), most)
	most -= w.remove(w.books.crowded(&account{}, most, w.opt.Now()))
	for a, changed := range w.books.accounts {
		before := *a
		if a.epoch == "" {
			if err := w.begin(a); err != nil {
				w.problem("An engine cannot write to the cache", err)
			}
		}
		most -= w.grant(a, most)
		if a.epoch != before.epoch || a.granted != before.granted || a.final != before.final {
			signal(changed)
		}
	}
}

// endRest continues the ends of leases.
func (w *Owner) endRest() {
	defer w.hurry()()
	for a := range w.books.accounts {
		if a.ending && !w.hurried.left() {
			w.end(a)
		}
	}
}

// Run ticks until ctx ends: each second while there is work, else as often as
// the disk's free space is read. It calls overfull with the folders of Overfull.
func (w *Owner) Run(ctx context.Context, overfull func(folders []string)) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { w.watch(ctx, overfull) })
	for {
		pause := blocks.FreeFor
		if w.Snapshot().Waiting {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
			w.Tick()
		}
	}
}

// weighEvery is the pause between two looks for overfull folders: an engine writes gigabytes a second.
const weighEvery = 5 * time.Second

// watch looks for overfull folders until ctx ends.
func (w *Owner) watch(ctx context.Context, overfull func(folders []string)) {
	tick := time.NewTicker(weighEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if folders := w.Overfull(); len(folders) > 0 {
			overfull(folders)
		}
	}
}

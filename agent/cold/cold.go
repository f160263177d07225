// Package cold owns the cache of keys and values on this Mac's disk.
//
// It owns the folder of all namespaces: it alone creates folders, removes blocks,
// knows the files and decides how much of the disk an engine may use. All engines
// share one budget, derived from the disk's free space. When it is exhausted, the
// tenant with the most bytes loses its oldest blocks. Each model has a folder,
// the only part of the cache that a confined engine can access. It refuses a
// folder that is not its own and a grant that it has no space for, and treats no
// model as gone before it knows which are assigned. Engines read and write the
// files themselves (metal/kv/cold).
//
// Decisions are made in books, which have no side effects; Owner reads the disk,
// decides with them, and acts.
//
// Start reading at Open, then Lease.Report.
package cold

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// Marker is the file that marks a folder as a cache, which may be emptied.
const Marker = "metalfleet-kv-cache"

// Options configure an Owner.
type Options struct {
	FS     disk.FS
	Dir    string
	Budget blocks.Budget
	// Files is the maximum number of files, each of which takes about 300 bytes of
	// memory; 0 means DefaultFiles.
	Files int
	// Others returns the SpareBytes and AwaitedBytes of the budget; nil if there are
	// none. It is called when the free space is measured.
	Others func() (spare, awaited int64)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// Owner manages the cache folder.
type Owner struct {
	opt Options
	// work holds a token while the disk is read or changed, by one goroutine at a
	// time. It guards the fields after it; status reads view without waiting. It
	// is a channel and no mutex because its holder waits for a disk, and the
	// clock of synctest stands still while a goroutine waits for a mutex.
	work    chan struct{}
	books   *books
	origins map[blocks.Namespace]kv.Origin
	listing listing // of the scan that runs
	// weighed is the most space that was free or the cache's since the folders were weighed.
	weighed int64
	// missing is when blocks were missing in the folder of a model.
	missing map[string]time.Time
	// hurried bounds what is removed at once; nil: nothing does.
	hurried *hurried
	view    atomic.Pointer[Snapshot]
}

// Open takes possession of a folder that is empty, absent or already a cache: it
// ends all epochs, reads the header of each file, and evicts files above the
// limit.
func Open(o Options) (*Owner, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w := &Owner{opt: o, work: make(chan struct{}, 1), origins: map[blocks.Namespace]kv.Origin{}, missing: map[string]time.Time{}}
	w.books = newBooks(o.Budget, cmp.Or(o.Files, DefaultFiles), w.origins)
	w.lock()
	defer w.unlock()
	if err := possess(o.FS, o.Dir); err != nil {
		return nil, err
	}
	if err := w.scan(); err != nil {
		return nil, fmt.Errorf("scan cache %s: %w", o.Dir, err)
	}
	w.measure()
	for w.evict(w.books.limit(), giveFiles) > 0 {
	}
	for w.remove(w.books.crowded(&account{}, giveFiles, w.opt.Now())) > 0 {
	}
	w.publish()
	return w, nil
}

// SetBudget changes the limits of the disk cache to those that now returns once
// the owner is idle: of two callers the later one gets the newest values. Blocks
// above the new limit are evicted gradually by Tick, and nothing is granted
// before.
func (w *Owner) SetBudget(now func() blocks.Budget) {
	w.lock()
	defer w.unlock()
	defer w.publish()
	w.books.budget = now()
	w.need()
}

// need adds to the budget what others need of the disk.
func (w *Owner) need() {
	if w.opt.Others != nil {
		w.books.budget.SpareBytes, w.books.budget.AwaitedBytes = w.opt.Others()
	}
}

func (w *Owner) lock()   { w.work <- struct{}{} }
func (w *Owner) unlock() { <-w.work }

// Prepare creates the folder of a model in the cache dir, which need not be open
// yet: a confined engine can access only a folder that exists when it starts. It
// removes what an earlier engine put in its place, and reports whether it did.
func Prepare(f disk.FS, dir, model string) (removed bool, err error) {
	if err := possess(f, dir); err != nil {
		return false, err
	}
	folder := blocks.ModelFolder(dir, model)
	if removed, err = clearPlace(f, folder); err == nil {
		err = f.MkdirAll(folder)
	}
	if err != nil {
		return removed, fmt.Errorf("cache %s: %w", dir, err)
	}
	return removed, nil
}

// clearPlace removes a link or file in place of the folder of a model, and reports whether it did.
func clearPlace(f disk.FS, folder string) (removed bool, err error) {
	if info, err := f.Stat(folder); err != nil || info.Mode.IsDir() {
		return false, nil // who uses it reports that
	}
	if err := f.Remove(folder); err != nil {
		return false, err
	}
	return true, nil
}

// clearPlace is clearPlace, and a problem if there was something.
func (w *Owner) clearPlace(folder string) error {
	removed, err := clearPlace(w.opt.FS, folder)
	if removed {
		w.problem("Removed what an engine put in place of the folder of its model in the cache", errors.New(folder))
	}
	return err
}

// dir is the folder of the model of a namespace.
func (w *Owner) dir(n blocks.Namespace) string {
	return blocks.ModelFolder(w.opt.Dir, w.origins[n].Model)
}

// possess marks an empty folder as a cache, and refuses any other that is not
// marked, because its content would be removed.
func possess(f disk.FS, dir string) error {
	if err := f.MkdirAll(dir); err != nil {
		return fmt.Errorf("cache %s: %w", dir, err)
	}
	infos, err := f.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cache %s: %w", dir, err)
	}
	if slices.ContainsFunc(infos, func(i disk.Info) bool { return i.Name == Marker }) {
		return nil
	}
	if len(infos) > 0 {
		return fmt.Errorf("%s is not empty and is not a metalfleet cache: name an empty folder, or create an empty file %s in this one to let the agent delete its contents", dir, Marker)
	}
	m, err := f.Create(filepath.Join(dir, Marker))
	if err != nil {
		return fmt.Errorf("cache %s: %w", dir, err)
	}
	return m.Close() // before any other name in the folder, in the order in which disks keep them
}

// Lease is an engine's permission to write.
type Lease struct {
	w       *Owner
	account *account
	// changed has a value if Current would return another lease than before.
	changed chan struct{}
}

// errEnding is why an engine has to wait: each lease that has not ended keeps its grant.
var errEnding = errors.New("the last lease of an engine of this kind is still ending")

// Lease creates an engine's folders and opens an epoch in them; End ends it. most
// returns how many bytes blocks of its model may use, nil for no limit but the
// budget; if engines of one model differ, the largest counts.
func (w *Owner) Lease(o kv.Origin, most func() int64) (*Lease, error) {
	w.lock()
	defer w.unlock()
	defer w.publish()
	if w.books.ending(blocks.NamespaceOf(o)) {
		return nil, fmt.Errorf("lease on cache %s: %w", w.opt.Dir, errEnding)
	}
	l := &Lease{w: w, account: &account{namespace: blocks.NamespaceOf(o), model: o.Model, most: most}, changed: make(chan struct{}, 1)}
	if err := w.note(o); err != nil {
		return nil, fmt.Errorf("lease on cache %s: %w", w.opt.Dir, err)
	}
	if err := w.begin(l.account); err != nil {
		return nil, fmt.Errorf("lease on cache %s: %w", w.opt.Dir, err)
	}
	w.books.accounts[l.account] = l.changed
	return l, nil
}

// begin opens a new epoch of an account, without a grant. If the disk refuses
// that, the account has none, and Tick retries.
func (w *Owner) begin(a *account) error {
	a.epoch, a.granted, a.persisted, a.final = "", 0, 0, true
	epoch := strings.ToLower(rand.Text())
	if err := w.clearPlaces(a.namespace); err != nil {
		return err
	}
	for _, s := range blocks.Shards() {
		if err := w.opt.FS.MkdirAll(filepath.Join(blocks.Folder(w.dir(a.namespace), a.namespace), s)); err != nil {
			return err
		}
	}
	if err := w.opt.FS.MkdirAll(blocks.EpochFolder(w.dir(a.namespace), a.namespace, epoch)); err != nil {
		return err
	}
	a.epoch, a.final = epoch, false
	return nil
}

// clearPlaces removes what an engine put in place of the folders of its namespace.
func (w *Owner) clearPlaces(n blocks.Namespace) error {
	if err := w.clearPlace(w.dir(n)); err != nil {
		return err
	}
	folder := blocks.Folder(w.dir(n), n)
	for _, name := range append([]string{".", blocks.Temporary}, blocks.Shards()...) {
		at := filepath.Join(folder, name)
		if info, err := w.opt.FS.Stat(at); err != nil || info.Mode.IsDir() {
			continue // who uses it reports that
		}
		if _, err := w.removeTree(at); err != nil {
			return err
		}
	}
	return nil
}

// Current returns the lease to send to the engine.
func (l *Lease) Current() blocks.Lease {
	l.w.lock()
	defer l.w.unlock()
	return l.current()
}

func (l *Lease) current() blocks.Lease {
	a := l.account
	return blocks.Lease{Dir: l.w.dir(a.namespace), Epoch: a.epoch, GrantedBytes: a.granted, Final: a.final}
}

// Changed receives a value when the engine must get the lease again.
func (l *Lease) Changed() <-chan struct{} { return l.changed }

// Report records an engine's writes and reads, makes room for its request, and
// returns its new lease.
func (l *Lease) Report(r blocks.Report) blocks.Lease {
	w, a := l.w, l.account
	w.lock()
	defer w.unlock()
	defer w.publish()
	if _, open := w.books.accounts[a]; !open {
		return blocks.Lease{}
	}
	if w.books.counted(a, r.Counters) {
		w.books.room = blocks.Room{} // the disk was full: the measured free space is outdated
	}
	if r.Epoch == a.epoch {
		w.persisted(a, r.Persisted)
		w.touched(a.namespace, r.Touched)
		a.wanted, a.least = max(0, r.WantedBytes), max(0, r.LeastBytes)
		w.damaged(a, r.Damaged)
	}
	w.grant(a, blocks.MaxUnlinks)
	return l.current()
}

// maxPersisted bounds the sizes that an engine reports, and their sum.
const maxPersisted = 1 << 60

// persisted records blocks by the names that the engine reports and the sizes
// that the disk reports. The engine's own sizes count as far as they are possible.
// What cannot be looked at stays charged until the lease ends, and what is more than was
// granted enters no books: an engine that was taken over reports what it likes.
func (w *Owner) persisted(a *account, files []blocks.File) {
	for _, f := range files {
		path := blocks.Path(w.dir(a.namespace), a.namespace, f.Key)
		w.books.index.RemoveForeign(path) // it was replaced
		info, err := w.opt.FS.Stat(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if hollow(info) {
			w.problem("A cached block has less space on the disk than its size", errors.New(path))
			continue
		}
		takes := space(info)
		a.persisted = min(a.persisted+max(smallest, takes, min(f.Bytes, maxPersisted)), maxPersisted)
		if err != nil || !info.Mode.IsRegular() || a.persisted > a.granted {
			continue
		}
		w.books.used(blocks.ID{Namespace: a.namespace, Key: f.Key}, w.opt.Now())
		w.books.index.Add(blocks.ID{Namespace: a.namespace, Key: f.Key}, takes)
	}
	if a.persisted > a.granted {
		w.problem("An engine wrote more to the cache than it was granted", fmt.Errorf("%d of %d bytes", a.persisted, a.granted))
	}
}

// damagedAtOnce is how many damaged blocks are removed before others have their turn: a report has up to
// blocks.MaxDamaged.
const damagedAtOnce = 1 << 10

// damaged removes blocks that the engine cannot read. What is left when its epoch ends is found again
// when it is read.
func (w *Owner) damaged(a *account, keys []kv.Key) {
	epoch := a.epoch
	for i, k := range keys {
		if i%damagedAtOnce == damagedAtOnce-1 {
			w.unlock()
			w.lock()
		}
		if a.epoch != epoch {
			return
		}
		w.unlink(blocks.Entry{ID: blocks.ID{Namespace: a.namespace, Key: k}})
	}
}

// touched records the order of use, also on the disk, where a scan reads it.
func (w *Owner) touched(n blocks.Namespace, keys []kv.Key) {
	now := w.opt.Now()
	for _, k := range keys {
		if w.books.index.Touch(blocks.ID{Namespace: n, Key: k}) {
			w.books.used(blocks.ID{Namespace: n, Key: k}, now)
			if err := w.opt.FS.SetTime(blocks.Path(w.dir(n), n, k), now); err != nil && !errors.Is(err, fs.ErrNotExist) {
				w.problem("Failed to record the use of a cached block", err)
			}
		}
	}
}

// grant removes at most most files to make room for an account's request, and
// grants as much as fits. It returns how many files it removed.
func (w *Owner) grant(a *account, most int) int {
	w.measure()
	went := w.evict(w.books.target(a), most)
	went += w.remove(w.books.ofModel(a, most-went, w.opt.Now()))
	went += w.remove(w.books.crowded(a, most-went, w.opt.Now()))
	w.books.grant(a)
	return went
}

// measure reads the disk's free space, if the last figure is too old. A disk that
// does not report it has none.
func (w *Owner) measure() {
	now := w.opt.Now()
	if w.books.room.Known(now) {
		return
	}
	free, err := w.opt.FS.Free(w.opt.Dir)
	if err != nil {
		w.books.room = blocks.Room{}
		w.problem("Cannot determine the free space of the cache's disk", err)
		return
	}
	w.books.room = blocks.RoomOf(w.books.index.Total(), free, now)
	w.need()
}

// giveFiles is how many files GiveWay removes while engines wait.
const giveFiles = 1024

// GiveWay removes files until that many bytes are free or none is left, fairly for
// all tenants, and returns how many bytes that freed. What others await is measured
// again, so that engines are not granted what became free.
func (w *Owner) GiveWay(bytes int64) (freed int64) {
	for freed < bytes {
		got, more := w.giveWay(bytes - freed)
		freed += got
		if !more {
			break
		}
	}
	return freed
}

func (w *Owner) giveWay(bytes int64) (freed int64, more bool) {
	w.lock()
	defer w.unlock()
	defer w.publish()
	w.books.room = blocks.Room{}
	w.measure()
	before := w.books.evictedBytes
	more = w.evict(w.books.index.Total()-bytes, giveFiles) > 0
	return w.books.evictedBytes - before, more
}

// evict removes files so that at most target bytes stay, fairly for all tenants, and
// no more than most files. It returns how many it removed.
func (w *Owner) evict(target int64, most int) int {
	may := w.books.fairly(target, func(blocks.Namespace) bool { return true }, w.opt.Now())
	return w.remove(blocks.Plan(w.books.index, target, most, may))
}

// remove evicts files to make room, and returns how many were removed.
func (w *Owner) remove(entries []blocks.Entry) int {
	before := w.books.evictions
	for _, e := range entries {
		bytes, ok := w.unlink(e)
		if ok {
			w.books.evictions++
			w.books.evictedBytes += bytes
		}
	}
	return int(w.books.evictions - before)
}

// unlink removes a file and its entry. A file that cannot be removed stays in the
// books, as the last to evict.
func (w *Owner) unlink(e blocks.Entry) (int64, bool) {
	path := e.Foreign
	if path == "" {
		path = blocks.Path(w.dir(e.ID.Namespace), e.ID.Namespace, e.ID.Key)
	}
	var info disk.Info
	var absent error
	if e.Bytes > 0 {
		info, absent = w.opt.FS.Stat(path)
	}
	if err := w.opt.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		if e.Foreign == "" && w.replaced(path) {
			w.books.index.Forget(e) // a block that is not there; what is, Overfull weighs
			return 0, true
		}
		w.books.unlinkFailures++
		w.books.index.Defer(e)
		w.problem("Failed to remove a file from the cache", err)
		return 0, false
	}
	bytes := w.books.index.Forget(e) + w.books.index.RemoveForeign(path)
	switch {
	case errors.Is(absent, fs.ErrNotExist):
		bytes = 0
	case absent == nil && e.Bytes > 0: // an engine may have cut it
		bytes = min(bytes, space(info))
	}
	if info.Allocated > 0 { // or made holes in it
		bytes = min(bytes, info.Allocated)
	}
	return bytes, true
}

// replaced reports whether an engine put something else in place of a block, or of the folders that
// it lies in.
func (w *Owner) replaced(path string) bool {
	if info, err := w.opt.FS.Stat(path); err == nil {
		return !info.Mode.IsRegular()
	}
	for range 3 { // its shard, its namespace, and its model
		path = filepath.Dir(path)
		if info, err := w.opt.FS.Stat(path); err == nil {
			return !info.Mode.IsDir()
		}
	}
	return false
}

// problem logs and publishes a failure.
func (w *Owner) problem(what string, err error) {
	w.books.problem = what + ": " + err.Error()
	w.opt.Log.Error(what, "error", err)
}

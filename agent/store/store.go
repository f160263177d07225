// Package store keeps the weights that this Mac needs: complete, verified files,
// each content once.
//
// It owns the folder of downloaded weights (keyed by the digest of the model
// record) and the read-only view of the Mac's model root, whose files and folders
// are used in place. It never returns a path whose bytes were not hashed since
// they last changed, and refuses sources outside the model root, records whose
// paths leave their folder, and the removal of weights in use. It downloads
// through package download. Unused weights stay until a download needs the space
// or disk usage exceeds the high watermark; then they are evicted, least recently
// used first. The caller decides which are wanted, and while that is unknown all
// of them are. A file that several weights contain is stored once. Before a
// download the peers of the site are asked for the weights; package peer decides
// which, and serves them to peers.
//
// On disk, in the folder given to Open:
//
//	DIGEST/record.json    the record, its origins, and the stamps of its files; its modification time is their last use
//	DIGEST/files/...      the files of the model
//	partial/DIGEST-WHO/   downloads in progress, in the same form
//	trash/...             weights that are being removed
//	model-root.json       digests of files in the model root
//
// Start reading at Store.Ensure, then Store.Collect.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"sync"
	"syscall"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/oci"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// SingleFile is the path of the file in the record of a model of one file. Its
// name at the source does not matter, so the record's digest identifies the
// content alone, and the same weights from two places are one entry.
const SingleFile = "model.gguf"

// errInUse means that weights are claimed or being downloaded.
var errInUse = errors.New("weights are in use")

// FetchesAtOnce is the default number of parallel downloads; more would share the
// same bandwidth.
const FetchesAtOnce = 3

// Options configure a store.
type Options struct {
	// Dir is the folder of downloaded weights; it is created if missing.
	Dir string
	// Root is the Mac's model root.
	Root *Root
	// Fetch downloads.
	Fetch *download.Fetcher
	// AtOnce is how many models are downloaded at a time; 0 means FetchesAtOnce.
	AtOnce int
	// Hub resolves hf:// sources; nil if there are none.
	Hub *hub.Hub
	// Token returns the credential that an assignment names by its tokenRef; nil
	// if there are none.
	Token func(ref string) (download.Bearer, error)
	// Peers are asked before a source; nil if there are none.
	Peers Peers
	// Cache shares the disk of Dir and gives way to downloads; nil if there is none.
	Cache Cache
	// Disk measures the disk of Dir; nil means the system's figures.
	Disk func() (Disk, error)
	// Marks are the disk's watermarks.
	Marks Marks
	// Spared returns which weights are wanted, apart from claims and downloads,
	// and false while that is unknown. Nil: it is always unknown.
	Spared func() (func(digest string) bool, bool)
	// Ahead reports whether weights are downloaded ahead of use: such a download
	// must not exceed the high watermark. Nil: none is.
	Ahead func(digest string) bool
	// Namespaces returns the namespaces of the assignments with a record and a
	// tokenRef, by name; nil if there are none.
	Namespaces func(rec model.Record, tokenRef string) []string
	// Collected is called with the weights that were evicted; may be nil.
	Collected func(v1alpha1.Collection)
	// Fetched is called with the bytes that arrive over the network, by the
	// scheme of their source, or FromPeer; may be nil.
	Fetched func(scheme string, n int)
	// Fault is called at each of Points, for tests; nil in production.
	Fault func(point string)
	// Log receives errors that are not returned.
	Log logr.Logger
}

// Cache is a cache whose files cost less than weights. It may not call the store
// from its methods, but for Reserved.
type Cache interface {
	// Bytes is the size of its files on the disk of the store.
	Bytes() int64
	// GiveWay removes files of that many bytes, or all if it has fewer, and returns
	// how many bytes that freed.
	GiveWay(bytes int64) int64
}

// Store manages the weights on this Mac's disk. It is safe for concurrent use.
type Store struct {
	opt     Options
	objects *objectStore
	sources *sources
	// lifetime ends downloads when it ends; their partial files stay and are
	// resumed.
	lifetime context.Context
	slots    *slots
	running  sync.WaitGroup

	// room is held while disk space is reserved or freed, and while the watermarks
	// change, also under mu.
	room sync.Mutex

	// mu guards what follows.
	mu        sync.Mutex
	downloads map[downloadKey]*sharedDownload
	holds     map[string]map[*Hold]struct{}
	collected v1alpha1.Collected
	message   string
}

// Open opens the store, removes leftovers of a crash and checks the weights. When
// ctx ends, downloads stop and their partial files stay on disk; canceling an
// Ensure before that means that the weights are no longer wanted. The caller
// waits with Close.
func Open(ctx context.Context, opt Options) (*Store, error) {
	if err := opt.Marks.Check(); err != nil {
		return nil, err
	}
	sh, err := openObjects(opt.Dir, opt.Log, opt.Fault)
	if err != nil {
		return nil, fmt.Errorf("open weight store %s: %w", opt.Dir, err)
	}
	s := &Store{
		opt: opt, objects: sh, lifetime: ctx, slots: newSlots(cmp.Or(opt.AtOnce, FetchesAtOnce)),
		downloads: map[downloadKey]*sharedDownload{}, holds: map[string]map[*Hold]struct{}{},
	}
	s.sources = &sources{hub: opt.Hub, credential: opt.Token, fetched: opt.Fetched}
	if opt.Fetch != nil {
		s.sources.registries = &oci.Client{Client: opt.Fetch.Client}
	}
	if s.opt.Disk == nil {
		s.opt.Disk = func() (Disk, error) { return measure(opt.Dir) }
	}
	return s, nil
}

// Close waits for downloads to end; the context given to Open must be done.
func (s *Store) Close() error {
	s.running.Wait()
	return s.objects.close()
}

// Ensure returns the path of the model's files, complete and verified: the file
// itself for a model of one file, else the folder of all. ref names the
// assignment's credential for the source, if it has one: files that came with
// another credential or from another source are not returned for their digest
// alone (see access.go). It downloads missing files, once for all callers with
// the same content and access, and calls progress from the caller's goroutine. A
// caller whose context ends leaves; when the last one leaves, the download stops
// and its space is free before Ensure returns.
func (s *Store) Ensure(ctx context.Context, rec model.Record, ref string, progress func(v1alpha1.Progress)) (string, error) {
	if err := checkRecord(rec); err != nil {
		return "", err
	}
	if progress == nil {
		progress = func(v1alpha1.Progress) {}
	}
	f, err := s.join(ctx, want{rec, ref})
	if err != nil {
		return "", err
	}
	defer s.leave(f)
	for {
		p, changed := f.look()
		if p != (v1alpha1.Progress{}) {
			progress(p)
		}
		select {
		case <-f.done:
			return f.path, f.err
		case <-changed:
		case <-ctx.Done():
			return "", fmt.Errorf("weights of %s: %w", rec.Source, context.Cause(ctx))
		}
	}
}

// checkRecord refuses records that this store cannot hold.
func checkRecord(rec model.Record) error {
	if err := rec.Validate(); err != nil {
		return &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: "the model record is not valid; delete and apply the ModelDeployment again", Err: err}
	}
	if rec.Format != model.FormatSafetensors && len(rec.Files) != 1 {
		return &download.Error{Reason: v1alpha1.ReasonUnsupportedModel, Message: fmt.Sprintf("the model has %d files, but a model in format %s has one", len(rec.Files), rec.Format)}
	}
	if rec.Format != model.FormatSafetensors {
		return nil
	}
	dir := modelDir(rec)
	for _, f := range rec.Files {
		if !belongs(f.Path, dir) {
			return &download.Error{Reason: v1alpha1.ReasonUnsupportedModel, Message: "the model's files are in several folders, but an engine reads only one folder, the configuration of its modules and additional_chat_templates"}
		}
	}
	return nil
}

// modelDir is the folder of a model in safetensors: that of its weights, because
// modules have none.
func modelDir(rec model.Record) string {
	for _, f := range rec.Files {
		if hub.IsWeights(f.Path) {
			return path.Dir(f.Path)
		}
	}
	return path.Dir(rec.Files[0].Path)
}

// belongs reports whether an engine reads the file there: in the model's folder, as the
// configuration of a module in a subfolder, or as a named chat template.
func belongs(name, dir string) bool {
	at := path.Dir(name)
	return at == dir || path.Dir(at) == dir && path.Base(name) == "config.json" || hub.IsTemplate(name, dir)
}

// Hold is a claim on weights: while it exists, Remove refuses.
type Hold struct {
	s      *Store
	digest string
}

// Hold claims weights, which need not exist yet.
func (s *Store) Hold(digest string) *Hold {
	h := &Hold{s, digest}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds[digest] == nil {
		s.holds[digest] = map[*Hold]struct{}{}
	}
	s.holds[digest][h] = struct{}{}
	return h
}

// Release ends the claim. It may be called more than once.
func (h *Hold) Release() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	delete(h.s.holds[h.digest], h)
	if len(h.s.holds[h.digest]) == 0 {
		delete(h.s.holds, h.digest)
	}
}

// Remove deletes downloaded weights and returns how many bytes that freed: files
// that other weights share stay. Removing weights that do not exist is no error.
// Files of the model root belong to the administrator and stay.
func (s *Store) Remove(digest string) (int64, error) {
	s.mu.Lock()
	if len(s.holds[digest]) > 0 || s.downloading(digest) {
		s.mu.Unlock()
		return 0, fmt.Errorf("remove %s: %w", digest, errInUse)
	}
	gone, err := s.objects.takeAway(digest)
	s.mu.Unlock()
	var bytes int64
	if err == nil {
		bytes, err = s.objects.destroy(gone)
	}
	if err != nil {
		return 0, fmt.Errorf("remove %s: %w", digest, err)
	}
	return bytes, nil
}

// Wanted are weights that an assignment names, with the name of its credential for their source;
// empty if it has none.
type Wanted struct {
	Record   model.Record
	TokenRef string
}

// Prune removes partial downloads that are not in progress and that no assignment would resume:
// those of other weights, and of the same weights from another source or with another
// credential. Nothing else removes them while the agent runs.
func (s *Store) Prune(all []Wanted) error {
	stay := map[string]bool{}
	for _, w := range all {
		stay[partial(w.Record.Digest, want{w.Record, w.TokenRef}.origin())] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.downloads {
		stay[k.partial()] = true
	}
	return s.objects.prunePartials(stay)
}

// Reserved returns how many bytes are free when disk usage is at the high watermark,
// and how many downloads will still write.
func (s *Store) Reserved() (spare, awaited int64) {
	s.mu.Lock()
	marks := s.opt.Marks
	s.mu.Unlock()
	if d, err := s.opt.Disk(); err == nil && marks.High > 0 {
		spare = d.Total - d.Total/100*int64(marks.High)
	}
	return spare, s.promised()
}

// cached is the size of the cache on the disk.
func (o *Options) cached() int64 {
	if o.Cache == nil {
		return 0
	}
	return o.Cache.Bytes()
}

// WeightsBytes is the disk usage of downloaded weights.
func (s *Store) WeightsBytes() int64 { return s.objects.bytes() }

// FreeBytes is the free space on the disk of the store.
func (s *Store) FreeBytes() (int64, error) {
	d, err := s.opt.Disk()
	return d.Free, err
}

// Unreserved returns the free space on the disk of the store that no download will take.
func (s *Store) Unreserved() (int64, error) {
	d, err := s.opt.Disk()
	return d.Free - s.promised(), err
}

// measure asks the system.
func measure(dir string) (Disk, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return Disk{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return Disk{Free: int64(st.Bavail) * int64(st.Bsize), Total: int64(st.Blocks) * int64(st.Bsize)}, nil
}

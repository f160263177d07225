// Package store keeps the weights that this Mac needs: complete, verified
// files, one copy per content, whoever asked for them.
//
// It owns the folder of downloaded weights (keyed by the digest of the model
// record) and the read-only view of the Mac's model root, whose files and
// folders are used in place. It refuses to hand out a path whose bytes were not hashed since
// they last changed, sources that leave the model root, records whose paths
// leave their folder, and the removal of what is in use. It downloads through
// package download. Weights that nobody wants stay until the disk is needed, by
// a download or above the high mark; then they go, the oldest use first. Which
// are wanted is its caller's word, and while that is not known all of them are.
// A file that several weights have lies here once. Another Mac of the site that
// has what is to be fetched is asked before the source; package neighbour knows
// which, and gives away in turn.
//
// On disk, below the folder given to Open:
//
//	DIGEST/record.json    what lies here, who may have it, and the stamps it was verified at; its time is their last use
//	DIGEST/files/...      the files of the model
//	partial/DIGEST-WHO/   downloads under way, in the same form
//	trash/...             what is being removed
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
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/oci"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// SingleFile is the path of the file in the record of a model that is one
// file. Whatever a source calls it, the record's digest then names the content
// alone, and the same weights from two places are one entry.
const SingleFile = "model.gguf"

// ErrInUse says that weights are held or being fetched.
var ErrInUse = errors.New("weights are in use")

// FetchesAtOnce bounds parallel downloads where no other number is given; more
// would only share one line.
const FetchesAtOnce = 3

// maxListed is what MacNode's status.weights holds.
const maxListed = 256

// Options of a store.
type Options struct {
	// Dir holds downloaded weights; made if missing.
	Dir string
	// Root is the Mac's model root.
	Root *Root
	// Fetch downloads.
	Fetch *download.Fetcher
	// AtOnce is how many models are downloaded at a time; 0 means FetchesAtOnce.
	AtOnce int
	// Hub says where the files of hf:// sources lie; nil where there are none.
	Hub *hub.Hub
	// Token is the credential that an assignment names by its tokenRef; nil where
	// there are none.
	Token func(ref string) (download.Bearer, error)
	// Neighbours are asked before a source is; nil where there are none.
	Neighbours Neighbours
	// Disk measures the disk of Dir; nil means the system's figures.
	Disk func() (Disk, error)
	// Marks are the disk's watermarks.
	Marks Marks
	// Spared says which weights are wanted, claims and downloads apart, and false
	// while that is not known. Nil: it never is.
	Spared func() (func(digest string) bool, bool)
	// Ahead says that weights are fetched before anything may run with them: they
	// may not take the disk over its high mark. Nil: none are.
	Ahead func(digest string) bool
	// Namespace is that of the assignments with a record and a tokenRef; nil where
	// there are none.
	Namespace func(rec model.Record, tokenRef string) string
	// Collected is told what was removed to make room; nil: nobody is.
	Collected func(v1alpha1.Collection)
	// Fetched is told the bytes that come over the network, by the scheme of their
	// source, or FromNeighbour; nil: nobody is.
	Fetched func(scheme string, n int)
	// Fault is told each of Points, for tests; nil in production.
	Fault func(point string)
	// Log takes what no caller hears.
	Log logr.Logger
}

// Store is the weights on this Mac's disk. Its methods may be called from many
// goroutines.
type Store struct {
	opt   Options
	shelf *shelf
	// lifetime of the store: ends downloads, and their parts stay for a resume.
	lifetime context.Context
	turns    *turns
	running  sync.WaitGroup
	// registries remembers the tokens that registries gave.
	registries *oci.Client

	// room is held while it is decided what the disk is for.
	room sync.Mutex

	// mu guards what follows.
	mu        sync.Mutex
	flights   map[flightKey]*flight
	holds     map[string]map[*Hold]struct{}
	collected v1alpha1.Collected
	message   string
}

// Open opens the store, clears what a crash left and checks what is there. When
// ctx ends, downloads stop and their parts stay on disk; whoever cancels an
// Ensure before that means the weights are no longer wanted. The caller waits
// with Close.
func Open(ctx context.Context, opt Options) (*Store, error) {
	if err := opt.Marks.Check(); err != nil {
		return nil, err
	}
	sh, err := openShelf(opt.Dir, opt.Log, opt.Fault)
	if err != nil {
		return nil, fmt.Errorf("open weight store %s: %w", opt.Dir, err)
	}
	s := &Store{
		opt: opt, shelf: sh, lifetime: ctx, turns: newTurns(cmp.Or(opt.AtOnce, FetchesAtOnce)),
		flights: map[flightKey]*flight{}, holds: map[string]map[*Hold]struct{}{},
	}
	if opt.Fetch != nil {
		s.registries = &oci.Client{Client: opt.Fetch.Client}
	}
	if s.opt.Disk == nil {
		s.opt.Disk = func() (Disk, error) { return measure(opt.Dir) }
	}
	return s, nil
}

// Close waits for downloads to end; the context given to Open must be done.
func (s *Store) Close() error {
	s.running.Wait()
	return s.shelf.close()
}

// Ensure returns the path of the model's files, complete and verified: the
// file itself for a model of one file, else the folder of all. ref names the
// credential that the assignment has for the source, if it has one: files that
// another credential or another source brought are not handed out for their digest
// alone (see access.go). It downloads what is missing, once for all that ask for
// the same content with the same access, and reports progress from the caller's
// own goroutine. A caller whose context ends leaves; when the last one leaves,
// the download stops and its disk is free before Ensure returns.
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
			return &download.Error{Reason: v1alpha1.ReasonUnsupportedModel, Message: "the model's files are in several folders, but an engine reads only one folder and the configuration of its modules"}
		}
	}
	return nil
}

// modelDir is the folder that a model in safetensors lies in: that of its
// weights, of which modules have none.
func modelDir(rec model.Record) string {
	for _, f := range rec.Files {
		if hub.IsWeights(f.Path) {
			return path.Dir(f.Path)
		}
	}
	return path.Dir(rec.Files[0].Path)
}

// belongs reports whether a file lies where an engine reads it: in the model's
// folder, or as the configuration of a module in a folder of that.
func belongs(name, dir string) bool {
	at := path.Dir(name)
	return at == dir || path.Dir(at) == dir && path.Base(name) == "config.json"
}

// Hold is a claim on weights: while it lives, Remove refuses.
type Hold struct {
	s      *Store
	digest string
}

// Hold claims weights, there or not yet.
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

// Release ends the claim. More than once is the same as once.
func (h *Hold) Release() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	delete(h.s.holds[h.digest], h)
	if len(h.s.holds[h.digest]) == 0 {
		delete(h.s.holds, h.digest)
	}
}

// Remove deletes downloaded weights and returns the bytes that came back: what
// other weights have as well stays. What is not there is no error. Files of the
// model root are the administrator's and stay.
func (s *Store) Remove(digest string) (int64, error) {
	s.mu.Lock()
	if len(s.holds[digest]) > 0 || s.flying(digest) {
		s.mu.Unlock()
		return 0, fmt.Errorf("remove %s: %w", digest, ErrInUse)
	}
	gone, err := s.shelf.takeAway(digest)
	s.mu.Unlock()
	var bytes int64
	if err == nil {
		bytes, err = s.shelf.destroy(gone)
	}
	if err != nil {
		return 0, fmt.Errorf("remove %s: %w", digest, err)
	}
	return bytes, nil
}

// Prune gives back the disk of downloads that were begun, are not going on and
// whose digest is not wanted: those of a Mac that was off, say, when its order
// was withdrawn.
func (s *Store) Prune(wanted func(digest string) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shelf.prunePartials(func(digest string) bool { return wanted(digest) || s.flying(digest) })
}

// List says which weights are on this Mac, verified and unchanged since, in
// the store or in the model root; sorted by digest, as many as a status takes.
func (s *Store) List() []v1alpha1.StoredWeights {
	stored := s.shelf.list()
	spared, known := s.spared()
	s.mu.Lock()
	for i := range stored {
		if d := stored[i].Digest; !known || spared(d) || s.inUse(d) {
			stored[i].ReclaimableBytes = 0
		}
	}
	s.mu.Unlock()
	all := append(stored, s.opt.Root.held()...)
	slices.SortStableFunc(all, func(a, b v1alpha1.StoredWeights) int { return strings.Compare(a.Digest, b.Digest) })
	all = slices.CompactFunc(all, func(a, b v1alpha1.StoredWeights) bool { return a.Digest == b.Digest })
	return all[:min(len(all), maxListed)]
}

// WeightsBytes is what downloaded weights take on disk.
func (s *Store) WeightsBytes() int64 { return s.shelf.bytes() }

// FreeBytes is what the disk of the store still takes.
func (s *Store) FreeBytes() (int64, error) {
	d, err := s.opt.Disk()
	return d.Free, err
}

// measure asks the system.
func measure(dir string) (Disk, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return Disk{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return Disk{Free: int64(st.Bavail) * int64(st.Bsize), Total: int64(st.Blocks) * int64(st.Bsize)}, nil
}

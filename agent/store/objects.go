package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	partialDir = "partial"
	trashDir   = "trash"
	filesDir   = "files"
	recordName = "record.json"
	// borrowedName is an empty file in the folder of a download: see borrow. It has to outlive the
	// other link of the file, which then looks like a downloaded one.
	borrowedName = "borrowed"
)

// objectStore is the folder of downloaded weights.
type objectStore struct {
	dir  string
	root *os.Root
	log  logr.Logger
	// fault is called at each of Points; nil in production.
	fault func(point string)

	// placing is held while weights get their final name, so that of two with a
	// common file the second finds the file of the first.
	placing sync.Mutex
	// trash is held while an entry of the trash is removed.
	trash sync.Mutex

	// mu guards the fields after it.
	mu      sync.Mutex
	entries map[string]entry
	// hashed are the hashes of the files of partial downloads, by their folder and name.
	hashed map[string]map[string]*download.Hashed
}

// entry describes the weights of one digest, as record.json stores it.
type entry struct {
	Version int              `json:"version"`
	Record  model.Record     `json:"record"`
	Stamps  map[string]stamp `json:"stamps"`
	// Origins are the sources that these weights came from or were checked with.
	Origins []granted `json:"origins,omitempty"`

	// used is when the weights were last in use: the time of record.json.
	used time.Time
	// looked is when the files were last compared with their stamps outside of a
	// use, and changed whether one differed.
	looked  time.Time
	changed bool
}

// filesPerLook is how many files are compared with their stamps at a time, so that
// weights that were damaged or removed are soon not reported any more.
const filesPerLook = 2048

// usedEvery is how often continued use is recorded on the disk.
const usedEvery = 10 * time.Minute

var partialName = regexp.MustCompile(`^[0-9a-f]{64}-[0-9a-f]{16}$`)

var hexName = regexp.MustCompile(`^[0-9a-f]{64}$`)

// folder is the name of the folder for a digest.
func folder(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

func openObjects(dir string, log logr.Logger, fault func(string)) (*objectStore, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, err
	}
	s := &objectStore{dir: abs, root: root, log: log, fault: fault, entries: map[string]entry{}, hashed: map[string]map[string]*download.Hashed{}}
	if err := s.scan(); err != nil {
		root.Close()
		return nil, err
	}
	return s, nil
}

func (s *objectStore) close() error { return s.root.Close() }

// scan removes leftovers of a crash and reads the entries.
func (s *objectStore) scan() error {
	if err := s.root.RemoveAll(trashDir); err != nil {
		return err
	}
	for _, d := range []string{trashDir, partialDir} {
		if err := s.root.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	if err := s.clearPartials(); err != nil {
		return err
	}
	names, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, n := range names {
		if !n.IsDir() || !hexName.MatchString(n.Name()) {
			continue // not ours
		}
		e, err := s.read(n.Name())
		if err != nil {
			s.log.Info("Removing weights without a usable record", "path", n.Name(), "cause", err.Error())
			if err := s.root.RemoveAll(n.Name()); err != nil {
				return err
			}
			continue
		}
		e.looked, e.changed = time.Now(), !s.unchanged(e)
		s.entries[e.Record.Digest] = e
	}
	return nil
}

// clearPartials removes what is no partial download. Those stay until Prune knows which are wanted.
func (s *objectStore) clearPartials() error {
	parts, err := fs.ReadDir(s.root.FS(), partialDir)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if partialName.MatchString(p.Name()) && p.IsDir() {
			continue
		}
		if err := s.root.RemoveAll(path.Join(partialDir, p.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (s *objectStore) read(name string) (entry, error) {
	b, err := s.root.ReadFile(path.Join(name, recordName))
	if err != nil {
		return entry{}, err
	}
	var e entry
	if err := json.Unmarshal(b, &e); err != nil {
		return entry{}, err
	}
	if e.Version != 1 || folder(e.Record.Digest) != name {
		return entry{}, fmt.Errorf("unexpected record of version %d for %s", e.Version, e.Record.Digest)
	}
	info, err := s.root.Stat(path.Join(name, recordName))
	if err != nil {
		return entry{}, err
	}
	if e.used = info.ModTime(); e.used.After(time.Now()) { // by a clock that was ahead
		e.used = time.Now()
		s.recordUse(e.Record.Digest, e.used)
	}
	return e, e.Record.Validate()
}

func (s *objectStore) entry(digest string) (entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[digest]
	return e, ok
}

// filePath is the absolute path of a model: of its file, or of the folder with
// its files.
func (s *objectStore) filePath(rec model.Record) string {
	name := rec.Files[0].Path
	if rec.Format == model.FormatSafetensors {
		name = modelDir(rec)
	}
	return filepath.Join(s.dir, folder(rec.Digest), filesDir, filepath.FromSlash(name))
}

// unchanged reports whether the files have the stamps they were verified at.
func (s *objectStore) unchanged(e entry) bool {
	for _, f := range e.Record.Files {
		info, err := s.root.Lstat(path.Join(folder(e.Record.Digest), filesDir, f.Path))
		if err != nil || !info.Mode().IsRegular() || stampOf(info) != e.Stamps[f.Path] {
			return false
		}
	}
	return true
}

// look compares the files of weights with their stamps, about most files at a time:
// first those that it did not look at for the longest.
func (s *objectStore) look(most int) {
	all := s.all()
	slices.SortStableFunc(all, func(a, b entry) int { return a.looked.Compare(b.looked) })
	for _, e := range all {
		if most <= 0 {
			return
		}
		most -= len(e.Record.Files)
		s.looked(e, !s.unchanged(e))
	}
}

// looked records whether a file of weights differed from its stamp.
func (s *objectStore) looked(e entry, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, ok := s.entries[e.Record.Digest]
	if ok && maps.Equal(now.Stamps, e.Stamps) { // else it was verified meanwhile
		now.looked, now.changed = time.Now(), changed
		s.entries[e.Record.Digest] = now
	}
}

// find returns the path of stored weights, or "" if there are none. Files that
// may have changed are hashed again, and removed if their digest is wrong.
func (s *objectStore) find(ctx context.Context, digest string, verifying func(int64)) (string, error) {
	e, ok := s.entry(digest)
	if !ok {
		return "", nil
	}
	if s.unchanged(e) {
		s.looked(e, false)
		s.use(digest, time.Now())
		return s.filePath(e.Record), nil
	}
	stamps, err := s.verify(ctx, e.Record, folder(digest), verifying)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err == nil {
		err := s.update(digest, func(e entry) entry { e.Stamps, e.used, e.changed = stamps, time.Now(), false; return e })
		if err != nil {
			return "", download.DiskError(err, "write")
		}
		return s.filePath(e.Record), nil
	}
	s.log.Info("Stored weights are damaged; downloading them again", "digest", digest, "cause", err.Error())
	gone, err := s.takeAway(digest)
	if err == nil {
		_, err = s.destroy(gone)
	}
	if err != nil {
		return "", download.DiskError(err, "remove")
	}
	return "", nil
}

// verify hashes the files of a model in dir.
func (s *objectStore) verify(ctx context.Context, rec model.Record, dir string, verifying func(int64)) (map[string]stamp, error) {
	stamps := map[string]stamp{}
	for _, want := range rec.Files {
		name := path.Join(dir, filesDir, want.Path)
		info, err := s.root.Lstat(name)
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() || info.Size() != want.Bytes {
			return nil, fmt.Errorf("%s has %d bytes, want %d", want.Path, info.Size(), want.Bytes)
		}
		f, err := s.root.Open(name)
		if err != nil {
			return nil, err
		}
		got, err := sumFile(ctx, f, verifying)
		f.Close()
		if err != nil {
			return nil, err
		}
		if got != want.SHA256 {
			return nil, fmt.Errorf("%s has SHA-256 %s, want %s", want.Path, got, want.SHA256)
		}
		stamps[want.Path] = stampOf(info)
	}
	return stamps, nil
}

func (s *objectStore) put(e entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[e.Record.Digest] = e
}

// update changes the record of weights.
func (s *objectStore) update(digest string, change func(entry) entry) error {
	s.placing.Lock()
	defer s.placing.Unlock()
	e, ok := s.entry(digest)
	if !ok {
		return fmt.Errorf("%s: %w", digest, fs.ErrNotExist)
	}
	e = change(e)
	if err := s.write(folder(digest), e); err != nil {
		return err
	}
	s.put(e)
	return nil
}

func (s *objectStore) write(dir string, e entry) error {
	e.Version = 1
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	return writeAtomic(s.root, path.Join(dir, recordName), b)
}

// stage prepares the download of one of a model's files and returns how many of
// its bytes exist already. A file of other weights that o may use is complete
// already.
func (s *objectStore) stage(rec model.Record, f model.File, url string, o origin) (download.Target, int64, error) {
	dir := path.Join(partialDir, partial(rec.Digest, o))
	name := path.Join(dir, filesDir, f.Path)
	t := download.Target{URL: url, Bytes: f.Bytes, SHA256: f.SHA256, Root: s.root, Name: name}
	if err := s.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return t, 0, err
	}
	info, err := s.root.Lstat(name)
	if err == nil && linksOf(info) > 1 {
		// A link to other weights' file, which a download would overwrite.
		if err = s.root.Remove(name); err == nil {
			err = fs.ErrNotExist
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		may := func(e entry) bool { return e.Record.Digest != rec.Digest && e.entitles(o) }
		if s.share(f, name, func(e entry) bool { return may(e) && e.from(o.Place) }) || s.borrow(f, dir, name, may) {
			s.reached(pointShared)
			return t, f.Bytes, nil
		}
		return t, 0, nil
	case err != nil:
		return t, 0, err
	}
	return t, min(info.Size(), f.Bytes), nil
}

// place moves a complete download, which the fetcher has just hashed, to its
// final name. If the same weights exist already from another source, those stay
// and get one more origin.
func (s *objectStore) place(rec model.Record, o origin, namespace string) (string, error) {
	s.placing.Lock()
	defer s.placing.Unlock()
	dir := path.Join(partialDir, partial(rec.Digest, o))
	_, err := s.root.Lstat(path.Join(dir, borrowedName))
	by := granted{o, namespace, !errors.Is(err, fs.ErrNotExist)}
	if have, ok := s.entry(rec.Digest); ok && s.unchanged(have) {
		have = have.with(by)
		have.used, have.changed = time.Now(), false
		if err := s.write(folder(rec.Digest), have); err != nil {
			return "", err
		}
		s.put(have)
		return s.filePath(have.Record), s.root.RemoveAll(dir)
	}
	if gone, err := s.takeAway(rec.Digest); err != nil {
		return "", err
	} else if _, err := s.destroy(gone); err != nil {
		return "", err
	}
	e := entry{Record: rec, Stamps: map[string]stamp{}, Origins: []granted{by}, used: time.Now()}
	for _, f := range rec.Files {
		name := path.Join(dir, filesDir, f.Path)
		if err := s.shareDownloaded(f, dir, name); err != nil {
			return "", err
		}
		info, err := s.root.Lstat(name)
		if err != nil {
			return "", err
		}
		e.Stamps[f.Path] = stampOf(info)
	}
	if err := s.write(dir, e); err != nil {
		return "", err
	}
	for _, d := range foldersOf(rec, dir) {
		if err := syncDir(s.root, d); err != nil {
			return "", err
		}
	}
	s.reached(pointComplete)
	if err := s.root.Rename(dir, folder(rec.Digest)); err != nil {
		return "", err
	}
	s.reached(pointPlaced)
	s.put(e)
	return s.filePath(rec), syncDir(s.root, ".")
}

// foldersOf returns the folders of a model's files under dir, the innermost
// first, and dir.
func foldersOf(rec model.Record, dir string) []string {
	var out []string
	for _, f := range rec.Files {
		for d := path.Dir(path.Join(filesDir, f.Path)); d != "."; d = path.Dir(d) {
			if full := path.Join(dir, d); !slices.Contains(out, full) {
				out = append(out, full)
			}
		}
	}
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return append(out, dir)
}

// hashedOf returns the hashes of the files of a partial download, for the one that continues it. A
// source may deny the rest of a large file again and again.
func (s *objectStore) hashedOf(name string) map[string]*download.Hashed {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hashed[name] == nil {
		s.hashed[name] = map[string]*download.Hashed{}
	}
	return s.hashed[name]
}

// forgetHashed forgets the hashes of a partial download that is gone.
func (s *objectStore) forgetHashed(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hashed, name)
}

// dropPartial removes a partial download.
func (s *objectStore) dropPartial(name string) error {
	s.forgetHashed(name)
	if err := s.root.RemoveAll(path.Join(partialDir, name)); err != nil {
		return fmt.Errorf("remove part file: %w", err)
	}
	return nil
}

// prunePartials removes all partial downloads but those with these names.
func (s *objectStore) prunePartials(stay map[string]bool) error {
	parts, err := fs.ReadDir(s.root.FS(), partialDir)
	if err != nil {
		return fmt.Errorf("look for part files: %w", err)
	}
	for _, p := range parts {
		if !stay[p.Name()] {
			err = errors.Join(err, s.dropPartial(p.Name()))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.hashed, func(name string, _ map[string]*download.Hashed) bool { return !stay[name] })
	return err
}

// list returns the weights that were unchanged when their files were last looked
// at, with the bytes that removing each alone would free. It does not wait for the
// disk.
func (s *objectStore) list() []listed {
	var out []listed
	all := s.all()
	counts := sharing(all)
	for _, e := range all {
		if !e.changed {
			out = append(out, listed{namespace: e.namespace(), StoredWeights: v1alpha1.StoredWeights{
				Digest: e.Record.Digest, Bytes: e.Record.Bytes(), ReclaimableBytes: own(e.linked(counts)),
			}})
		}
	}
	return out
}

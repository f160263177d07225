package store

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/api/model"
)

// One content lies here once: a file that several weights have is one file with
// several names (hard links), and the file system counts them. A crash can leave
// no count that is wrong, and the last name that goes gives the disk back.

// Points that a crash is tried at, for tests.
const (
	// PointShared: a file of other weights was given another name.
	PointShared = "shared"
	// PointComplete: a download is whole and has not its final name yet.
	PointComplete = "complete"
	// PointPlaced: it has its final name.
	PointPlaced = "placed"
	// PointTaken: weights vanished, and their disk has not come back.
	PointTaken = "taken"
)

// Points are all of them.
func Points() []string { return []string{PointShared, PointComplete, PointPlaced, PointTaken} }

func (s *shelf) reached(point string) {
	if s.fault != nil {
		s.fault(point)
	}
}

// linksOf is how many names a file has.
func linksOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Nlink)
	}
	return 1
}

// all are the weights that are here, sorted by digest.
func (s *shelf) all() []entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]entry, 0, len(s.entries))
	for _, e := range s.entries {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b entry) int { return strings.Compare(a.Record.Digest, b.Record.Digest) })
	return out
}

func (s *shelf) digests() (out []string) {
	for _, e := range s.all() {
		out = append(out, e.Record.Digest)
	}
	return out
}

// links are the files of weights as they lie on the disk.
func (s *shelf) links(e entry) (out []linkedFile) {
	for _, f := range e.Record.Files {
		info, err := s.root.Lstat(path.Join(folder(e.Record.Digest), filesDir, f.Path))
		if err != nil {
			continue // it gives nothing back
		}
		out = append(out, linkedFile{inode: stampOf(info).Inode, bytes: info.Size(), links: linksOf(info)})
	}
	return out
}

// bytes is what all weights take on the disk, each file once.
func (s *shelf) bytes() (sum int64) {
	seen := map[uint64]bool{}
	for _, e := range s.all() {
		for _, f := range s.links(e) {
			if !seen[f.inode] {
				seen[f.inode] = true
				sum += f.bytes
			}
		}
	}
	return sum
}

// use notes that weights are in use. Where the disk does not take that, they are
// taken for older than they are after a restart.
func (s *shelf) use(digest string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[digest]
	if !ok {
		return
	}
	e.used = now
	s.entries[digest] = e
	name := path.Join(folder(digest), recordName)
	if info, err := s.root.Lstat(name); err == nil && now.Sub(info.ModTime()) < usedEvery {
		return
	}
	if err := s.root.Chtimes(name, now, now); err != nil {
		s.log.Info("Failed to record the use of weights", "digest", digest, "cause", err.Error())
	}
}

// donor is a file of some weights with the same content, verified and unchanged
// since; "" where there is none.
func (s *shelf) donor(f model.File, may func(entry) bool) (name string, verified stamp) {
	for _, e := range s.all() {
		if !may(e) {
			continue
		}
		for _, have := range e.Record.Files {
			if have.SHA256 != f.SHA256 || have.Bytes != f.Bytes {
				continue
			}
			name := path.Join(folder(e.Record.Digest), filesDir, have.Path)
			if info, err := s.root.Lstat(name); err == nil && info.Mode().IsRegular() && stampOf(info) == e.Stamps[have.Path] {
				return name, stampOf(info)
			}
		}
	}
	return "", stamp{}
}

// share gives a file of weights of which it may be taken the name that a file
// would be fetched to, and says whether it did. If that fails, it can be fetched.
func (s *shelf) share(f model.File, name string, may func(entry) bool) bool {
	from, verified := s.donor(f, may)
	if from == "" || s.root.Link(from, name) != nil {
		return false
	}
	info, err := s.root.Lstat(name)
	if err == nil && stampOf(info) == verified {
		return true
	}
	_ = s.root.Remove(name) // it has changed: stage meets a name that stays
	return false
}

// shared says that a part is other weights' own file.
func (s *shelf) shared(name string) (bool, error) {
	info, err := s.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && linksOf(info) > 1, err
}

// shareDownloaded puts the file of other weights in the place of one that was
// fetched beside it, and leaves that one where it cannot. It was fetched, so no
// permission is needed.
func (s *shelf) shareDownloaded(f model.File, dir, name string) error {
	spare := path.Join(dir, "same")
	if err := s.root.Remove(spare); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	info, err := s.root.Lstat(name)
	if err != nil {
		return err
	}
	if linksOf(info) > 1 || !s.share(f, spare, func(entry) bool { return true }) {
		return nil
	}
	return s.root.Rename(spare, name)
}

package store

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/api/model"
)

// Each content is stored once: a file that several weights contain is one file
// with several hard links, which the file system counts. A crash cannot leave a
// wrong count, and removing the last link frees the space.

// points at which tests simulate a crash.
const (
	// pointShared: a file of other weights was linked.
	pointShared = "shared"
	// pointComplete: a download is complete and not yet renamed.
	pointComplete = "complete"
	// pointPlaced: it has its final name.
	pointPlaced = "placed"
	// pointTaken: weights were moved to the trash, and their space is not free
	// yet.
	pointTaken = "taken"
)

// points returns all of them.
func points() []string { return []string{pointShared, pointComplete, pointPlaced, pointTaken} }

func (s *objectStore) reached(point string) {
	if s.fault != nil {
		s.fault(point)
	}
}

// linksOf is the number of hard links of a file.
func linksOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Nlink)
	}
	return 1
}

// all returns the stored weights, sorted by digest.
func (s *objectStore) all() []entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]entry, 0, len(s.entries))
	for _, e := range s.entries {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b entry) int { return strings.Compare(a.Record.Digest, b.Record.Digest) })
	return out
}

func (s *objectStore) digests() (out []string) {
	for _, e := range s.all() {
		out = append(out, e.Record.Digest)
	}
	return out
}

// links returns the files of weights as they are on the disk.
func (s *objectStore) links(e entry) (out []linkedFile) {
	for _, f := range e.Record.Files {
		info, err := s.root.Lstat(path.Join(folder(e.Record.Digest), filesDir, f.Path))
		if err != nil {
			continue // it frees nothing
		}
		out = append(out, linkedFile{inode: stampOf(info).Inode, bytes: info.Size(), links: linksOf(info)})
	}
	return out
}

// sharing counts how many files of the weights are each file of the disk, by its
// inode, as they were verified.
func sharing(all []entry) map[uint64]int {
	counts := map[uint64]int{}
	for _, e := range all {
		for _, s := range e.Stamps {
			counts[s.Inode]++
		}
	}
	return counts
}

// linked returns the files of weights as they were verified, with the links that
// sharing counted.
func (e entry) linked(counts map[uint64]int) (out []linkedFile) {
	for _, s := range e.Stamps {
		out = append(out, linkedFile{inode: s.Inode, bytes: s.Bytes, links: counts[s.Inode]})
	}
	return out
}

// bytes is the disk usage of all weights, each file once.
func (s *objectStore) bytes() (sum int64) {
	seen := map[uint64]bool{}
	for _, e := range s.all() {
		for _, f := range e.Stamps {
			if !seen[f.Inode] {
				seen[f.Inode] = true
				sum += f.Bytes
			}
		}
	}
	return sum
}

// use records that weights are in use. If the write fails, they appear older
// after a restart.
func (s *objectStore) use(digest string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[digest]
	if !ok {
		return
	}
	e.used = now
	s.entries[digest] = e
	name := path.Join(folder(digest), recordName)
	if info, err := s.root.Lstat(name); err == nil && now.Sub(info.ModTime()).Abs() < usedEvery {
		return
	}
	s.recordUse(digest, now)
}

func (s *objectStore) recordUse(digest string, at time.Time) {
	if err := s.root.Chtimes(path.Join(folder(digest), recordName), at, at); err != nil {
		s.log.Info("Failed to record the use of weights", "digest", digest, "cause", err.Error())
	}
}

// donor returns a file of other weights with the same content, verified and
// unchanged since; "" if there is none.
func (s *objectStore) donor(f model.File, may func(entry) bool) (name string, verified stamp) {
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

// share links a file of other weights that may be used to the name that a
// download would have, and reports whether it did. If that fails, the file is
// downloaded.
func (s *objectStore) share(f model.File, name string, may func(entry) bool) bool {
	from, verified := s.donor(f, may)
	if from == "" || s.root.Link(from, name) != nil {
		return false
	}
	info, err := s.root.Lstat(name)
	if err == nil && stampOf(info) == verified {
		return true
	}
	_ = s.root.Remove(name) // it has changed: stage handles a file that stays
	return false
}

// borrow is share for a file that came from another place than the download's, and notes that in
// dir, the folder of the download. With the note, other credentials have to download the model
// themselves, and peers cannot copy it, so small files are not borrowed.
func (s *objectStore) borrow(f model.File, dir, name string, may func(entry) bool) bool {
	if from, _ := s.donor(f, may); from == "" || !hub.IsWeights(f.Path) {
		return false
	}
	return s.root.WriteFile(path.Join(dir, borrowedName), nil, 0o600) == nil && s.share(f, name, may)
}

// shared reports whether a partial file is a link to other weights' file.
func (s *objectStore) shared(name string) (bool, error) {
	info, err := s.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && linksOf(info) > 1, err
}

// shareDownloaded replaces a downloaded file with a link to the same file of
// other weights, and keeps the downloaded one if that fails. It was downloaded,
// so no permission is needed.
func (s *objectStore) shareDownloaded(f model.File, dir, name string) error {
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

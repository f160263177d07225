package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"
)

// takeAway removes weights in one step; destroy, or the next start, frees their
// space. If there were none, or a person has removed them, gone is empty.
func (s *objectStore) takeAway(digest string) (gone string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.entries[digest]; !ok {
		return "", nil
	}
	if err := s.root.MkdirAll(trashDir, 0o700); err != nil { // it may be gone as well
		return "", err
	}
	gone = path.Join(trashDir, fmt.Sprintf("%s-%d", folder(digest), time.Now().UnixNano()))
	switch err := s.root.Rename(folder(digest), gone); {
	case errors.Is(err, fs.ErrNotExist):
		gone = ""
	case err != nil:
		return "", err
	}
	delete(s.entries, digest)
	s.reached(pointTaken)
	return gone, nil
}

// destroy deletes weights that were taken away, and returns how many bytes that
// freed.
func (s *objectStore) destroy(gone string) (int64, error) {
	if gone == "" {
		return 0, nil
	}
	s.trash.Lock()
	defer s.trash.Unlock()
	var bytes int64
	err := fs.WalkDir(s.root.FS(), path.Join(gone, filesDir), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil && linksOf(info) == 1 {
			bytes += info.Size()
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	return bytes, s.root.RemoveAll(gone)
}

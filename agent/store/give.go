package store

import (
	"errors"
	"fmt"
	"os"
	"path"
)

// Fetching means that weights are being downloaded to this Mac.
type Fetching struct{ Done int64 }

func (f *Fetching) Error() string {
	return fmt.Sprintf("this Mac is still downloading the weights; it has %d bytes", f.Done)
}

// ErrNotHere means that a file cannot be served: it is not here, has changed
// since it was verified, or came from another source.
var ErrNotHere = errors.New("this Mac does not have these weights")

// notYet returns Fetching if weights are being downloaded that may be given, else
// ErrNotHere.
func (s *Store) notYet(digest string, to origin) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, f := range s.downloads {
		if k.digest == digest && (k.origin == to || k.origin == to.public()) {
			p, _ := f.look()
			return &Fetching{Done: p.BytesDone}
		}
	}
	return ErrNotHere
}

// Give opens a file of downloaded weights for a peer. Weights of another source
// than the peer's grant names are refused, and of another credential unless they
// came without one.
func (s *Store) Give(digest, source, tokenRef, sha256 string) (*os.File, error) {
	to := origin{placeOf(source), tokenRef}
	e, ok := s.objects.entry(digest)
	if !ok {
		return nil, s.notYet(digest, to)
	}
	if !e.from(to.Place) || !e.entitles(to) && !e.entitles(to.public()) {
		return nil, ErrNotHere
	}
	for _, have := range e.Record.Files {
		if have.SHA256 != sha256 {
			continue
		}
		file, err := s.objects.root.Open(path.Join(folder(digest), filesDir, have.Path))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotHere, err)
		}
		if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || stampOf(info) != e.Stamps[have.Path] {
			return nil, errors.Join(ErrNotHere, err, file.Close())
		}
		return file, nil
	}
	return nil, ErrNotHere
}

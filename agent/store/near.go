package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// FromNeighbour is what Options.Fetched is told of bytes that another Mac gave.
const FromNeighbour = "neighbour"

// Neighbours are other Macs that weights may be copied from.
type Neighbours interface {
	// Of are those that have the weights of a record now, the best first. While
	// they only fetch them it waits, as long as that makes progress. Where there
	// are none, the source is asked.
	Of(ctx context.Context, rec model.Record) []Neighbour
	// Failed is told why a copy of one of them did not come.
	Failed(mac string, err error)
}

// Neighbour is a Mac that gives weights.
type Neighbour struct {
	Mac string
	// Get asks it for what lies at a URL of its own; see download.Target.
	Get func(ctx context.Context, url string, header http.Header) (*http.Response, error)
}

// near are the Macs to copy from. They are asked before there is a slot, so that
// two Macs that wait for one another's downloads do not hold both up.
func (s *Store) near(ctx context.Context, rec model.Record) []Neighbour {
	if s.opt.Neighbours == nil {
		return nil
	}
	return s.opt.Neighbours.Of(ctx, rec)
}

// A neighbour that gives to others already is waited for, and not for ever.
const (
	busyPause = 2 * time.Second
	busyMost  = 10 * time.Minute
)

// copyNear fetches a file from one of the neighbours, and says whether one had
// it: whatever goes wrong there, the source is left. A file that was begun at
// its source goes on there.
func (s *Store) copyNear(ctx context.Context, rec model.Record, t download.Target, near []Neighbour, show func(download.Progress)) (bool, error) {
	if download.Begun(t) {
		return false, nil
	}
	for _, n := range near {
		t := t
		t.URL = "https://" + agentapi.MacServerName(n.Mac) + agentapi.WeightsPath(rec.Digest, t.SHA256)
		t.Get, t.Header, t.Tries, t.Gained = n.Get, nil, 1, nil
		if told := s.opt.Fetched; told != nil {
			t.Gained = func(k int) { told(FromNeighbour, k) }
		}
		err := s.copyFrom(ctx, t, show)
		switch {
		case err == nil:
			return true, nil
		case ctx.Err() != nil, ours(err):
			return false, err
		}
		s.opt.Log.Info("Failed to copy weights from a peer; trying the next source", "neighbour", n.Mac, "digest", rec.Digest, "cause", err.Error())
		s.opt.Neighbours.Failed(n.Mac, err)
	}
	return false, nil
}

// copyFrom fetches a file from one neighbour, once that has time for it.
func (s *Store) copyFrom(ctx context.Context, t download.Target, show func(download.Progress)) error {
	for began := time.Now(); ; {
		err := s.opt.Fetch.Fetch(ctx, t, show)
		var e *download.Error
		if !errors.As(err, &e) || e.Status != http.StatusServiceUnavailable || time.Since(began) > busyMost {
			return err
		}
		timer := time.NewTimer(busyPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("copy from a peer: %w", context.Cause(ctx))
		}
	}
}

// ours says that a failure is of this Mac's own disk.
func ours(err error) bool {
	switch download.Reason(err, "") {
	case v1alpha1.ReasonDiskFull, v1alpha1.ReasonDownloadFailed:
		return true
	}
	return false
}

// Fetching says that weights are on their way here.
type Fetching struct{ Done int64 }

func (f *Fetching) Error() string {
	return fmt.Sprintf("this Mac is still downloading the weights; it has %d bytes", f.Done)
}

// ErrNotHere says that a file cannot be given: it is not here, or has changed
// since it was verified, or came from another source.
var ErrNotHere = errors.New("this Mac does not have these weights")

// notYet says whether weights are being fetched from a place.
func (s *Store) notYet(digest, place string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, f := range s.flights {
		if k.digest == digest && k.origin.Place == place {
			p, _ := f.look()
			return &Fetching{Done: p.BytesDone}
		}
	}
	return ErrNotHere
}

// Give opens a file of downloaded weights for another Mac. Weights that came from
// another source are not given: who asks was shown that one by nobody.
func (s *Store) Give(digest, source, sha256 string) (*os.File, error) {
	e, ok := s.shelf.entry(digest)
	if !ok {
		return nil, s.notYet(digest, placeOf(source))
	}
	if !e.from(placeOf(source)) {
		return nil, ErrNotHere
	}
	for _, have := range e.Record.Files {
		if have.SHA256 != sha256 {
			continue
		}
		file, err := s.shelf.root.Open(path.Join(folder(digest), filesDir, have.Path))
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

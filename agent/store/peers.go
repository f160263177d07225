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

// FromPeer is the scheme that Options.Fetched receives for bytes from a peer.
const FromPeer = "neighbour"

// Peers are the Macs that weights may be copied from.
type Peers interface {
	// Of returns the peers that have the weights of a record now, the best first.
	// It waits for peers that download them and make progress. If there are none,
	// the source is used.
	Of(ctx context.Context, rec model.Record) []Peer
	// Failed records why a copy from a peer failed.
	Failed(mac string, err error)
}

// Peer is a Mac that serves weights.
type Peer struct {
	Mac string
	// Get requests one of the peer's URLs; see download.Target.
	Get func(ctx context.Context, url string, header http.Header) (*http.Response, error)
}

// peers returns the Macs to copy from. They are asked before the download takes a
// slot, so that two Macs that wait for each other's downloads do not block.
func (s *Store) peers(ctx context.Context, rec model.Record) []Peer {
	if s.opt.Peers == nil {
		return nil
	}
	return s.opt.Peers.Of(ctx, rec)
}

// A busy peer is asked again, for a limited time.
const (
	busyPause = 2 * time.Second
	busyLimit = 10 * time.Minute
)

// copyFromPeers fetches a file from one of the peers, and reports whether one had
// it: after any failure of a peer the source is used. A peer that failed is not
// asked for other files: each could take as long. left are the others. A file whose
// download began at the source is resumed there.
func (s *Store) copyFromPeers(ctx context.Context, rec model.Record, t download.Target, peers []Peer, show func(download.Progress)) (copied bool, left []Peer, err error) {
	if download.Begun(t) {
		return false, peers, nil
	}
	for ; len(peers) > 0; peers = peers[1:] {
		n, t := peers[0], t
		t.URL = "https://" + agentapi.MacServerName(n.Mac) + agentapi.WeightsPath(rec.Digest, t.SHA256)
		t.Get, t.Header, t.Tries, t.Gained = n.Get, nil, 1, nil
		if fetched := s.opt.Fetched; fetched != nil {
			t.Gained = func(k int) { fetched(FromPeer, k) }
		}
		err := s.copyFrom(ctx, t, show)
		switch {
		case err == nil:
			return true, peers, nil
		case ctx.Err() != nil, ours(err):
			return false, peers, err
		}
		s.opt.Log.Info("Failed to copy weights from a peer; trying the next source", "peer", n.Mac, "digest", rec.Digest, "cause", err.Error())
		s.opt.Peers.Failed(n.Mac, err)
	}
	return false, nil, nil
}

// copyFrom fetches a file from one peer once it is not busy.
func (s *Store) copyFrom(ctx context.Context, t download.Target, show func(download.Progress)) error {
	for began := time.Now(); ; {
		err := s.opt.Fetch.Fetch(ctx, t, show)
		var e *download.Error
		if !errors.As(err, &e) || e.Status != http.StatusServiceUnavailable || time.Since(began) > busyLimit {
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

// ours reports whether the failure is one of this Mac's own disk.
func ours(err error) bool {
	switch download.Reason(err, "") {
	case v1alpha1.ReasonDiskFull, v1alpha1.ReasonDownloadFailed:
		return true
	}
	return false
}

// Fetching means that weights are being downloaded to this Mac.
type Fetching struct{ Done int64 }

func (f *Fetching) Error() string {
	return fmt.Sprintf("this Mac is still downloading the weights; it has %d bytes", f.Done)
}

// ErrNotHere means that a file cannot be served: it is not here, has changed
// since it was verified, or came from another source.
var ErrNotHere = errors.New("this Mac does not have these weights")

// notYet returns Fetching if weights are being downloaded from a place, else
// ErrNotHere.
func (s *Store) notYet(digest, place string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, f := range s.downloads {
		if k.digest == digest && k.origin.Place == place {
			p, _ := f.look()
			return &Fetching{Done: p.BytesDone}
		}
	}
	return ErrNotHere
}

// Give opens a file of downloaded weights for a peer. Weights of another source
// than the peer's grant names are refused.
func (s *Store) Give(digest, source, sha256 string) (*os.File, error) {
	e, ok := s.objects.entry(digest)
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

package store

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestWeightsAreServedToPeers only as they were verified, and only if they came
// from the source that the peer's grant names.
func TestWeightsAreServedToPeers(t *testing.T) {
	repo, rec := repository()
	stand := &hubtest.Hub{}
	stand.Put("org/model", repo)
	s := overHub(t, stand)
	want := rec.Files[1]
	if _, err := s.Give(rec.Digest, rec.Source, "", want.SHA256); !errors.Is(err, ErrNotHere) {
		t.Errorf("before it was fetched: %v", err)
	}
	dir, err := s.Ensure(t.Context(), rec, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Give(rec.Digest, rec.Source, "", want.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	f.Close()
	if err != nil || digest(b) != want.SHA256 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	for what, v := range map[string]struct{ digest, source, file string }{
		"other weights":                {digest: "sha256:" + want.SHA256, source: rec.Source, file: want.SHA256},
		"the same from another source": {digest: rec.Digest, source: "https://evil.example/4bit", file: want.SHA256},
		"a file that is not of them":   {digest: rec.Digest, source: rec.Source, file: digest([]byte("other"))},
		"its record":                   {digest: rec.Digest, source: rec.Source, file: "../record.json"},
	} {
		if _, err := s.Give(v.digest, v.source, "", v.file); !errors.Is(err, ErrNotHere) {
			t.Errorf("%s: %v", what, err)
		}
	}
	late := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(dir, filepath.Base(want.Path)), late, late); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Give(rec.Digest, rec.Source, "", want.SHA256); !errors.Is(err, ErrNotHere) {
		t.Errorf("after it was touched: %v", err)
	}
}

// TestDownloadIsReportedToPeersThatWait, but not to those that ask for another
// source.
func TestDownloadIsReportedToPeersThatWait(t *testing.T) {
	_, rec := repository()
	s := overHub(t, &hubtest.Hub{})
	f := &sharedDownload{downloadKey: downloadKey{rec.Digest, want{rec, ""}.origin()}, changed: make(chan struct{})}
	f.latest.BytesDone = 7
	s.mu.Lock()
	s.downloads[f.downloadKey] = f
	s.mu.Unlock()
	var fetching *Fetching
	if _, err := s.Give(rec.Digest, rec.Source, "", rec.Files[0].SHA256); !errors.As(err, &fetching) || fetching.Done != 7 {
		t.Errorf("%v", err)
	}
	if _, err := s.Give(rec.Digest, "https://evil.example/4bit", "", rec.Files[0].SHA256); !errors.Is(err, ErrNotHere) {
		t.Errorf("of another source: %v", err)
	}
	s.mu.Lock()
	delete(s.downloads, f.downloadKey)
	s.mu.Unlock()
}

// lyingPeers name one Mac that claims to have everything, and gives nothing.
type lyingPeers struct{ asked, failed atomic.Int64 }

func (p *lyingPeers) Slow(model.Record, string) []Peer { return nil }

func (p *lyingPeers) Of(context.Context, model.Record, string, time.Duration) []Peer {
	return []Peer{{Mac: "liar", Get: func(context.Context, string, http.Header) (*http.Response, error) {
		p.asked.Add(1)
		return nil, &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Status: http.StatusNotFound, Message: "it is not there"}
	}}}
}

func (p *lyingPeers) Failed(string, error) { p.failed.Add(1) }

// TestAttackAPeerThatFailsForEachFile: a peer may take minutes to fail, while the download
// uses one of the Mac's slots.
func TestAttackAPeerThatFailsForEachFile(t *testing.T) {
	x, peers := newTenants(t), &lyingPeers{}
	x.opt.Peers = peers
	x.brought(t)
	if len(x.private.Files) < 2 || peers.asked.Load() != 1 || peers.failed.Load() != 1 {
		t.Errorf("of %d files the peer was asked for %d, and failed %d times", len(x.private.Files), peers.asked.Load(), peers.failed.Load())
	}
}

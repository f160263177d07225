package store

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/test/patience"
)

// A namespace has used up its slots with sources that do not end, and waits for a model that
// another namespace wants, too. The model comes in the share of the other one.
func TestADownloadThatNamespacesShareIsChargedToTheOneWithTheFewestSlots(t *testing.T) {
	w := newWorld(t)
	popular := blob(1 << 18)
	w.serve("/popular", popular)
	w.gate = make(chan struct{}) // everything else
	defer close(w.gate)
	var both atomic.Bool
	s, _ := w.start()
	s.opt.Namespaces = func(r model.Record, _ string) []string {
		if both.Load() && strings.HasSuffix(r.Source, "/popular") {
			return []string{"hog", "team"}
		}
		return []string{"hog"}
	}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error)
	ensure := func(ctx context.Context, rec model.Record) { _, err := s.Ensure(ctx, rec, "", nil); ended <- err }
	for _, path := range []string{"/endless-1", "/endless-2"} {
		rec := recordOf(w.origin.URL+path, w.content)
		rec.Files[0].SHA256 = digest([]byte(path))
		rec.Digest = model.DigestOf(rec.Files)
		go ensure(ctx, rec)
	}
	queued := func() (n int) {
		s.slots.mu.Lock()
		defer s.slots.mu.Unlock()
		return len(s.slots.waiting)
	}
	until(t, func() bool { return w.requests.Load() == 2 })
	shared := recordOf(w.origin.URL+"/popular", popular)
	go ensure(ctx, shared)
	until(t, func() bool { return queued() == 1 })
	both.Store(true)
	within, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	path, err := s.Ensure(within, shared, "", nil)
	wantContent(t, path, err, popular)
	leave()
	for range 3 {
		<-ended
	}
}

// until waits for a condition.
func until(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience.Of(t)); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it was waited for in vain")
		}
	}
}

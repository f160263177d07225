package store

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// part leaves a partial download of weights, with a credential.
func (w *world) part(rec model.Record, ref string) (name string) {
	w.t.Helper()
	name = partial(rec.Digest, want{rec, ref}.origin())
	p := filepath.Join(w.dir, partialDir, name, filesDir)
	if err := os.MkdirAll(p, 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p, SingleFile), w.content[:1024], 0o600); err != nil {
		w.t.Fatal(err)
	}
	return name
}

// parts are the names of the partial downloads.
func (w *world) parts() (names []string) {
	w.t.Helper()
	l, err := os.ReadDir(filepath.Join(w.dir, partialDir))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range l {
		names = append(names, p.Name())
	}
	return names
}

// TestPruneKeepsWhatWouldBeResumed: of other weights, of another source and with another
// credential nothing stays, but for a download that runs.
func TestPruneKeepsWhatWouldBeResumed(t *testing.T) {
	w := newWorld(t)
	w.gate = make(chan struct{})
	s, _ := w.start()
	rec := recordOf("hf://org/model", []byte("wanted"))
	moved, other := rec, recordOf("hf://org/other", []byte("other"))
	moved.Source = "hf://org/moved"
	stay := []string{w.part(rec, "one"), w.part(rec, "two")}
	w.part(rec, "old")
	w.part(moved, "one")
	w.part(other, "")
	var once sync.Once
	running := recordOf(w.source(), w.content)
	path, err := s.Ensure(t.Context(), running, "", func(p v1alpha1.Progress) {
		if p.BytesDone == 0 {
			return
		}
		once.Do(func() {
			if err := s.Prune([]Wanted{{rec, "one"}, {rec, "two"}}); err != nil {
				t.Error(err)
			}
			want := append(slices.Clone(stay), partial(running.Digest, want{running, ""}.origin()))
			slices.Sort(want)
			if got := w.parts(); !slices.Equal(got, want) {
				t.Errorf("%q stay, want %q", got, want)
			}
			close(w.gate)
		})
	})
	wantContent(t, path, err, w.content)
}

// TestASourceThatMovesLeavesNoParts: a source fails near the end, and the deployment names another
// one for the same weights, again and again.
func TestASourceThatMovesLeavesNoParts(t *testing.T) {
	w := newWorld(t)
	w.origin.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") != "" {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		rw.Header().Set("ETag", `"v"`)
		rw.Header().Set("Content-Length", fmt.Sprint(len(w.content)))
		_, _ = rw.Write(w.content[:len(w.content)-1])
	})
	s, _ := w.start()
	for i := range 3 {
		rec := recordOf(fmt.Sprintf("%s/%d.gguf", w.origin.URL, i), w.content)
		if _, err := s.Ensure(t.Context(), rec, "", nil); !download.IsTransient(err) {
			t.Fatalf("a source that failed: %v", err)
		}
		if err := s.Prune([]Wanted{{Record: rec}}); err != nil {
			t.Fatal(err)
		}
		if all := w.parts(); len(all) != 1 {
			t.Fatalf("%d parts of one model are on the disk after %d sources, want that of the last", len(all), i+1)
		}
	}
}

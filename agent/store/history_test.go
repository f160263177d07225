package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/test/seed"
)

// TestRandomHistories runs random operations on a store and a plain model of it:
// a set of digests, and how many holds each has.
func TestRandomHistories(t *testing.T) {
	seed := seed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	contents := map[string][]byte{}
	w := newWorld(t)
	w.origin.Close()
	w.origin = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		http.ServeContent(rw, r, "m", time.Time{}, bytes.NewReader(contents[r.URL.Path]))
	}))
	t.Cleanup(w.origin.Close)
	var records []model.Record
	for _, name := range []string{"/a", "/b", "/c", "/d"} {
		contents[name] = append(blob(20_000+rng.IntN(20_000)), name...)
		records = append(records, recordOf(w.origin.URL+name, contents[name]))
	}
	s, stop := w.start()
	stored, holds := map[string]int64{}, map[string][]*Hold{}
	for step := range 250 {
		rec := records[rng.IntN(len(records))]
		d := rec.Digest
		switch op := rng.IntN(6); op {
		case 0, 1:
			path, err := s.Ensure(t.Context(), rec, "", nil)
			if err != nil {
				t.Fatalf("step %d: ensure: %v", step, err)
			}
			if got, err := os.ReadFile(path); err != nil || digest(got) != rec.Files[0].SHA256 {
				t.Fatalf("step %d: %s holds other bytes (%v)", step, path, err)
			}
			stored[d] = rec.Bytes()
		case 2:
			n, err := s.Remove(d)
			switch held := len(holds[d]) > 0; {
			case held != errors.Is(err, errInUse), !held && err != nil, !held && n != stored[d]:
				t.Fatalf("step %d: removed %d bytes of %d, held %v: %v", step, n, stored[d], held, err)
			case !held:
				delete(stored, d)
			}
		case 3:
			holds[d] = append(holds[d], s.Hold(d))
		case 4:
			if len(holds[d]) > 0 {
				holds[d][0].Release()
				holds[d] = holds[d][1:]
			}
		case 5:
			if rng.IntN(4) > 0 {
				break
			}
			if path := s.objects.filePath(rec); stored[d] > 0 && rng.IntN(2) == 0 { // a file is damaged from outside
				if err := os.Truncate(path, 10); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Ensure(t.Context(), rec, "", nil); err != nil {
					t.Fatalf("step %d: ensure after damage: %v", step, err)
				}
			}
			stop()
			s, stop = w.start()
			clear(holds) // a claim lives as long as its agent
		}
		var got []string
		for _, l := range s.List() {
			if stored[l.Digest] != l.Bytes {
				t.Fatalf("step %d: %s is listed with %d bytes, want %d", step, l.Digest, l.Bytes, stored[l.Digest])
			}
			got = append(got, l.Digest)
		}
		if len(got) != len(stored) || !slices.IsSorted(got) || w.partials() != 0 {
			t.Fatalf("step %d: list %q, want %d; %d parts", step, got, len(stored), w.partials())
		}
	}
}

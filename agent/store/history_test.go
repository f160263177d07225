package store

import (
	"bytes"
	"errors"
	"fmt"
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

// history is a store and a plain model of it: the size of each stored digest, and the holds
// that each has.
type history struct {
	*Store
	w      *world
	rng    *rand.Rand
	stop   func()
	stored map[string]int64
	holds  map[string][]*Hold
}

// step does something with the file of a record.
func (h *history) step(rec model.Record) error {
	d := rec.Digest
	switch h.rng.IntN(6) {
	case 0, 1:
		path, err := h.Ensure(h.w.t.Context(), rec, "", nil)
		if err != nil {
			return fmt.Errorf("ensure: %w", err)
		}
		if got, err := os.ReadFile(path); err != nil || digest(got) != rec.Files[0].SHA256 {
			return fmt.Errorf("%s holds other bytes (%v)", path, err)
		}
		h.stored[d] = rec.Bytes()
	case 2:
		n, err := h.Remove(d)
		switch held := len(h.holds[d]) > 0; {
		case held != errors.Is(err, errInUse), !held && err != nil, !held && n != h.stored[d]:
			return fmt.Errorf("removed %d bytes of %d, held %v: %v", n, h.stored[d], held, err)
		case !held:
			delete(h.stored, d)
		}
	case 3:
		h.holds[d] = append(h.holds[d], h.Hold(d))
	case 4:
		if len(h.holds[d]) > 0 {
			h.holds[d][0].Release()
			h.holds[d] = h.holds[d][1:]
		}
	case 5:
		if h.rng.IntN(4) == 0 {
			return h.restart(rec)
		}
	}
	return nil
}

// restart opens the store again, half of the time after the file was damaged from outside
// and mended.
func (h *history) restart(rec model.Record) error {
	if path := h.objects.filePath(rec); h.stored[rec.Digest] > 0 && h.rng.IntN(2) == 0 {
		if err := os.Truncate(path, 10); err != nil {
			return err
		}
		if _, err := h.Ensure(h.w.t.Context(), rec, "", nil); err != nil {
			return fmt.Errorf("ensure after damage: %w", err)
		}
	}
	h.stop()
	h.Store, h.stop = h.w.start()
	clear(h.holds) // a claim lives as long as its agent
	return nil
}

// check compares the store with the model.
func (h *history) check() error {
	var got []string
	for _, l := range h.List() {
		if h.stored[l.Digest] != l.Bytes {
			return fmt.Errorf("%s is listed with %d bytes, want %d", l.Digest, l.Bytes, h.stored[l.Digest])
		}
		got = append(got, l.Digest)
	}
	if len(got) != len(h.stored) || !slices.IsSorted(got) || h.w.partials() != 0 {
		return fmt.Errorf("list %q, want %d; %d parts", got, len(h.stored), h.w.partials())
	}
	return nil
}

// TestRandomHistories runs random operations on a store and on the plain model.
func TestRandomHistories(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed.Of(t), 0))
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
	h := &history{w: w, rng: rng, stored: map[string]int64{}, holds: map[string][]*Hold{}}
	h.Store, h.stop = w.start()
	for step := range 250 {
		if err := h.step(records[rng.IntN(len(records))]); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if err := h.check(); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
}

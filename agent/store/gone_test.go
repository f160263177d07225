//go:build !race

package store

import (
	"os"
	"path/filepath"
	"testing"
)

// TestWeightsThatAPersonRemoved while the agent runs, to free a full disk, are downloaded again.
func TestWeightsThatAPersonRemoved(t *testing.T) {
	for name, gone := range map[string]func(digest string) string{
		"the weights":                folder,
		"their files":                func(digest string) string { return filepath.Join(folder(digest), filesDir) },
		"the folder of downloads":    func(string) string { return partialDir },
		"the folder of removed ones": func(string) string { return trashDir },
		"all in the store's folder":  func(string) string { return "*" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.spared = wants()
			s, _ := w.start()
			recs := w.catalog(2)
			mustEnsure(t, s, recs[0])
			paths, err := filepath.Glob(filepath.Join(w.dir, gone(recs[0].Digest)))
			if err != nil || len(paths) == 0 {
				t.Fatal(paths, err)
			}
			for _, p := range paths {
				if err := os.RemoveAll(p); err != nil {
					t.Fatal(err)
				}
			}
			for _, rec := range recs {
				if _, err := s.Ensure(t.Context(), rec, "", nil); err != nil {
					t.Error(err)
				}
				if _, err := s.Remove(rec.Digest); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestRemovedWeightsKeepNoOthersFromEviction: on a full disk the rest of the unused ones go.
func TestRemovedWeightsKeepNoOthersFromEviction(t *testing.T) {
	w := newWorld(t)
	w.spared, w.marks = wants(), Marks{High: 2, Low: 1}
	w.tight(4 * mib)
	s, _ := w.start()
	recs := w.catalog(3)
	mustEnsure(t, s, recs...)
	if err := os.RemoveAll(filepath.Join(w.dir, folder(recs[0].Digest))); err != nil {
		t.Fatal(err)
	}
	w.tight(-diskMargin + 2*mib + mib/2)
	for range 3 {
		if err := s.Collect(); err != nil {
			t.Error(err)
		}
	}
	if got := len(s.List()); got != 0 {
		t.Errorf("%d weights are left on a full disk", got)
	}
}

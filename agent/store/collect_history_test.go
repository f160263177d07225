package store

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/seed"
)

// TestRandomHistoriesOfADiskThatFillsUp downloads, uses, pins, claims and evicts
// models that share files, over restarts. Wanted weights stay, usage falls below
// the watermark where possible, every byte is counted once, and every file is
// correct.
func TestRandomHistoriesOfADiskThatFillsUp(t *testing.T) {
	seed := seed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	repo, base := repository()
	recs := family(repo, base, 10)
	dir := filepath.Join(t.TempDir(), "weights")
	start := func() *Store {
		s := overDir(t, hubOf(repo), dir)
		s.opt.Marks = Marks{High: 31, Low: 30}
		return s
	}
	s := start()
	wanted, holds := map[string]bool{}, map[string]*Hold{}
	const total, others = int64(100 * mib), int64(296 * mib / 10) // the marks are at 1.4 and 0.4 MiB of weights
	setup := func() {
		s.opt.Spared = func() (func(string) bool, bool) { return func(d string) bool { return wanted[d] }, true }
		s.opt.Disk = func() (Disk, error) {
			used, err := du(dir)
			return Disk{Free: total - others - used, Total: total}, err
		}
	}
	setup()
	for step := range 120 {
		rec := recs[rng.IntN(len(recs))]
		d := rec.Digest
		stored := func(d string) bool {
			return slices.ContainsFunc(s.List(), func(w v1alpha1.StoredWeights) bool { return w.Digest == d })
		}
		kept := map[string]bool{}
		for _, r := range recs {
			kept[r.Digest] = stored(r.Digest) && (wanted[r.Digest] || holds[r.Digest] != nil)
		}
		switch op := rng.IntN(6); op {
		case 0, 1:
			if _, err := s.Ensure(t.Context(), rec, "", nil); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			wantWhole(t, s, rec)
		case 2:
			wanted[d] = rng.IntN(3) == 0
			kept[d] = false
		case 3:
			if holds[d] == nil {
				holds[d] = s.Hold(d)
			} else {
				holds[d].Release()
				delete(holds, d)
				kept[d] = false
			}
		case 4:
			if err := s.Collect(); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			disk, _ := s.opt.Disk()
			if s.opt.Marks.deficit(disk) > 0 && len(s.unwanted()) > 0 {
				t.Fatalf("step %d: above the mark, and %d unwanted ones stay", step, len(s.unwanted()))
			}
		case 5:
			if rng.IntN(4) == 0 {
				clear(holds) // a claim lives as long as its agent
				clear(kept)
				s = start()
				setup()
			}
		}
		for digest, stays := range kept {
			if stays && !stored(digest) {
				t.Fatalf("step %d: %s is wanted and went", step, digest)
			}
		}
		if used, err := du(dir); err != nil || used != s.WeightsBytes() {
			t.Fatalf("step %d: %d bytes are counted, %d lie there (%v)", step, s.WeightsBytes(), used, err)
		}
	}
	for _, rec := range recs {
		if _, err := s.Ensure(t.Context(), rec, "", nil); err != nil {
			t.Fatal(err)
		}
		wantWhole(t, s, rec)
	}
}

// family returns records of one repository that have files in common.
func family(repo *hubtest.Repo, base model.Record, n int) []model.Record {
	out := []model.Record{base}
	for i := 1; i < n; i++ {
		files := map[string]hubtest.File{}
		for p, f := range repo.Commits[base.Commit] {
			files[p] = f
		}
		rec := base
		rec.Files = slices.Clone(base.Files)
		for at, change := range map[int]bool{0: true, 1: i%2 == 0, 2: i%3 == 0} {
			if !change {
				continue
			}
			name := rec.Files[at].Path
			content := append([]byte(fmt.Sprint(i)), files[name].Content...)
			files[name] = hubtest.File{Content: content, LFS: files[name].LFS}
			rec.Files[at] = model.File{Path: name, Bytes: int64(len(content)), SHA256: digest(content)}
		}
		rec.Commit = hubtest.Commit(files)
		repo.Commits[rec.Commit] = files
		rec.Digest = model.DigestOf(rec.Files)
		out = append(out, rec)
	}
	return out
}

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

// fillingDisk is a store whose disk is nearly full, and a plain model of what may not be
// evicted: wanted digests, and those that a hold claims.
type fillingDisk struct {
	*Store
	t      *testing.T
	rng    *rand.Rand
	start  func() *Store
	dir    string
	wanted map[string]bool
	holds  map[string]*Hold
	kept   map[string]bool // digests that the current step must not remove
}

// open starts the store, at first or again: a claim lives as long as its agent.
func (d *fillingDisk) open() {
	clear(d.holds)
	clear(d.kept)
	d.Store = d.start()
	d.opt.Marks = Marks{High: 31, Low: 30}
	const total, others = int64(100 * mib), int64(296 * mib / 10) // the marks are at 1.4 and 0.4 MiB of weights
	d.opt.Spared = func() (func(string) bool, bool) { return func(digest string) bool { return d.wanted[digest] }, true }
	d.opt.Disk = func() (Disk, error) {
		used, err := du(d.dir)
		return Disk{Free: total - others - used, Total: total}, err
	}
}

func (d *fillingDisk) stored(digest string) bool {
	return slices.ContainsFunc(d.List(), func(w v1alpha1.StoredWeights) bool { return w.Digest == digest })
}

// step does something with the weights of a record.
func (d *fillingDisk) step(rec model.Record) error {
	digest := rec.Digest
	switch d.rng.IntN(6) {
	case 0, 1:
		if _, err := d.Ensure(d.t.Context(), rec, "", nil); err != nil {
			return err
		}
		wantWhole(d.t, d.Store, rec)
	case 2:
		d.wanted[digest] = d.rng.IntN(3) == 0
		d.kept[digest] = false
	case 3:
		if d.holds[digest] == nil {
			d.holds[digest] = d.Hold(digest)
		} else {
			d.holds[digest].Release()
			delete(d.holds, digest)
			d.kept[digest] = false
		}
	case 4:
		if err := d.Collect(); err != nil {
			return err
		}
		disk, _ := d.opt.Disk()
		if d.opt.Marks.deficit(disk) > 0 && len(d.unwanted()) > 0 {
			return fmt.Errorf("above the mark, and %d unwanted ones stay", len(d.unwanted()))
		}
	case 5:
		if d.rng.IntN(4) == 0 {
			d.open()
		}
	}
	return nil
}

// check compares the store with the model.
func (d *fillingDisk) check() error {
	for digest, stays := range d.kept {
		if stays && !d.stored(digest) {
			return fmt.Errorf("%s is wanted and went", digest)
		}
	}
	if used, err := du(d.dir); err != nil || used != d.WeightsBytes() {
		return fmt.Errorf("%d bytes are counted, %d lie there (%v)", d.WeightsBytes(), used, err)
	}
	return nil
}

// TestRandomHistoriesOfADiskThatFillsUp downloads, uses, pins, claims and evicts
// models that share files, over restarts. Wanted weights stay, usage falls below
// the watermark where possible, every byte is counted once, and every file is
// correct.
func TestRandomHistoriesOfADiskThatFillsUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed.Of(t), 1))
	repo, base := repository()
	recs := family(repo, base, 10)
	dir := filepath.Join(t.TempDir(), "weights")
	d := &fillingDisk{t: t, rng: rng, dir: dir, start: func() *Store { return overDir(t, hubOf(repo), dir) }, wanted: map[string]bool{}, holds: map[string]*Hold{}, kept: map[string]bool{}}
	d.open()
	for step := range 120 {
		rec := recs[rng.IntN(len(recs))]
		for _, r := range recs {
			d.kept[r.Digest] = d.stored(r.Digest) && (d.wanted[r.Digest] || d.holds[r.Digest] != nil)
		}
		if err := d.step(rec); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if err := d.check(); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
	for _, rec := range recs {
		if _, err := d.Ensure(t.Context(), rec, "", nil); err != nil {
			t.Fatal(err)
		}
		wantWhole(t, d.Store, rec)
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

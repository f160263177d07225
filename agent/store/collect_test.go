package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const mib = 1 << 20

func TestWatermarks(t *testing.T) {
	for name, test := range map[string]struct {
		marks Marks
		disk  Disk
		want  int64
	}{
		"below the high mark":            {marks: Marks{90, 80}, disk: Disk{Free: 11, Total: 100}, want: 0},
		"at the high mark":               {marks: Marks{90, 80}, disk: Disk{Free: 10, Total: 100}, want: 10},
		"between the marks":              {marks: Marks{90, 80}, disk: Disk{Free: 15, Total: 100}, want: 0},
		"a full disk":                    {marks: Marks{90, 80}, disk: Disk{Free: 0, Total: 1000}, want: 200},
		"no marks":                       {marks: Marks{}, disk: Disk{Free: 0, Total: 1000}, want: 0},
		"a disk of unknown size":         {marks: Marks{90, 80}, disk: Disk{Free: 0}, want: 0},
		"more free than there is at all": {marks: Marks{90, 80}, disk: Disk{Free: 200, Total: 100}, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.marks.deficit(test.disk); got != test.want {
				t.Errorf("%d bytes to evict, want %d", got, test.want)
			}
		})
	}
	for _, m := range []Marks{{90, 90}, {80, 90}, {101, 50}, {90, 0}, {-5, -9}} {
		if m.Check() == nil {
			t.Errorf("%+v is taken", m)
		}
	}
	for _, m := range []Marks{{}, {100, 1}, {90, 85}} {
		if err := m.Check(); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

func TestWhatIsChosenToGo(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	alone := func(inode uint64, bytes int64) []linkedFile {
		return []linkedFile{{inode: inode, bytes: bytes, links: 1}}
	}
	shared := func(inode uint64, bytes int64, own ...linkedFile) []linkedFile {
		return append(own, linkedFile{inode: inode, bytes: bytes, links: 2})
	}
	for name, test := range map[string]struct {
		all   []unwanted
		need  int64
		want  []string
		freed int64
	}{
		"nothing is needed":        {all: []unwanted{{digest: "a", files: alone(1, 5)}}, need: 0, want: nil, freed: 0},
		"the oldest use first":     {all: []unwanted{{digest: "new", source: "", used: at(9), files: alone(1, 5)}, {digest: "old", source: "", used: at(1), files: alone(2, 5)}, {digest: "mid", source: "", used: at(5), files: alone(3, 5)}}, need: 6, want: []string{"old", "mid"}, freed: 10},
		"no more than is needed":   {all: []unwanted{{digest: "new", source: "", used: at(9), files: alone(1, 5)}, {digest: "old", source: "", used: at(1), files: alone(2, 5)}}, need: 5, want: []string{"old"}, freed: 5},
		"all, and it does not do":  {all: []unwanted{{digest: "new", source: "", used: at(9), files: alone(1, 5)}, {digest: "old", source: "", used: at(1), files: alone(2, 5)}}, need: 50, want: []string{"old", "new"}, freed: 10},
		"a file that others have":  {all: []unwanted{{digest: "a", source: "", used: at(1), files: shared(7, 100)}, {digest: "b", source: "", used: at(2), files: alone(2, 5)}}, need: 5, want: []string{"a", "b"}, freed: 5},
		"a file that goes in both": {all: []unwanted{{digest: "a", source: "", used: at(1), files: shared(7, 100, linkedFile{inode: 1, bytes: 1, links: 1})}, {digest: "b", source: "", used: at(2), files: shared(7, 100)}}, need: 50, want: []string{"a", "b"}, freed: 101},
	} {
		t.Run(name, func(t *testing.T) {
			picked, freed := choose(test.all, test.need)
			var got []string
			for _, p := range picked {
				got = append(got, p.digest)
			}
			if !slices.Equal(got, test.want) || freed != test.freed {
				t.Errorf("%q go and %d bytes come back, want %q and %d", got, freed, test.want, test.freed)
			}
		})
	}
}

// catalog is an origin with several models of a MiB each.
func (w *world) catalog(n int) (recs []model.Record) {
	for i := range n {
		content := append(blob(mib), fmt.Sprintf("%02d", i)...)
		w.serve(fmt.Sprintf("/m%02d", i), content)
		recs = append(recs, recordOf(w.origin.URL+fmt.Sprintf("/m%02d", i), content))
	}
	return recs
}

// tight returns a disk with that many bytes in addition to the margin, all for
// weights.
func (w *world) tight(bytes int64) {
	total := bytes + diskMargin
	w.disk = func() (Disk, error) {
		used, err := du(w.dir)
		return Disk{Free: total - used, Total: total}, err
	}
}

// du is the disk usage of the weights in a folder, each file once.
func du(dir string) (int64, error) {
	var sum int64
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.Contains(p, "/"+filesDir+"/") {
			return err
		}
		info, err := d.Info()
		if err == nil && !seen[stampOf(info).Inode] {
			seen[stampOf(info).Inode] = true
			sum += info.Size()
		}
		return err
	})
	return sum, err
}

func wants(digests ...string) func() (func(string) bool, bool) {
	return func() (func(string) bool, bool) {
		return func(d string) bool { return slices.Contains(digests, d) }, true
	}
}

func mustEnsure(t *testing.T, s *Store, recs ...model.Record) {
	t.Helper()
	for _, rec := range recs {
		if _, err := s.Ensure(t.Context(), rec, "", nil); err != nil {
			t.Fatalf("%s: %v", rec.Source, err)
		}
	}
}

// wantStored compares the weights on the disk.
func wantStored(t *testing.T, s *Store, recs ...model.Record) {
	t.Helper()
	var got, want []string
	for _, l := range s.List() {
		got = append(got, l.Digest)
	}
	for _, r := range recs {
		want = append(want, r.Digest)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("stored are %q, want %q", got, want)
	}
}

func TestAboveTheHighMarkTheOldestUseGoesFirst(t *testing.T) {
	w := newWorld(t)
	r := w.catalog(5)
	w.marks, w.spared = Marks{High: 90, Low: 50}, wants(r[1].Digest)
	s, stop := w.start()
	mustEnsure(t, s, r...)
	mustEnsure(t, s, r[0]) // used again: r[2] is the least recently used of the unwanted
	held := s.Hold(r[2].Digest)
	used := 5 * (mib + 2)
	total := used * 100 / 95
	s.opt.Disk = func() (Disk, error) {
		left, err := du(w.dir)
		return Disk{Free: int64(total) - left, Total: int64(total)}, err
	}
	if err := s.Collect(); err != nil {
		t.Fatal(err)
	}
	// 95 % are in use and 50 % may stay: three of the unwanted are evicted: 3, 4,
	// 0.
	wantStored(t, s, r[1], r[2])
	c := s.Status().Collected
	if c.Models != 3 || c.Bytes != 3*(mib+2) || len(c.Last) != 3 || c.Last[0].Digest != r[0].Digest || c.Last[2].Digest != r[3].Digest ||
		c.Last[0].Reason != v1alpha1.CollectedForMark || c.Last[0].Bytes != mib+2 || c.Last[0].Source != r[0].Source || c.Last[0].Time.IsZero() {
		t.Errorf("reported is %+v", c)
	}
	if m := s.Status().Message; m != "" {
		t.Errorf("all is well, and it says %q", m)
	}
	held.Release()
	if l := s.List(); l[0].ReclaimableBytes+l[1].ReclaimableBytes != mib+2 {
		t.Errorf("reclaimable is %+v, want that of the unwanted", l)
	}
	// Files of others exceed the mark, and all weights are wanted.
	s.opt.Spared = wants(r[1].Digest, r[2].Digest)
	s.opt.Disk = func() (Disk, error) { return Disk{Free: 1, Total: 100 * mib}, nil }
	if err := s.Collect(); err != nil {
		t.Fatal(err)
	}
	wantStored(t, s, r[1], r[2])
	if m := s.Status().Message; !strings.Contains(m, "assigned or pinned") {
		t.Errorf("nothing can be removed, and it says %q", m)
	}
	stop()
}

func TestNothingGoesWhileItIsNotKnownWhatIsWanted(t *testing.T) {
	w := newWorld(t)
	r := w.catalog(2)
	w.marks = Marks{High: 90, Low: 1}
	for name, spared := range map[string]func() (func(string) bool, bool){
		"unset":         nil,
		"not known yet": func() (func(string) bool, bool) { return nil, false },
	} {
		t.Run(name, func(t *testing.T) {
			w.spared, w.disk = spared, nil
			s, stop := w.start()
			defer stop()
			mustEnsure(t, s, r[0])
			s.opt.Disk = func() (Disk, error) { return Disk{Free: 1, Total: 100 * mib}, nil }
			if err := s.Collect(); err != nil {
				t.Error(err)
			}
			_, err := s.Ensure(t.Context(), r[1], "", nil)
			wantReason(t, err, v1alpha1.ReasonDiskFull)
			wantStored(t, s, r[0])
			if l := s.List(); l[0].ReclaimableBytes != 0 {
				t.Errorf("promised is %+v", l)
			}
		})
	}
}

func TestADownloadMakesRoomOfWhatNobodyWants(t *testing.T) {
	w := newWorld(t)
	r := w.catalog(4)
	w.tight(3 * (mib + 2))
	w.spared = wants(r[0].Digest)
	s, _ := w.start()
	mustEnsure(t, s, r[:3]...)
	mustEnsure(t, s, r[3])
	wantStored(t, s, r[0], r[2], r[3])
	if c := s.Status().Collected; c.Models != 1 || c.Last[0].Digest != r[1].Digest || c.Last[0].Reason != v1alpha1.CollectedForDownload {
		t.Errorf("reported is %+v", c)
	}
}

// Models whose eviction would not suffice stay.
func TestADownloadThatCannotFitRemovesNothing(t *testing.T) {
	w := newWorld(t)
	r := w.catalog(3)
	large := append(blob(2*mib), "large"...)
	w.serve("/large", large)
	w.tight(3*(mib+2) - 100)
	w.spared = wants(r[0].Digest)
	s, _ := w.start()
	mustEnsure(t, s, r[:2]...)
	before := w.requests.Load()
	_, err := s.Ensure(t.Context(), recordOf(w.origin.URL+"/large", large), "", nil)
	wantReason(t, err, v1alpha1.ReasonDiskFull)
	wantStored(t, s, r[0], r[1])
	if w.requests.Load() != before || w.partials() != 0 {
		t.Errorf("%d requests, %d parts", w.requests.Load()-before, w.partials())
	}
}

// TestDownloadAheadOfUseStaysBelowTheHighMark: it fits or replaces unwanted
// weights; a download that is needed now may exceed the mark.
func TestDownloadAheadOfUseStaysBelowTheHighMark(t *testing.T) {
	const size, marks = mib + 2, 500 // of each model, and models below the mark
	for name, tc := range map[string]struct {
		high   int
		others int64 // use the space of that many models
		ahead  bool
		stay   []int // of three, the third is fetched
		fails  bool
	}{
		"below":                        {high: 50, others: marks - 3, ahead: true, stay: []int{0, 1, 2}, fails: false},
		"in place of unwanted weights": {high: 50, others: marks - 2, ahead: true, stay: []int{0, 2}, fails: false},
		"above after all evictions":    {high: 50, others: marks - 1, ahead: true, stay: []int{0, 1}, fails: true},
		"above, and needed now":        {high: 50, others: marks - 1, ahead: false, stay: []int{0, 1, 2}, fails: false},
		"above, where is no mark":      {high: 0, others: marks - 1, ahead: true, stay: []int{0, 1, 2}, fails: false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := w.catalog(3)
			w.disk = func() (Disk, error) {
				used, err := du(w.dir)
				return Disk{Free: (2*marks-tc.others)*size - used, Total: 2 * marks * size}, err
			}
			w.marks = Marks{High: tc.high, Low: min(tc.high, 1)}
			w.spared = wants(r[0].Digest)
			s, _ := w.start()
			mustEnsure(t, s, r[:2]...)
			s.opt.Ahead = func(digest string) bool { return tc.ahead && digest == r[2].Digest }
			_, err := s.Ensure(t.Context(), r[2], "", nil)
			if (err != nil) != tc.fails {
				t.Fatal(err)
			}
			if tc.fails {
				wantReason(t, err, v1alpha1.ReasonDiskFull)
				if !strings.Contains(err.Error(), "no more than 50 percent of the disk") {
					t.Errorf("%v", err)
				}
			}
			var left []model.Record
			for _, at := range tc.stay {
				left = append(left, r[at])
			}
			wantStored(t, s, left...)
		})
	}
}

// TestTwoDownloadsDoNotReserveTheSameSpace: the second is refused although the
// first has written nothing yet.
func TestTwoDownloadsDoNotReserveTheSameSpace(t *testing.T) {
	w := newWorld(t)
	w.gate = make(chan struct{})
	w.tight(mib + mib/2)
	w.spared = wants()
	s, _ := w.start()
	other := recordOf(w.origin.URL+"/other.gguf", append(blob(mib-1), 'x'))
	var second error
	var once sync.Once
	mustGo := recordOf(w.source(), w.content)
	_, err := s.Ensure(t.Context(), mustGo, "", func(p v1alpha1.Progress) {
		if p.Stage == v1alpha1.StageDownloading {
			once.Do(func() {
				_, second = s.Ensure(t.Context(), other, "", nil)
				close(w.gate)
			})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	wantReason(t, second, v1alpha1.ReasonDiskFull)
	// Bytes that were reserved and are written count once.
	s.opt.Disk = func() (Disk, error) { return Disk{Free: diskMargin, Total: 1 << 30}, nil }
	if _, lacking, err := s.lacking(false); lacking != 0 || err != nil {
		t.Errorf("%d bytes lack although no download is under way (%v)", lacking, err)
	}
}

func TestTheLastUseSurvivesARestart(t *testing.T) {
	w := newWorld(t)
	r := w.catalog(3)
	w.spared = wants()
	s, stop := w.start()
	mustEnsure(t, s, r...)
	for i, rec := range r { // long ago: 0, 1, 2
		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(filepath.Join(w.dir, folder(rec.Digest), recordName), at, at); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	s, stop = w.start()
	mustEnsure(t, s, r[0])
	s.opt.Spared = wants(r[1].Digest) // an assignment uses it until now
	if err := s.Collect(); err != nil {
		t.Fatal(err)
	}
	stop()
	s, _ = w.start()
	s.opt.Spared = wants()
	s.opt.Marks = Marks{High: 99, Low: 98} // one is evicted
	s.opt.Disk = func() (Disk, error) { return Disk{Free: mib, Total: 100 * mib}, nil }
	if err := s.Collect(); err != nil {
		t.Fatal(err)
	}
	wantStored(t, s, r[0], r[1])
}

// TestWeightsThatWereUsedInTheFutureAreEvictedInTime: they were used while the clock was ahead, and
// count as used at the next start, once.
func TestWeightsThatWereUsedInTheFutureAreEvictedInTime(t *testing.T) {
	w := newWorld(t)
	r := w.catalog(3)
	w.spared = wants()
	s, stop := w.start()
	mustEnsure(t, s, r...)
	ahead := time.Now().Add(1000 * time.Hour)
	for _, rec := range r[:2] {
		if err := os.Chtimes(filepath.Join(w.dir, folder(rec.Digest), recordName), ahead, ahead); err != nil {
			t.Fatal(err)
		}
	}
	s.opt.Spared = wants(r[0].Digest) // the clock is right again
	if err := s.Collect(); err != nil {
		t.Fatal(err)
	}
	stop()
	_, stop = w.start()
	stop()
	for _, rec := range r {
		info, err := os.Stat(filepath.Join(w.dir, folder(rec.Digest), recordName))
		if err != nil || info.ModTime().After(time.Now()) {
			t.Errorf("used at %v, %v", info.ModTime(), err)
		}
	}
}

// A crash at any point leaves every model complete or absent, and loses no disk
// space.
func TestACrashAtAnyPointLeavesAStoreThatIsRight(t *testing.T) {
	repo, first := repository()
	for _, point := range points() {
		t.Run(point, func(t *testing.T) {
			s := overHub(t, hubOf(repo))
			s.opt.Spared = wants()
			second := withOther(first, repo)
			mustEnsure(t, s, first)
			seen := filepath.Join(t.TempDir(), "crashed")
			var once sync.Once
			s.objects.fault = func(at string) {
				if at == point {
					once.Do(func() { // the state after a power failure
						if out, err := exec.Command("cp", "-a", s.opt.Dir, seen).CombinedOutput(); err != nil {
							t.Errorf("%v: %s", err, out)
						}
					})
				}
			}
			mustEnsure(t, s, second)
			if _, err := s.Remove(first.Digest); err != nil {
				t.Fatal(err)
			}
			after := overDir(t, hubOf(repo), seen)
			for _, l := range after.List() {
				if l.Digest != first.Digest && l.Digest != second.Digest {
					t.Errorf("it holds %s", l.Digest)
				}
			}
			mustEnsure(t, after, first, second)
			wantWhole(t, after, first)
			wantWhole(t, after, second)
			for _, rec := range []model.Record{first, second} {
				if _, err := after.Remove(rec.Digest); err != nil {
					t.Error(err)
				}
			}
			if left, err := du(seen); left != 0 || err != nil {
				t.Errorf("%d bytes are lost (%v)", left, err)
			}
		})
	}
}

func TestAttackAPartThatIsOthersFileIsNotWrittenInto(t *testing.T) {
	repo, rec := repository()
	s := overHub(t, hubOf(repo))
	mustEnsure(t, s, rec)
	other := withOther(rec, repo)
	// A crash left a link to another file where a download would write.
	at := filepath.Join(s.opt.Dir, partialDir, partial(other.Digest, want{other, ""}.origin()), filesDir, "4bit")
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(s.opt.Dir, folder(rec.Digest), filesDir, rec.Files[1].Path)
	if err := os.Link(from, filepath.Join(at, "config.json")); err != nil {
		t.Fatal(err)
	}
	mustEnsure(t, s, other)
	wantWhole(t, s, rec)
	wantWhole(t, s, other)
}

func wantWhole(t *testing.T, s *Store, rec model.Record) {
	t.Helper()
	for _, f := range rec.Files {
		got, err := os.ReadFile(filepath.Join(s.opt.Dir, folder(rec.Digest), filesDir, f.Path))
		if err != nil || digest(got) != f.SHA256 {
			t.Errorf("%s of %s holds %d other bytes (%v)", f.Path, rec.Digest, len(got), err)
		}
	}
}

func TestOneContentLiesOnceAndIsFetchedOnce(t *testing.T) {
	repo, first := repository()
	stand := hubOf(repo)
	s := overHub(t, stand)
	second := withOther(first, repo)
	mustEnsure(t, s, first)
	before := len(stand.Requests())
	var last v1alpha1.Progress
	if _, err := s.Ensure(t.Context(), second, "", func(p v1alpha1.Progress) { last = p }); err != nil {
		t.Fatal(err)
	}
	if last.BytesDone != second.Bytes() || last.BytesTotal != second.Bytes() {
		t.Errorf("the last progress is %+v, of %d bytes", last, second.Bytes())
	}
	for _, r := range stand.Requests()[before:] {
		if strings.Contains(r, "safetensors") || strings.Contains(r, first.Files[1].SHA256) {
			t.Errorf("%s was asked for again", r)
		}
	}
	small := first.Files[0].Bytes + second.Files[0].Bytes
	if got, want := s.WeightsBytes(), first.Bytes()+second.Bytes()-first.Files[1].Bytes-first.Files[2].Bytes; got != want {
		t.Errorf("both take %d bytes, want %d", got, want)
	}
	s.opt.Spared = wants()
	for _, l := range s.List() {
		if l.ReclaimableBytes >= small {
			t.Errorf("%s alone would give back %d bytes, the others' files among them", l.Digest, l.ReclaimableBytes)
		}
	}
	if n, err := s.Remove(first.Digest); err != nil || n != first.Files[0].Bytes {
		t.Errorf("%d bytes came back (%v), want %d", n, err, first.Files[0].Bytes)
	}
	wantWhole(t, s, second)
	if n, err := s.Remove(second.Digest); err != nil || n != second.Bytes() {
		t.Errorf("%d bytes came back (%v), want %d", n, err, second.Bytes())
	}
}

// Two models that were downloaded at the same time are stored once nevertheless.
func TestOneContentThatWasFetchedTwiceLiesOnce(t *testing.T) {
	repo, first := repository()
	s := overHub(t, hubOf(repo))
	second := withOther(first, repo)
	for _, rec := range []model.Record{first, second} {
		for _, f := range rec.Files {
			name := filepath.Join(s.opt.Dir, partialDir, partial(rec.Digest, want{rec, ""}.origin()), filesDir, f.Path)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, contentOf(repo, rec.Commit, f.Path), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, rec := range []model.Record{first, second} {
		if _, err := s.objects.place(rec, want{rec, ""}.origin(), ""); err != nil {
			t.Fatal(err)
		}
	}
	wantWhole(t, s, first)
	wantWhole(t, s, second)
	if got, want := s.WeightsBytes(), first.Bytes()+second.Files[0].Bytes; got != want {
		t.Errorf("both take %d bytes, want %d", got, want)
	}
	wantStored(t, s, first, second)
}

// hubOf is a hub with one repository.
func hubOf(repo *hubtest.Repo) *hubtest.Hub {
	h := &hubtest.Hub{}
	h.Put("org/model", repo)
	return h
}

// withOther adds a commit with another config.json to a repository, and returns
// its record.
func withOther(rec model.Record, repo *hubtest.Repo) model.Record {
	files := map[string]hubtest.File{}
	for p, f := range repo.Commits[rec.Commit] {
		files[p] = f
	}
	files["4bit/config.json"] = hubtest.File{Content: []byte(`{"a":2,"b":"longer"}`)}
	commit := hubtest.Commit(files)
	repo.Commits[commit] = files
	rec.Commit, rec.Files = commit, slices.Clone(rec.Files)
	c := files["4bit/config.json"].Content
	rec.Files[0] = model.File{Path: "4bit/config.json", Bytes: int64(len(c)), SHA256: digest(c)}
	rec.Digest = model.DigestOf(rec.Files)
	return rec
}

func contentOf(repo *hubtest.Repo, commit, path string) []byte {
	return repo.Commits[commit][path].Content
}

func TestAFileThatChangedIsNotShared(t *testing.T) {
	repo, first := repository()
	s := overHub(t, hubOf(repo))
	second := withOther(first, repo)
	mustEnsure(t, s, first)
	damaged := filepath.Join(s.opt.Dir, folder(first.Digest), filesDir, first.Files[1].Path)
	if err := os.WriteFile(damaged, make([]byte, first.Files[1].Bytes), 0o600); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(damaged, past, past); err != nil {
		t.Fatal(err)
	}
	mustEnsure(t, s, second)
	wantWhole(t, s, second)
}

package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// small returns the record of the i-th model of a namespace, of some small files.
func small(namespace string, i, files int, used int64) entry {
	rec := model.Record{Source: fmt.Sprintf("hf://%s/m%d", namespace, i), Commit: fmt.Sprintf("%040d", i), Format: model.FormatSafetensors}
	for f := range files {
		rec.Files = append(rec.Files, model.File{Path: fmt.Sprintf("model-%03d.safetensors", f), Bytes: 1, SHA256: digest([]byte{byte(f)})})
	}
	rec.Digest = model.DigestOf(append([]model.File{{Path: rec.Source}}, rec.Files...))
	return entry{Record: rec, Stamps: map[string]stamp{}, Origins: []granted{{origin: origin{placeOf(rec.Source), ""}, Namespace: namespace}}, used: time.Unix(used, 0)}
}

// putSmall stores weights whose files are links to one file.
func (s *Store) putSmall(t *testing.T, e entry) {
	t.Helper()
	base := filepath.Join(s.opt.Dir, "base")
	if _, err := os.Lstat(base); err != nil {
		if err := os.WriteFile(base, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range e.Record.Files {
		name := filepath.Join(s.opt.Dir, folder(e.Record.Digest), filesDir, f.Path)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(base, name); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		e.Stamps[f.Path] = stampOf(info)
	}
	s.objects.put(e)
}

func TestTooManyWeightsAreEvictedFromTheNamespaceWithTheMost(t *testing.T) {
	var a, b []entry
	for i := range 6 {
		a = append(a, small("a", i, 1, int64(100-i)))
	}
	for i := range 2 {
		b = append(b, small("b", i, 5, int64(i)))
	}
	all := slices.Concat(a, b)
	digests := func(of []entry) (out []string) {
		for _, e := range of {
			out = append(out, e.Record.Source)
		}
		return out
	}
	for name, test := range map[string]struct {
		most     quota
		unwanted []entry
		want     []entry
	}{
		"within the quota":     {most: quota{8, 16}, unwanted: all},
		"too many models":      {most: quota{5, 16}, unwanted: all, want: []entry{a[5], a[4], a[3]}},
		"too many files":       {most: quota{8, 12}, unwanted: all, want: []entry{b[0]}},
		"wanted ones stay":     {most: quota{5, 16}, unwanted: []entry{a[0], a[4], b[1]}, want: []entry{a[4], a[0], b[1]}},
		"more than are wanted": {most: quota{1, 1}, unwanted: []entry{a[2]}, want: []entry{a[2]}},
	} {
		t.Run(name, func(t *testing.T) {
			may := digests(test.unwanted)
			source := map[string]string{}
			for _, e := range all {
				source[e.Record.Digest] = e.Record.Source
			}
			got := digests(surplus(all, func(d string) bool { return slices.Contains(may, source[d]) }, test.most))
			if !slices.Equal(got, digests(test.want)) {
				t.Errorf("evicted are %q, want %q", got, digests(test.want))
			}
		})
	}
}

// TestAttackEditsOfARepositoryOfManyFiles keeps a model of many small files for each of many
// edits. The surplus is evicted, another tenant's models stay, and a status reads no file.
func TestAttackEditsOfARepositoryOfManyFiles(t *testing.T) {
	s := overHub(t, &hubtest.Hub{})
	s.opt.Spared = wants()
	s.opt.Disk = func() (Disk, error) { return Disk{Free: 1 << 40, Total: 2 << 40}, nil }
	const files = 240
	for i := range 80 {
		s.putSmall(t, small("evil", i, files, int64(1000+i)))
	}
	for i := range 3 {
		s.putSmall(t, small("other", i, 2, int64(i)))
	}
	if err := s.Collect(); err != nil {
		t.Fatal(err)
	}
	all := s.objects.all()
	kept := (maxFiles - 6) / files
	others := 0
	for _, e := range all {
		if e.namespace() == "other" {
			others++
		}
	}
	if len(all) != kept+3 || others != 3 {
		t.Errorf("%d models stay, %d of them another tenant's; want %d and 3", len(all), others, kept+3)
	}
	if c := s.Status().Collected; c.Models != int64(80-kept) || c.Last[0].Reason != v1alpha1.CollectedForCount {
		t.Errorf("reported is %+v", c)
	}
	if err := s.objects.root.Close(); err != nil {
		t.Fatal(err)
	}
	if l, d := s.List(), s.Status(); len(l) != kept+3 || d.WeightsBytes == 0 {
		t.Errorf("the disk does not answer: %d weights of %d bytes are listed, want all", len(l), d.WeightsBytes)
	}
}

// TestWeightsThatAreGoneAreSoonNotListed removes the files of weights from outside.
func TestWeightsThatAreGoneAreSoonNotListed(t *testing.T) {
	s := overHub(t, &hubtest.Hub{})
	const models = filesPerLook/240 + 4
	for i := range models {
		s.putSmall(t, small("a", i, 240, int64(i)))
	}
	if err := os.RemoveAll(s.opt.Dir); err != nil {
		t.Fatal(err)
	}
	for left := models; left > 0; {
		if err := s.Collect(); err != nil {
			t.Fatal(err)
		}
		n := len(s.List())
		if n >= left || left-n > filesPerLook/240+1 {
			t.Fatalf("%d weights are listed after %d; want fewer, by what one pass looks at", n, left)
		}
		left = n
	}
}

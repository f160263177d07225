package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// tinyAdapter publishes an adapter of a few bytes and returns its record.
func tinyAdapter(stand *hubtest.Hub, i int) model.Record {
	files := map[string]hubtest.File{
		"adapter_config.json":       {Content: fmt.Appendf(nil, `{"n":%d}`, i)},
		"adapter_model.safetensors": {Content: []byte("w"), LFS: true},
	}
	rec := model.Record{Source: fmt.Sprintf("hf://evil/a%d", i), Commit: hubtest.Commit(files), Format: model.FormatSafetensors}
	for _, p := range []string{"adapter_config.json", "adapter_model.safetensors"} {
		rec.Files = append(rec.Files, model.File{Path: p, Bytes: int64(len(files[p].Content)), SHA256: digest(files[p].Content)})
	}
	rec.Digest = model.DigestOf(rec.Files)
	stand.Put(fmt.Sprintf("evil/a%d", i), hubtest.Of(files))
	return rec
}

// TestAttackTinyWeightsHideNoOthers stores as many adapters of a few bytes as a status
// lists, all of them assigned, next to another tenant's model that is not.
func TestAttackTinyWeightsHideNoOthers(t *testing.T) {
	repo, victim := repository()
	stand := &hubtest.Hub{}
	stand.Put("org/model", repo)
	s := overHub(t, stand)
	s.opt.Namespaces = one(func(r model.Record, _ string) string {
		return map[bool]string{true: "a", false: "evil"}[r.Digest == victim.Digest]
	})
	mustEnsure(t, s, victim)
	s.opt.Spared = func() (func(string) bool, bool) { return func(d string) bool { return d != victim.Digest }, true }
	for i := range maxListed {
		mustEnsure(t, s, tinyAdapter(stand, i))
	}
	list := s.List()
	if len(list) != maxListed || !slices.IsSortedFunc(list, compareDigests) {
		t.Errorf("the status lists %d weights, want %d by digest", len(list), maxListed)
	}
	if !slices.ContainsFunc(list, func(w v1alpha1.StoredWeights) bool {
		return w.Digest == victim.Digest && w.ReclaimableBytes == victim.Bytes()
	}) {
		t.Error("the largest weights are not listed")
	}
	s.opt.Spared = func() (func(string) bool, bool) { return func(string) bool { return false }, true }
	var all int64
	for _, l := range s.stored() {
		all += l.ReclaimableBytes
	}
	if got := s.Status().ReclaimableBytes; got != all || got <= victim.Bytes() {
		t.Errorf("%d bytes are reclaimable, want %d", got, all)
	}
}

func compareDigests(a, b v1alpha1.StoredWeights) int {
	switch {
	case a.Digest < b.Digest:
		return -1
	case a.Digest > b.Digest:
		return 1
	}
	return 0
}

func TestNamespacesShareALongList(t *testing.T) {
	of := func(namespace string, n int, bytes int64, wanted bool) (out []listed) {
		for i := range n {
			out = append(out, listed{v1alpha1.StoredWeights{Digest: fmt.Sprintf("%s-%t-%d-%04d", namespace, wanted, bytes, i), Bytes: bytes}, namespace, wanted})
		}
		return out
	}
	for name, test := range map[string]struct {
		all  [][]listed
		want map[string]int // how many of a namespace, by whether they are wanted
	}{
		"a short list":           {[][]listed{of("a", 200, 1, false), of("b", 56, 1, true)}, map[string]int{"a false": 200, "b true": 56}},
		"the largest stay":       {[][]listed{of("a", 300, 1, true), of("b", 64, 9, false)}, map[string]int{"a true": 192, "b false": 64}},
		"the wanted stay":        {[][]listed{of("z", 64, 9, false), of("a", 300, 2, false), of("b", 100, 1, true)}, map[string]int{"z false": 64, "a false": 92, "b true": 100}},
		"wanted ones take turns": {[][]listed{of("z", 64, 9, false), of("a", 300, 2, true), of("b", 90, 1, true)}, map[string]int{"z false": 64, "a true": 102, "b true": 90}},
		"others take turns":      {[][]listed{of("z", 64, 9, false), of("a", 300, 2, false), of("b", 300, 1, false)}, map[string]int{"z false": 64, "a false": 96, "b false": 96}},
	} {
		t.Run(name, func(t *testing.T) {
			all := slices.Concat(test.all...)
			got := map[string]int{}
			for _, w := range shorten(slices.Clone(all)) {
				i := slices.IndexFunc(all, func(l listed) bool { return l.Digest == w.Digest })
				got[fmt.Sprint(all[i].namespace, " ", all[i].wanted)]++
			}
			for who, n := range test.want {
				if got[who] != n {
					t.Errorf("listed are %v, want %v", got, test.want)
				}
			}
		})
	}
}

// TestADigestThatIsUsedIsNotForgottenForOthers: a tenant may have any number of files in its folder of
// the model root.
func TestADigestThatIsUsedIsNotForgottenForOthers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"used", "other"} {
		file := filepath.Join(dir, name)
		past := time.Now().Add(-time.Hour)
		if err := errors.Join(os.WriteFile(file, []byte(name), 0o600), os.Chtimes(file, past, past)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := OpenRoot(dir, filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	sum := func(name string) {
		l, err := root.Open("file://" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := root.Sum(t.Context(), l, nil); err != nil {
			t.Fatal(err)
		}
	}
	sum("used")
	long := root.known["used"]
	long.At = 1
	root.known["used"] = long
	for i := range maxKnown - 1 {
		root.known[fmt.Sprint("tenant/", i)] = hashed{At: 2}
	}
	sum("used")
	sum("other")
	if _, known := root.known["used"]; !known || len(root.known) != maxKnown {
		t.Errorf("of %d digests that of a file that was used just now is forgotten", len(root.known))
	}
}

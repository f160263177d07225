package store

import (
	"errors"
	"testing"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestAPlaceHasNotBroughtWhatAnotherDid: tenant a uses the source of b, which claims a file of a's
// private weights. It is not downloaded for a, and b's source does not decide who else gets it.
func TestAPlaceHasNotBroughtWhatAnotherDid(t *testing.T) {
	x := newTenants(t)
	x.brought(t)
	rec := x.claim()
	if _, err := x.Ensure(t.Context(), rec, "a", nil); err != nil || x.fetched.Load() != rec.Files[0].Bytes {
		t.Fatalf("%v; %d bytes were fetched, want those of the other file", err, x.fetched.Load())
	}
	x.givesNobody(t, rec)
	restarted := overDir(t, x.stand, x.opt.Dir)
	restarted.sources = x.sources
	restarted.sources.hub = restarted.opt.Hub
	x.Store = restarted
	x.givesNobody(t, rec)

	own, _ := repository() // b has the file after all
	x.stand.Put("b/claims", &hubtest.Repo{Refs: map[string]string{"main": rec.Commit}, Commits: map[string]map[string]hubtest.File{rec.Commit: {
		"config.json": {Content: []byte(claimedConfig)}, "model.safetensors": {Content: contentOf(own, x.private.Commit, x.private.Files[1].Path)},
	}}})
	for _, c := range []struct {
		ref  string
		want int64
	}{{"b", rec.Bytes()}, {"", 0}} {
		x.fetched.Store(0)
		if _, err := x.Ensure(t.Context(), rec, c.ref, nil); err != nil || x.fetched.Load() != c.want {
			t.Errorf("credential %q, once the source has the file: %v, %d bytes were fetched, want %d", c.ref, err, x.fetched.Load(), c.want)
		}
	}
}

// givesNobody wants the record refused to other credentials and to all peers.
func (x *tenants) givesNobody(t *testing.T, rec model.Record) {
	t.Helper()
	for _, ref := range []string{"b", ""} {
		if path, err := x.Ensure(t.Context(), rec, ref, nil); path != "" || download.Reason(err, "") != v1alpha1.ReasonDigestMismatch {
			t.Errorf("credential %q is given %q, %v", ref, path, err)
		}
	}
	for _, ref := range []string{"a", "b", ""} { // a peer would note that the place brought it
		if f, err := x.Give(rec.Digest, rec.Source, ref, rec.Files[1].SHA256); !errors.Is(err, ErrNotHere) {
			t.Errorf("a peer with credential %q is given %v, %v", ref, f, err)
		}
	}
}

// TestABorrowedFileStaysOneWithoutItsOwner: the weights that it was linked from are removed before
// the download ends.
func TestABorrowedFileStaysOneWithoutItsOwner(t *testing.T) {
	x := newTenants(t)
	x.brought(t)
	rec := x.claim()
	if _, _, err := x.objects.stage(rec, rec.Files[1], "", want{rec, "a"}.origin()); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Remove(x.private.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Ensure(t.Context(), rec, "a", nil); err != nil {
		t.Fatal(err)
	}
	x.givesNobody(t, rec)
}

// TestSmallFilesOfAnotherPlaceAreDownloaded: weights of one credential's repositories that have a
// configuration in common are given to others nevertheless.
func TestSmallFilesOfAnotherPlaceAreDownloaded(t *testing.T) {
	x := newTenants(t)
	x.brought(t)
	own, _ := repository()
	content := map[string][]byte{"config.json": contentOf(own, x.private.Commit, x.private.Files[0].Path), "model.safetensors": blob(1 << 10)}
	repo := hubtest.Of(map[string]hubtest.File{"config.json": {Content: content["config.json"]}, "model.safetensors": {Content: content["model.safetensors"]}})
	x.stand.Put("a/tuned", repo)
	rec := model.Record{Source: "hf://a/tuned", Commit: repo.Refs["main"], Format: model.FormatSafetensors}
	for _, p := range []string{"config.json", "model.safetensors"} {
		rec.Files = append(rec.Files, model.File{Path: p, Bytes: int64(len(content[p])), SHA256: digest(content[p])})
	}
	rec.Digest = model.DigestOf(rec.Files)
	if _, err := x.Ensure(t.Context(), rec, "a", nil); err != nil {
		t.Fatal(err)
	}
	f, err := x.Give(rec.Digest, rec.Source, "a", rec.Files[1].SHA256)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

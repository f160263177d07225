package store

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/oci/ocitest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestAnArtifactOfARegistryIsFetchedWhole over an interrupted connection, by
// digests alone, with a token for a login.
func TestAnArtifactOfARegistryIsFetchedWhole(t *testing.T) {
	registry := &ocitest.Registry{Auth: "Bearer", Name: "user", Password: "word"}
	rec := model.Record{Format: model.FormatSafetensors}
	var layers []ocitest.Layer
	for _, f := range []struct {
		name    string
		content []byte
	}{{"config.json", []byte(`{"a":1}`)}, {"model.safetensors", blob(300 << 10)}} {
		layers = append(layers, ocitest.Layer{Content: f.content})
		rec.Files = append(rec.Files, model.File{Path: f.name, Bytes: int64(len(f.content)), SHA256: digest(f.content)})
	}
	rec.Digest = model.DigestOf(rec.Files)
	registry.Push("org/m", "v1", layers)
	var cut atomic.Int64
	s := overHub(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, rec.Files[1].SHA256) && r.Header.Get("Authorization") != "" && cut.Add(1) == 1 {
			w = &cutting{ResponseWriter: w, left: 100 << 10}
		}
		registry.ServeHTTP(w, r)
	}))
	rec.Source = "oci://" + strings.TrimPrefix(s.opt.Hub.Endpoint, "https://") + "/org/m:moved"
	var given download.Bearer
	s.sources.credential = func(string) (download.Bearer, error) { return given, nil }
	for _, wrong := range []download.Bearer{"", "oci:user:other", "hf_word"} {
		given = wrong
		_, err := s.Ensure(t.Context(), rec, "mine", nil)
		wantReason(t, err, v1alpha1.ReasonTokenRefused)
	}
	given = "oci:user:word"
	path, err := s.Ensure(t.Context(), rec, "mine", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range rec.Files {
		got, err := os.ReadFile(filepath.Join(path, f.Path))
		if err != nil || digest(got) != f.SHA256 {
			t.Errorf("%s: %d bytes, %v", f.Path, len(got), err)
		}
	}
	requests, _ := registry.Requests()
	if all := strings.Join(requests, "\n"); !strings.Contains(all, rec.Files[1].SHA256+" bytes=") || strings.Contains(all, "manifests") {
		t.Errorf("want a resume, and no tag looked up: %s", all)
	}
}

// TestATokenThatExpiredDoesNotEndADownload: it is asked for again between two files, and for weights
// that another credential brought.
func TestATokenThatExpiredDoesNotEndADownload(t *testing.T) {
	registry := &ocitest.Registry{Auth: "Bearer", Name: "user", Password: "word"}
	rec := model.Record{Format: model.FormatSafetensors}
	var layers []ocitest.Layer
	for _, f := range []struct {
		name    string
		content []byte
	}{{"config.json", []byte(`{"a":1}`)}, {"model.safetensors", blob(300 << 10)}} {
		layers = append(layers, ocitest.Layer{Content: f.content})
		rec.Files = append(rec.Files, model.File{Path: f.name, Bytes: int64(len(f.content)), SHA256: digest(f.content)})
	}
	rec.Digest = model.DigestOf(rec.Files)
	registry.Push("org/m", "v1", layers)
	s := overHub(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		registry.ServeHTTP(w, r)
		if strings.Contains(r.URL.Path, "/blobs/") && r.Header.Get("Authorization") != "" {
			registry.Revoke()
		}
	}))
	rec.Source = "oci://" + strings.TrimPrefix(s.opt.Hub.Endpoint, "https://") + "/org/m:v1"
	s.sources.credential = func(string) (download.Bearer, error) { return "oci:user:word", nil }
	for _, ref := range []string{"mine", "another"} {
		if _, err := s.Ensure(t.Context(), rec, ref, nil); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

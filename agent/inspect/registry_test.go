package inspect

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/oci/ocitest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/weights"
)

func TestResolveAnArtifactOfARegistry(t *testing.T) {
	dir, files := published(t, true)
	registry := &ocitest.Registry{Auth: "Bearer", Name: "user", Password: "word"}
	var layers []ocitest.Layer
	for name, f := range files {
		layers = append(layers, ocitest.Layer{MediaType: "application/octet-stream", Annotations: map[string]string{"org.opencontainers.image.title": name}, Content: f.Content})
	}
	pinned := registry.Push("org/tiny", "q4", layers)
	r, srv := remote(t, registry.ServeHTTP)
	r.Token = func(ref string) (download.Bearer, bool) {
		return download.Bearer(map[string]string{"ref": "oci:user:word", "hub": "hf_word", "other": "oci:user:x"}[ref]), true
	}
	host := strings.TrimPrefix(srv.URL, "https://")
	for _, reference := range []string{":q4", "@" + pinned} {
		rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "oci://" + host + "/org/tiny" + reference, TokenRef: "ref"})
		if err != nil {
			t.Fatal(err)
		}
		f, err := weights.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if want, err := f.Facts(); err != nil || rec.Facts != want || rec.Validate() != nil || rec.Format != model.FormatSafetensors || rec.Digest != model.DigestOf(rec.Files) {
			t.Errorf("%+v (%v)", rec, err)
		}
		for _, f := range rec.Files {
			if c := files[f.Path].Content; f.Bytes != int64(len(c)) || f.SHA256 != digest(c) {
				t.Errorf("%+v, want %d bytes with %s", f, len(c), digest(c))
			}
		}
	}
	for name, test := range map[string]struct {
		order  v1alpha1.Inspection
		reason string
	}{
		"a digest of one":   {order: v1alpha1.Inspection{Source: "oci://" + host + "/org/tiny:q4", SHA256: strings.Repeat("0", 64)}, reason: v1alpha1.ReasonSourceForbidden},
		"a hub's token":     {order: v1alpha1.Inspection{Source: "oci://" + host + "/org/tiny:q4", TokenRef: "hub"}, reason: v1alpha1.ReasonTokenRefused},
		"a wrong login":     {order: v1alpha1.Inspection{Source: "oci://" + host + "/org/tiny:q4", TokenRef: "other"}, reason: v1alpha1.ReasonTokenRefused},
		"another tag":       {order: v1alpha1.Inspection{Source: "oci://" + host + "/org/tiny:q8", TokenRef: "ref"}, reason: v1alpha1.ReasonSourceNotFound},
		"none of its files": {order: v1alpha1.Inspection{Source: "oci://" + host + "/org/tiny:q4", TokenRef: "ref", Files: []string{"*.gguf"}}, reason: v1alpha1.ReasonInvalidModel},
	} {
		if _, err := r.Resolve(t.Context(), test.order); download.Reason(err, "") != test.reason {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package oci

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/oci/ocitest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Annotations that name a layer's file.
const (
	titleKey = "org.opencontainers.image.title"
	pathKey  = "org.cncf.model.filepath"
)

// stand is a registry, and a client that reaches it.
func stand(t *testing.T, r *ocitest.Registry) (*Client, string) {
	t.Helper()
	srv := httptest.NewTLSServer(r)
	t.Cleanup(srv.Close)
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	c := download.NewClient(download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Roots: pool})
	t.Cleanup(c.Close)
	return &Client{Client: c}, strings.TrimPrefix(srv.URL, "https://")
}

func parse(t *testing.T, source string) Source {
	t.Helper()
	s, err := Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func titled(name, content string) ocitest.Layer {
	return ocitest.Layer{MediaType: "application/vnd.oci.image.layer.v1", Annotations: map[string]string{titleKey: name}, Content: []byte(content)}
}

func TestSourcesOfRegistries(t *testing.T) {
	sum := "sha256:" + strings.Repeat("a", 64)
	for source, want := range map[string]Source{
		"oci://ghcr.io/org/model":                         {Registry: "ghcr.io", Repository: "org/model", Reference: "latest"},
		"oci://ghcr.io/org/model:q4":                      {Registry: "ghcr.io", Repository: "org/model", Reference: "q4"},
		"oci://registry.example:5000/model@" + sum:        {Registry: "registry.example:5000", Repository: "model", Reference: sum},
		"oci://registry.example:5000/a/b__c-d.e:1@" + sum: {Registry: "registry.example:5000", Repository: "a/b__c-d.e", Reference: sum},
		"oci://localhost/model:x":                         {Registry: "localhost", Repository: "model", Reference: "x"},
	} {
		if got := parse(t, source); got != want {
			t.Errorf("%s is %+v, want %+v", source, got, want)
		}
	}
	if got := parse(t, "oci://docker.io/ai/x").BlobURL("00"); got != "https://registry-1.docker.io/v2/ai/x/blobs/sha256:00" {
		t.Error(got)
	}
	for _, source := range []string{"oci://", "oci://ghcr.io", "oci://ghcr.io/", "oci://model:tag", "oci://org/model", "oci://ghcr.io/Org/model", "oci://ghcr.io/org//model",
		"oci://ghcr.io/../model", "oci://ghcr.io/org/model@sha256:abc", "oci://ghcr.io/org/model@md5:" + strings.Repeat("a", 64), "oci://ghcr.io/org/model:a/b", "oci://ghcr.io/org/model:",
		"oci://user@ghcr.io/org/model", "oci://ghcr.io/org/model?x=1", "oci://ghcr.io/org/model#x", "https://ghcr.io/org/model", "oci://ghcr.io:port/model"} {
		if s, err := Parse(source); err == nil || download.Reason(err, "") != v1alpha1.ReasonSourceForbidden {
			t.Errorf("%s is taken for %+v (%v)", source, s, err)
		}
	}
}

func TestEachLayerIsAFile(t *testing.T) {
	r := &ocitest.Registry{}
	pack := ocitest.Layer{MediaType: "application/vnd.cncf.model.weight.v1.raw", Annotations: map[string]string{pathKey: "sub/model.safetensors", titleKey: "other"}, Content: []byte("weights")}
	r.Push("org/model", "v1", []ocitest.Layer{titled("config.json", "{}"), pack,
		{MediaType: ggufLayer, Content: []byte("gguf")}, {MediaType: "application/vnd.docker.ai.license", Content: []byte("text")}})
	c, host := stand(t, r)
	want := []hub.Entry{{Path: "config.json", Bytes: 2}, {Path: "sub/model.safetensors", Bytes: 7}, {Path: "model.gguf", Bytes: 4}}
	for i, content := range []string{"{}", "weights", "gguf"} {
		want[i].SHA256 = strings.TrimPrefix(ocitest.Sum([]byte(content)), "sha256:")
	}
	got, err := c.List(t.Context(), parse(t, "oci://"+host+"/org/model:v1"), Login{})
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	resp, err := c.File(t.Context(), parse(t, "oci://"+host+"/org/model:v1"), want[1].SHA256, Login{}, http.Header{"Range": {"bytes=1-2"}})
	if err != nil || resp.StatusCode != http.StatusPartialContent {
		t.Fatalf("%v, %v", resp, err)
	}
	resp.Body.Close()
}

func TestArtifactsThatAreNoModelAreRefused(t *testing.T) {
	r := &ocitest.Registry{}
	layer := func(mediaType, name string) []ocitest.Layer {
		l := titled(name, "x")
		l.MediaType = mediaType
		return []ocitest.Layer{titled("config.json", "{}"), l}
	}
	unpacked := titled("folder", "x")
	unpacked.Annotations["io.deis.oras.content.unpack"] = "true"
	one := r.Push("m", "good", []ocitest.Layer{titled("config.json", "{}")})
	r.Push("m", "image", layer("application/vnd.oci.image.layer.v1.tar+gzip", ""))
	r.Push("m", "docker", layer("application/vnd.docker.image.rootfs.diff.tar.gzip", ""))
	r.Push("m", "pack", layer("application/vnd.cncf.model.weight.v1.tar", "model.safetensors"))
	r.Push("m", "zip", layer("application/octet-stream+zstd", "model.safetensors"))
	r.Push("m", "folder", []ocitest.Layer{unpacked})
	r.Push("m", "leaves", layer("application/octet-stream", "../x"))
	r.Push("m", "none", nil)
	r.PushManifest("m", "index", map[string]any{"manifests": []any{map[string]any{"digest": one}, map[string]any{"digest": one}}})
	r.PushManifest("m", "index-of-one", map[string]any{"manifests": []any{map[string]any{"digest": one}}})
	r.PushManifest("m", "sha1", map[string]any{"layers": []any{map[string]any{"digest": "sha1:x", "size": 1, "annotations": map[string]string{titleKey: "x"}}}})
	r.PushManifest("m", "minus", map[string]any{"layers": []any{map[string]any{"digest": one, "size": -1, "annotations": map[string]string{titleKey: "x"}}}})
	r.PushManifest("m", "sha512", map[string]any{"manifests": []any{map[string]any{"digest": "sha512:" + strings.Repeat("0", 128)}}})
	r.Swap("m", "sha512:"+strings.Repeat("0", 128), []byte(`{"layers":[{"digest":"`+one+`","size":1,"annotations":{"`+titleKey+`":"x"}}]}`))
	r.PushManifest("m", "other", map[string]any{"manifests": []any{map[string]any{"digest": "good?other"}}})
	swapped := r.Push("m", "swapped", []ocitest.Layer{titled("config.json", "{1}")})
	r.Swap("m", swapped, []byte(`{"layers":[]}`))
	r.Swap("m", "no-json", []byte("<html>"))
	c, host := stand(t, r)
	for reference, reason := range map[string]string{
		":good": "", ":index-of-one": "", "@" + one: "", ":image": v1alpha1.ReasonUnsupportedModel, ":docker": v1alpha1.ReasonUnsupportedModel, ":pack": v1alpha1.ReasonUnsupportedModel,
		":zip": v1alpha1.ReasonUnsupportedModel, ":folder": v1alpha1.ReasonUnsupportedModel, ":leaves": v1alpha1.ReasonInvalidModel, ":none": v1alpha1.ReasonInvalidModel,
		":index": v1alpha1.ReasonInvalidModel, ":sha1": v1alpha1.ReasonInvalidModel, ":minus": v1alpha1.ReasonInvalidModel, "@" + swapped: v1alpha1.ReasonDigestMismatch,
		":no-json": v1alpha1.ReasonInvalidModel, ":absent": v1alpha1.ReasonSourceNotFound,
		":sha512": v1alpha1.ReasonInvalidModel, ":other": v1alpha1.ReasonInvalidModel,
	} {
		got, err := c.List(t.Context(), parse(t, "oci://"+host+"/m"+reference), Login{})
		if download.Reason(err, "") != reason || (err == nil) != (reason == "") {
			t.Errorf("%s: %v, %v", reference, got, err)
		}
	}
}

// TestATokenThatIsTakenNoLongerIsAskedForAgain, once: it may have been revoked, or the registry may
// have restarted.
func TestATokenThatIsTakenNoLongerIsAskedForAgain(t *testing.T) {
	r := &ocitest.Registry{Auth: "Bearer", Name: "user", Password: "word"}
	layer := titled("config.json", "{}")
	r.Push("org/m", "v1", []ocitest.Layer{layer})
	c, host := stand(t, r)
	s, login := parse(t, "oci://"+host+"/org/m:v1"), Login{"user", "word"}
	for round := range 3 {
		if _, err := c.List(t.Context(), s, login); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		r.Revoke()
		resp, err := c.File(t.Context(), s, strings.TrimPrefix(ocitest.Sum(layer.Content), "sha256:"), login, nil)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		resp.Body.Close()
		r.Revoke()
	}
	if _, tokens := r.Requests(); len(tokens) != 6 {
		t.Errorf("%d tokens were asked for, want one after each that was revoked", len(tokens))
	}
}

// TestATokenEndsByTheClockOnTheWall: that of the processor stands still while a Mac sleeps.
func TestATokenEndsByTheClockOnTheWall(t *testing.T) {
	for _, auth := range []string{"", "Basic", "Bearer"} {
		r := &ocitest.Registry{Auth: auth, Name: "user", Password: "word"}
		r.Push("org/m", "v1", []ocitest.Layer{titled("config.json", "{}")})
		c, host := stand(t, r)
		if _, err := c.List(t.Context(), parse(t, "oci://"+host+"/org/m:v1"), Login{"user", "word"}); err != nil {
			t.Fatal(err)
		}
		for _, token := range c.tokens {
			if token.until != token.until.Round(0) {
				t.Errorf("%q: a token is good until %v", auth, token.until)
			}
		}
	}
}

func TestTheWayToAToken(t *testing.T) {
	right, wrong := Login{"user", "pa:ss"}, Login{"user", "other"}
	for name, test := range map[string]struct {
		registry *ocitest.Registry
		login    Login
		reason   string
	}{
		"open to all":               {registry: &ocitest.Registry{}, login: Login{}, reason: ""},
		"a token for all":           {registry: &ocitest.Registry{Auth: "Bearer"}, login: Login{}, reason: ""},
		"a token for a login":       {registry: &ocitest.Registry{Auth: "Bearer", Name: "user", Password: "pa:ss"}, login: right, reason: ""},
		"a wrong login":             {registry: &ocitest.Registry{Auth: "Bearer", Name: "user", Password: "pa:ss"}, login: wrong, reason: v1alpha1.ReasonTokenRefused},
		"no login":                  {registry: &ocitest.Registry{Auth: "Bearer", Name: "user", Password: "pa:ss"}, login: Login{}, reason: v1alpha1.ReasonTokenRefused},
		"basic":                     {registry: &ocitest.Registry{Auth: "Basic", Name: "user", Password: "pa:ss"}, login: right, reason: ""},
		"a wrong basic":             {registry: &ocitest.Registry{Auth: "Basic", Name: "user", Password: "pa:ss"}, login: wrong, reason: v1alpha1.ReasonTokenRefused},
		"basic without a login":     {registry: &ocitest.Registry{Auth: "Basic", Name: "user", Password: "pa:ss"}, login: Login{}, reason: v1alpha1.ReasonTokenRefused},
		"an unknown scheme":         {registry: &ocitest.Registry{Auth: "Negotiate"}, login: right, reason: v1alpha1.ReasonSourceUnreachable},
		"a token server in clear":   {registry: &ocitest.Registry{Auth: "Bearer", Realm: "http://127.0.0.1:1/token"}, login: right, reason: v1alpha1.ReasonSourceForbidden},
		"a token server in private": {registry: &ocitest.Registry{Auth: "Bearer", Realm: "https://10.0.0.1/token"}, login: right, reason: v1alpha1.ReasonSourceForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			r := test.registry
			r.Push("org/m", "v1", []ocitest.Layer{titled("config.json", "{}")})
			c, host := stand(t, r)
			s := parse(t, "oci://"+host+"/org/m:v1")
			for range 2 {
				if _, err := c.List(t.Context(), s, test.login); download.Reason(err, "") != test.reason || (err == nil) != (test.reason == "") {
					t.Errorf("%v", err)
				}
			}
			if _, tokens := r.Requests(); test.reason == "" && len(tokens) > 1 {
				t.Errorf("a token is asked for each time: %q", tokens)
			}
		})
	}
}

func TestAttackWhatIsNoLogin(t *testing.T) {
	for _, text := range []string{"hf_token", "oci:", "oci:name", "oci:name:", "oci::pass", "oci:a:b:c", "oci:a:%zz", "s3:a", "s3:a:b"} {
		if l, err := ReadLogin(download.Bearer(text)); err == nil || !l.none() {
			t.Errorf("%q is taken for a login", text)
		}
	}
	l, err := ReadLogin("oci:us%3Aer:pa%2Fss")
	if err != nil || l != (Login{"us:er", "pa/ss"}) {
		t.Errorf("%v", err)
	}
	if shown := fmt.Sprintf("%v %+v %#v %s", l, l, l, struct{ L Login }{l}); strings.Contains(shown, "pa/ss") {
		t.Errorf("it prints %s", shown)
	}
}

// TestAttackALoginInManyPieces: the answer of a token server comes byte by byte.
func TestAttackALoginInManyPieces(t *testing.T) {
	const wait, parts, most = 200 * time.Millisecond, 10, 5
	var sent atomic.Int64
	var srv *httptest.Server
	srv = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+srv.URL+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		for sent.Load() < 2*most*parts && r.Context().Err() == nil {
			sent.Add(1)
			fmt.Fprint(w, " ")
			w.(http.Flusher).Flush()
			time.Sleep(wait / parts)
		}
	}))
	t.Cleanup(srv.Close)
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	d := download.NewClient(download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Roots: pool})
	t.Cleanup(d.Close)
	c := &Client{Client: d, LoginTime: wait}
	if _, err := c.Header(t.Context(), parse(t, Scheme+strings.TrimPrefix(srv.URL, "https://")+"/m:x"), Login{}, nil); !download.IsTransient(err) {
		t.Errorf("error is %v", err)
	}
	srv.Close() // waits for the handler
	if n := sent.Load(); n >= most*parts {
		t.Errorf("%d bytes were waited for, a tenth of the time each", n)
	}
}

func TestAManifestHasAnEnd(t *testing.T) {
	r := &ocitest.Registry{}
	r.Push("m", "large", []ocitest.Layer{titled("config.json", "{}")})
	c, host := stand(t, r)
	if _, err := c.List(t.Context(), parse(t, "oci://"+host+"/m:large"), Login{}); err != nil {
		t.Fatal(err)
	}
	r.Swap("m", "large", []byte(`{"layers":[{"digest":"`+ocitest.Sum(nil)+`","size":1,"annotations":{"`+titleKey+`":"x"}}]}`+strings.Repeat(" ", maxManifest)))
	if got, err := c.List(t.Context(), parse(t, "oci://"+host+"/m:large"), Login{}); download.Reason(err, "") != v1alpha1.ReasonInvalidModel {
		t.Errorf("%v, %v", got, err)
	}
}

// TestAManifestOfEmptyLayersCostsNoMoreThanItsText: each of a million empty ones would
// become a descriptor of 100 bytes.
func TestAManifestOfEmptyLayersCostsNoMoreThanItsText(t *testing.T) {
	r := &ocitest.Registry{}
	r.Push("m", "large", nil)
	c, host := stand(t, r)
	r.Swap("m", "large", []byte(`{"layers":[`+strings.Repeat("{},", (maxManifest-64)/3)+`{}]}`))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := c.List(t.Context(), parse(t, "oci://"+host+"/m:large"), Login{})
	runtime.ReadMemStats(&after)
	if download.Reason(err, "") != v1alpha1.ReasonInvalidModel || !strings.Contains(err.Error(), "more than 4096 layers") {
		t.Errorf("%v", err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 32*maxManifest/4 {
		t.Errorf("a manifest of %d bytes took %d", maxManifest, used)
	}
}

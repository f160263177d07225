package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// tenants is a store with the private weights of tenant a, and a server of tenant
// b that serves its own file for every path.
type tenants struct {
	*Store
	stand   *hubtest.Hub
	private model.Record
	fetched atomic.Int64
	refused atomic.Bool // b's token does not grant access to a's repository
}

func newTenants(t *testing.T) *tenants {
	repo, rec := repository()
	repo.Private, repo.Token = true, "good"
	x := &tenants{stand: hubOf(repo), private: rec}
	x.Store = overDir(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/evil/") {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(make([]byte, rec.Files[1].Bytes)))
			return
		}
		x.stand.ServeHTTP(w, r)
	}), filepath.Join(t.TempDir(), "weights"))
	x.sources.credential = func(ref string) (download.Bearer, error) {
		if ref == "b" && x.refused.Load() {
			return "bad", nil
		}
		if ref == "deleted" { // its Secret
			return "", &download.Error{Reason: v1alpha1.ReasonTokenMissing, Transient: true, Status: http.StatusUnauthorized, Message: "waiting for the token"}
		}
		return "good", nil
	}
	x.sources.fetched = func(_ string, n int) { x.fetched.Add(int64(n)) }
	return x
}

func (x *tenants) brought(t *testing.T) string {
	t.Helper()
	path, err := x.Ensure(t.Context(), x.private, "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	x.fetched.Store(0)
	return path
}

// TestAttackWeightsOfAnotherTenantByTheirDigest: tenant b knows the digest of a's
// weights, and claims that its own source has them.
func TestAttackWeightsOfAnotherTenantByTheirDigest(t *testing.T) {
	w := newWorld(t)
	w.serve("/evil.gguf", otherBytes(w.content))
	claim := recordOf(w.origin.URL+"/evil.gguf", w.content)
	t.Run("at an address", func(t *testing.T) {
		s, stop := w.start()
		if _, err := s.Ensure(t.Context(), recordOf(w.source(), w.content), "", nil); err != nil {
			t.Fatal(err)
		}
		for range 2 { // and after a restart
			path, err := s.Ensure(t.Context(), claim, "", nil)
			if path != "" || download.Reason(err, "") != v1alpha1.ReasonDigestMismatch || w.partials() != 0 {
				t.Errorf("%q, %v, %d parts are left", path, err, w.partials())
			}
			stop()
			s, stop = w.start()
		}
		before := w.requests.Load()
		if path, err := s.Ensure(t.Context(), recordOf(w.source(), w.content), "", nil); err != nil || path == "" || w.requests.Load() != before {
			t.Errorf("its owner is given %q, %v after %d requests", path, err, w.requests.Load()-before)
		}
	})
	t.Run("of the model root", func(t *testing.T) {
		s, _ := w.start()
		w.put("m.gguf", w.content)
		if _, err := s.Ensure(t.Context(), recordOf("file:///m.gguf", w.content), "", nil); err != nil {
			t.Fatal(err)
		}
		if path, err := s.Ensure(t.Context(), claim, "", nil); err == nil {
			t.Errorf("it is given %s", path)
		}
	})
	t.Run("while they are downloaded", claimWeightsDuringTheirDownload)
	t.Run("one file of them", claimOneFile)
}

// otherBytes are as many bytes as content, of which one differs.
func otherBytes(content []byte) []byte {
	evil := append([]byte(nil), content...)
	evil[9] ^= 1
	return evil
}

func claimWeightsDuringTheirDownload(t *testing.T) {
	w := newWorld(t)
	w.gate = make(chan struct{})
	w.serve("/evil.gguf", otherBytes(w.content))
	s, _ := w.start()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tried := false
	_, err := s.Ensure(ctx, recordOf(w.source(), w.content), "", func(p v1alpha1.Progress) {
		if tried || p.BytesDone == 0 {
			return
		}
		tried = true
		path, err := s.Ensure(ctx, recordOf(w.origin.URL+"/evil.gguf", w.content), "", nil)
		if path != "" || download.Reason(err, "") != v1alpha1.ReasonDigestMismatch {
			t.Errorf("%q, %v", path, err)
		}
		close(w.gate)
	})
	if err != nil {
		t.Error(err)
	}
}

// claimOneFile names one file of the private weights, next to one of its own.
func claimOneFile(t *testing.T) {
	x := newTenants(t)
	x.brought(t)
	if path, err := x.Ensure(t.Context(), x.claim(), "b", nil); err == nil {
		t.Errorf("it is given %s", path)
	}
}

const claimedConfig = `{"mine":1}`

// claim is a repository of tenant b that names a file of the private weights, and has other bytes.
func (x *tenants) claim() model.Record {
	config := hubtest.File{Content: []byte(claimedConfig)}
	repo := hubtest.Of(map[string]hubtest.File{"config.json": config, "model.safetensors": {Content: make([]byte, x.private.Files[1].Bytes)}})
	x.stand.Put("b/claims", repo)
	rec := model.Record{Source: "hf://b/claims", Commit: repo.Refs["main"], Format: model.FormatSafetensors, Files: []model.File{
		{Path: "config.json", Bytes: int64(len(config.Content)), SHA256: digest(config.Content)},
		{Path: "model.safetensors", Bytes: x.private.Files[1].Bytes, SHA256: x.private.Files[1].SHA256},
	}}
	rec.Digest = model.DigestOf(rec.Files)
	return rec
}

// TestAnotherCredentialIsCheckedAtTheSource before it may use stored weights; it
// is checked once, without a download.
func TestAnotherCredentialIsCheckedAtTheSource(t *testing.T) {
	x := newTenants(t)
	path := x.brought(t)
	x.refused.Store(true)
	got, err := x.Ensure(t.Context(), x.private, "b", nil)
	if got != "" || download.Reason(err, "") != v1alpha1.ReasonTokenRefused {
		t.Fatalf("with a token that is refused: %q, %v", got, err)
	}
	if got, err = x.Ensure(t.Context(), x.private, "", nil); got != "" || download.Reason(err, "") != v1alpha1.ReasonSourceNotFound {
		t.Errorf("without a token: %q, %v", got, err)
	}
	x.refused.Store(false)
	if got, err = x.Ensure(t.Context(), x.private, "b", nil); err != nil || got != path || x.fetched.Load() != 0 {
		t.Fatalf("with a token that is good: %q, %v, %d bytes fetched", got, err, x.fetched.Load())
	}
	before := len(x.stand.Requests())
	for _, ref := range []string{"a", "b"} {
		if got, err = x.Ensure(t.Context(), x.private, ref, nil); err != nil || got != path || len(x.stand.Requests()) != before {
			t.Errorf("%s again: %q, %v, %d requests", ref, got, err, len(x.stand.Requests())-before)
		}
	}
}

// TestWeightsWithoutNotesOfTheirCredential, as older stores have them, are
// checked at their source.
func TestWeightsWithoutNotesOfTheirCredential(t *testing.T) {
	x := newTenants(t)
	path := x.brought(t)
	if err := x.objects.update(x.private.Digest, func(e entry) entry { e.Origins = nil; return e }); err != nil {
		t.Fatal(err)
	}
	before := len(x.stand.Requests())
	got, err := x.Ensure(t.Context(), x.private, "a", nil)
	if err != nil || got != path || len(x.stand.Requests()) == before || x.fetched.Load() != 0 {
		t.Errorf("%q, %v, %d requests, %d bytes fetched", got, err, len(x.stand.Requests())-before, x.fetched.Load())
	}
	b, err := os.ReadFile(filepath.Join(x.opt.Dir, folder(x.private.Digest), recordName))
	var e entry
	if err = errors.Join(err, json.Unmarshal(b, &e)); err != nil || !e.entitles(want{x.private, "a"}.origin()) {
		t.Errorf("noted are %+v, %v", e.Origins, err)
	}
}

// TestAttackManyCredentialsForWeightsOfOthers lets a namespace use weights that others use
// with more credentials than are remembered.
func TestAttackManyCredentialsForWeightsOfOthers(t *testing.T) {
	_, rec := repository()
	source := func(namespace, ref string) granted {
		return granted{origin: origin{placeOf(rec.Source), ref}, Namespace: namespace}
	}
	e := entry{Record: rec, Origins: []granted{source("a", "a")}}
	e = e.with(source("b", "b1")).with(source("b", "b2"))
	last := ""
	for i := range 3 * maxOrigins {
		last = fmt.Sprint("evil", i)
		e = e.with(source("evil", last))
	}
	for _, ref := range []string{"a", "b1", "b2", last} {
		if !e.entitles(origin{placeOf(rec.Source), ref}) {
			t.Errorf("credential %s was forgotten", ref)
		}
	}
	if len(e.Origins) != maxOrigins || e.namespace() != "a" {
		t.Errorf("%d origins are kept, the first of namespace %s", len(e.Origins), e.namespace())
	}
}

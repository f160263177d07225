//go:build !race

package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/model"
)

// mendable is a store with a model root and downloads from a server.
func mendable(t *testing.T, dir string, srv *httptest.Server) *store.Store {
	t.Helper()
	root, err := store.OpenRoot(dir, filepath.Join(t.TempDir(), "known"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	client := download.NewClient(download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Roots: rootsOf(srv)})
	t.Cleanup(client.Close)
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Root: root, Fetch: &download.Fetcher{Client: client}, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestASourceThatFailedMayBeMended: whether a download is tried again soon. A server that denied a file
// may serve it later, and a file of the model root may be restored, as its message advises. Only what
// would be downloaded whole is not.
func TestASourceThatFailedMayBeMended(t *testing.T) {
	const content, other = "the model's bytes", "quite other bytes"
	sum := sha256.Sum256([]byte(content))
	status, body := http.StatusOK, content
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	defer srv.Close()
	dir := t.TempDir()
	s := mendable(t, dir, srv)
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "m.gguf"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		source string
		status int
		body   string
		final  bool
	}{
		"denied":                        {source: srv.URL, status: http.StatusForbidden},
		"denied without authorization":  {source: srv.URL, status: http.StatusUnauthorized},
		"a page in place of the file":   {source: srv.URL, status: http.StatusOK, body: "<html>We are back soon.</html>"},
		"at a private address":          {source: "https://10.0.0.1/m.gguf", status: http.StatusOK},
		"other bytes of a server":       {source: srv.URL, status: http.StatusOK, body: other, final: true},
		"other bytes of the model root": {source: "file://m.gguf", body: other},
		"a longer file of it":           {source: "file://m.gguf", body: content + content},
	} {
		t.Run(name, func(t *testing.T) {
			files := []model.File{{Path: store.SingleFile, Bytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}}
			rec := model.Record{Source: tc.source, Format: model.FormatGGUF, Files: files, Digest: model.DigestOf(files)}
			status, body = tc.status, tc.body
			write(tc.body)
			_, err := weights{s}.Ensure(t.Context(), rec, "", func(int64, int64) {})
			var failed *pool.DownloadError
			if !errors.As(err, &failed) || failed.Final != tc.final {
				t.Fatalf("%+v (%v), want final %v", failed, err, tc.final)
			}
			status, body = http.StatusOK, content
			write(content)
			if rec.Source == "https://10.0.0.1/m.gguf" { // the Mac's settings may allow it
				return
			}
			if _, err := (weights{s}).Ensure(t.Context(), rec, "", func(int64, int64) {}); err != nil {
				t.Errorf("after it was mended: %v", err)
			}
			if err := os.Remove(filepath.Join(dir, "m.gguf")); err != nil {
				t.Error(err)
			}
			if _, err := s.Remove(rec.Digest); err != nil {
				t.Error(err)
			}
		})
	}
}

package system

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/tinymodel"
)

// remote is a web server with one model under two names. The first long answer
// for url breaks off; what is at forged is whole and not what its name promises.
type remote struct {
	url, forged, sha256 string
	roots               string // file with the certificate to trust
	size                int64

	mu     sync.Mutex
	broke  bool
	ranges []string // Range headers since then
	sent   int64    // bytes of all bodies
}

func newRemote(t *testing.T) *remote {
	t.Helper()
	file := filepath.Join(t.TempDir(), "remote.gguf")
	if err := tinymodel.Write(file, slow(3)); err != nil { // content that no model root holds
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	r := &remote{sha256: hex.EncodeToString(sum[:]), size: int64(len(content))}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("ETag", `"`+r.sha256+`"`)
		switch q.URL.Path {
		default:
			http.NotFound(w, q)
			return
		case "/models/forged.gguf":
			http.ServeContent(w, q, "", time.Time{}, strings.NewReader(string(content)))
			return
		case "/models/remote.gguf":
		}
		r.note(q.Header.Get("Range"))
		http.ServeContent(&fragile{ResponseWriter: w, remote: r, left: r.size * 2 / 5}, q, "", time.Time{}, strings.NewReader(string(content)))
	}))
	t.Cleanup(server.Close)
	r.url, r.forged = server.URL+"/models/remote.gguf", server.URL+"/models/forged.gguf"
	r.roots = filepath.Join(t.TempDir(), "roots.pem")
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(r.roots, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *remote) note(header string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broke {
		r.ranges = append(r.ranges, header)
	}
}

// fragile breaks one answer of the server off in its midst, once.
type fragile struct {
	http.ResponseWriter
	remote *remote
	left   int64
}

func (f *fragile) Write(p []byte) (int, error) {
	f.remote.mu.Lock()
	f.remote.sent += int64(len(p))
	f.left -= int64(len(p))
	breaks := f.left < 0 && !f.remote.broke
	f.remote.broke = f.remote.broke || breaks
	f.remote.mu.Unlock()
	if breaks {
		panic(http.ErrAbortHandler)
	}
	n, err := f.ResponseWriter.Write(p)
	if flusher, ok := f.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
	return n, err
}

// resumed says whether a request after the break asked for the rest alone.
func (r *remote) resumed() (bool, []string, int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, header := range r.ranges {
		if from, ok := strings.CutPrefix(header, "bytes="); ok && !strings.HasPrefix(from, "0-") {
			return true, r.ranges, r.sent
		}
	}
	return false, r.ranges, r.sent
}

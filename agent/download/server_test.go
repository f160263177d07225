package download

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"
)

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}

// blob is pseudo-random content, the same in every run.
func blob(size int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, size)
	r.Read(b)
	return b
}

func digest(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// origin serves one file over TLS and records its requests.
type origin struct {
	*httptest.Server
	mu       sync.Mutex
	content  []byte
	etag     string
	cuts     []int // bytes after which the next responses break off
	requests []http.Header
}

func newOrigin(t *testing.T, content []byte) *origin {
	o := &origin{content: content, etag: `"one"`}
	o.Server = httptest.NewTLSServer(o)
	t.Cleanup(o.Close)
	return o
}

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	content, etag, cut := o.content, o.etag, -1
	if len(o.cuts) > 0 {
		cut, o.cuts = o.cuts[0], o.cuts[1:]
	}
	o.requests = append(o.requests, r.Header.Clone())
	o.mu.Unlock()
	w.Header().Set("ETag", etag)
	if cut >= 0 {
		w = &cutter{ResponseWriter: w, left: cut}
	}
	http.ServeContent(w, r, "model.gguf", time.Time{}, bytes.NewReader(content))
}

func (o *origin) seen() []http.Header {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]http.Header(nil), o.requests...)
}

// cutter breaks the connection after some bytes of the body.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	if len(p) <= c.left {
		c.left -= len(p)
		return c.ResponseWriter.Write(p)
	}
	c.ResponseWriter.Write(p[:c.left])
	c.ResponseWriter.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

func rootsOf(srv *httptest.Server) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	return pool
}

func clientFor(t *testing.T, srv *httptest.Server) *Client {
	c := NewClient(Policy{Allow: loopback, Roots: rootsOf(srv), Stall: 20 * time.Second})
	t.Cleanup(c.Close)
	return c
}

// place is a folder to fetch into.
func place(t *testing.T) *os.Root {
	r, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func exists(r *os.Root, name string) bool {
	_, err := r.Stat(name)
	return err == nil
}

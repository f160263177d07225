//go:build !race

package system

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// webModel is a web server with one model, which interrupts its answers.
type webModel struct {
	server *httptest.Server
	url    string
	sha256 string
	size   int64
	// interrupt is called in the midst of an answer, after breakAt bytes.
	breakAt   int64
	interrupt func(*http.Request)

	mu     sync.Mutex // guards what follows
	ranges []string   // Range headers of the requests
	sent   int64      // bytes of all bodies
}

// newWebModel serves a model that no model root has.
func newWebModel(t *testing.T, c tinymodel.Config) *webModel {
	t.Helper()
	file := filepath.Join(t.TempDir(), "model.gguf")
	must(t, tinymodel.Write(file, c))
	content, err := os.ReadFile(file)
	must(t, err)
	sum := sha256.Sum256(content)
	m := &webModel{sha256: hex.EncodeToString(sum[:]), size: int64(len(content)), interrupt: func(*http.Request) {}}
	m.breakAt = m.size / 3
	m.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		m.mu.Lock()
		m.ranges = append(m.ranges, q.Header.Get("Range"))
		m.mu.Unlock()
		w.Header().Set("ETag", `"`+m.sha256+`"`)
		http.ServeContent(&interrupted{ResponseWriter: w, request: q, model: m}, q, "", time.Time{}, strings.NewReader(string(content)))
	}))
	t.Cleanup(func() {
		m.server.CloseClientConnections()
		m.server.Close()
	})
	m.url = m.server.URL + "/models/model.gguf"
	return m
}

// interrupted calls interrupt once after the first bytes of an answer.
type interrupted struct {
	http.ResponseWriter
	request *http.Request
	model   *webModel
	sent    int64
}

func (w *interrupted) Write(p []byte) (int, error) {
	if before := w.sent; before < w.model.breakAt && before+int64(len(p)) >= w.model.breakAt {
		if f, ok := w.ResponseWriter.(http.Flusher); ok {
			f.Flush()
		}
		w.model.interrupt(w.request)
	}
	n, err := w.ResponseWriter.Write(p)
	w.sent += int64(n)
	w.model.mu.Lock()
	w.model.sent += int64(n)
	w.model.mu.Unlock()
	return n, err
}

// breakOnce has the first long answer break off.
func (m *webModel) breakOnce() {
	var once sync.Once
	m.interrupt = func(*http.Request) {
		once.Do(func() { panic(http.ErrAbortHandler) })
	}
}

// hubFiles are the files in a folder, as a hub has them.
func hubFiles(t *testing.T, dir string, names ...string) map[string]hubtest.File {
	t.Helper()
	files := map[string]hubtest.File{}
	for _, n := range names {
		content, err := os.ReadFile(filepath.Join(dir, n))
		must(t, err)
		files[n] = hubtest.File{Content: content, LFS: strings.HasSuffix(n, ".safetensors")}
	}
	return files
}

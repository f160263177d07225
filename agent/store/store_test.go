package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func blob(size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{2}).Read(b)
	return b
}

func digest(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func recordOf(source string, content []byte) model.Record {
	files := []model.File{{Path: SingleFile, Bytes: int64(len(content)), SHA256: digest(content)}}
	return model.Record{Source: source, Digest: model.DigestOf(files), Format: model.FormatGGUF, Files: files}
}

// world is a Mac's disk and an origin on the network.
type world struct {
	t        *testing.T
	dir      string
	models   string
	origin   *httptest.Server
	requests atomic.Int64
	content  []byte
	// gate, if set, blocks responses after half of the content.
	gate chan struct{}
	// disk, marks, spared and fault are options of the store.
	disk   func() (Disk, error)
	marks  Marks
	spared func() (func(string) bool, bool)
	fault  func(string)
	// namespace is an option of the store, too.
	namespace func(model.Record, string) string
	// others are served by their paths, in place of content.
	others sync.Map
}

// serve makes the origin serve other content at a path.
func (w *world) serve(path string, content []byte) { w.others.Store(path, content) }

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "weights"), models: t.TempDir(), content: blob(1 << 20)}
	w.origin = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.requests.Add(1)
		rw.Header().Set("ETag", `"v"`)
		if other, ok := w.others.Load(r.URL.Path); ok {
			http.ServeContent(rw, r, "m", time.Time{}, bytes.NewReader(other.([]byte)))
			return
		}
		if w.gate != nil && r.Header.Get("Range") == "" {
			rw.Header().Set("Content-Length", "1048576")
			rw.Write(w.content[:1<<19])
			rw.(http.Flusher).Flush()
			select {
			case <-w.gate:
			case <-r.Context().Done():
				return
			}
			rw.Write(w.content[1<<19:])
			return
		}
		http.ServeContent(rw, r, "m", time.Time{}, bytes.NewReader(w.content))
	}))
	t.Cleanup(w.origin.Close)
	return w
}

// one returns the only namespace that wants a record; nil for nil.
func one(of func(model.Record, string) string) func(model.Record, string) []string {
	if of == nil {
		return nil
	}
	return func(r model.Record, ref string) []string { return []string{of(r, ref)} }
}

// start opens a store over the world; stop ends it as an agent's shutdown does.
func (w *world) start() (s *Store, stop func()) {
	w.t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(w.origin.Certificate())
	client := download.NewClient(download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Roots: pool})
	root, err := OpenRoot(w.models, filepath.Join(w.dir, "model-root.json"), logr.Discard())
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err = Open(ctx, Options{Dir: w.dir, Root: root, Fetch: &download.Fetcher{Client: client, Backoff: time.Millisecond}, Log: logr.Discard(),
		Disk: w.disk, Marks: w.marks, Spared: w.spared, Fault: w.fault, Namespaces: one(w.namespace)})
	if err != nil {
		w.t.Fatal(err)
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			s.Close()
			root.Close()
			client.Close()
		})
	}
	w.t.Cleanup(stop)
	return s, stop
}

func (w *world) source() string { return w.origin.URL + "/m.gguf" }

// put writes a file into the model root, with a modification time in the past.
func (w *world) put(name string, content []byte) string {
	w.t.Helper()
	p := filepath.Join(w.models, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(p, content, 0o644); err != nil {
		w.t.Fatal(err)
	}
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(p, past, past); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// partials counts the unfinished downloads.
func (w *world) partials() int {
	w.t.Helper()
	l, err := os.ReadDir(filepath.Join(w.dir, partialDir))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(l)
}

func wantContent(t *testing.T, path string, err error, want []byte) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%s holds %d bytes (%v), want %d", path, len(got), err, len(want))
	}
}

func wantReason(t *testing.T, err error, reason string) {
	t.Helper()
	if err == nil || download.Reason(err, "") != reason {
		t.Fatalf("error is %v, want reason %s", err, reason)
	}
}

func TestEnsureDownloadsOnceForAll(t *testing.T) {
	w := newWorld(t)
	s, _ := w.start()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			path, err := s.Ensure(t.Context(), recordOf(w.source(), w.content), "", nil)
			if err != nil || !strings.HasSuffix(path, SingleFile) {
				t.Errorf("%q %v", path, err)
			}
		})
	}
	wg.Wait()
	if n := w.requests.Load(); n != 1 {
		t.Errorf("%d downloads of one content", n)
	}
	path, err := s.Ensure(t.Context(), recordOf(w.origin.URL+"/other-name.gguf", w.content), "", nil)
	wantContent(t, path, err, w.content)
	if l := s.List(); len(l) != 1 || l[0].Bytes != 1<<20 || s.WeightsBytes() != 1<<20 {
		t.Errorf("list is %+v", l)
	}
	if w.partials() != 0 {
		t.Error("a part is left")
	}
}

func TestEnsureReportsProgressInBytes(t *testing.T) {
	w := newWorld(t)
	w.gate = make(chan struct{})
	s, _ := w.start()
	var last v1alpha1.Progress
	var open sync.Once
	path, err := s.Ensure(t.Context(), recordOf(w.source(), w.content), "", func(p v1alpha1.Progress) {
		if last = p; p.Stage == v1alpha1.StageDownloading && p.BytesDone > 0 {
			open.Do(func() { close(w.gate) })
		}
	})
	wantContent(t, path, err, w.content)
	if last.Stage != v1alpha1.StageDownloading || last.BytesTotal != 1<<20 || last.BytesDone == 0 {
		t.Errorf("last progress is %+v", last)
	}
}

func TestStoredWeightsSurviveARestart(t *testing.T) {
	w := newWorld(t)
	s, stop := w.start()
	rec := recordOf(w.source(), w.content)
	if _, err := s.Ensure(t.Context(), rec, "", nil); err != nil {
		t.Fatal(err)
	}
	stop()
	w.origin.Close()
	s, _ = w.start()
	if l := s.List(); len(l) != 1 || l[0].Digest != rec.Digest {
		t.Errorf("list is %+v", l)
	}
	path, err := s.Ensure(t.Context(), rec, "", nil)
	wantContent(t, path, err, w.content)
}

func TestDamagedWeightsAreFetchedAnew(t *testing.T) {
	w := newWorld(t)
	s, _ := w.start()
	rec := recordOf(w.source(), w.content)
	path, err := s.Ensure(t.Context(), rec, "", nil)
	wantContent(t, path, err, w.content)
	bad := append([]byte(nil), w.content...)
	bad[1000] ^= 1
	if err := os.WriteFile(path, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(path, past, past); err != nil { // two writes may fall into one tick of the clock
		t.Fatal(err)
	}
	if err := s.Collect(); err != nil {
		t.Fatal(err)
	}
	if l := s.List(); len(l) != 0 {
		t.Errorf("damaged weights are listed: %+v", l)
	}
	path, err = s.Ensure(t.Context(), rec, "", nil)
	wantContent(t, path, err, w.content)
	if n := w.requests.Load(); n != 2 {
		t.Errorf("%d downloads, want 2", n)
	}
}

func TestTouchedWeightsAreVerifiedNotFetched(t *testing.T) {
	w := newWorld(t)
	s, _ := w.start()
	rec := recordOf(w.source(), w.content)
	path, err := s.Ensure(t.Context(), rec, "", nil)
	wantContent(t, path, err, w.content)
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, past, past); err != nil {
		t.Fatal(err)
	}
	path, err = s.Ensure(t.Context(), rec, "", nil)
	wantContent(t, path, err, w.content)
	if n := w.requests.Load(); n != 1 || len(s.List()) != 1 {
		t.Errorf("%d downloads, list %+v", n, s.List())
	}
}

func TestRemoveGivesBackTheDisk(t *testing.T) {
	w := newWorld(t)
	s, _ := w.start()
	rec := recordOf(w.source(), w.content)
	path, err := s.Ensure(t.Context(), rec, "", nil)
	wantContent(t, path, err, w.content)
	h := s.Hold(rec.Digest)
	if _, err := s.Remove(rec.Digest); !errors.Is(err, errInUse) {
		t.Errorf("held weights: %v", err)
	}
	h.Release()
	h.Release()
	if n, err := s.Remove(rec.Digest); err != nil || n != 1<<20 {
		t.Errorf("removed %d bytes, %v", n, err)
	}
	if _, err := os.Stat(path); err == nil || len(s.List()) != 0 {
		t.Error("the weights are still there")
	}
	if l, _ := os.ReadDir(filepath.Join(w.dir, trashDir)); len(l) != 0 {
		t.Error("the disk did not come back")
	}
	if n, err := s.Remove(rec.Digest); err != nil || n != 0 {
		t.Errorf("removed again: %d bytes, %v", n, err)
	}
}

func TestRemoveRefusesADownloadUnderWay(t *testing.T) {
	w := newWorld(t)
	w.gate = make(chan struct{})
	s, _ := w.start()
	rec := recordOf(w.source(), w.content)
	var seen error
	_, err := s.Ensure(t.Context(), rec, "", func(p v1alpha1.Progress) {
		if seen == nil {
			_, seen = s.Remove(rec.Digest)
			close(w.gate)
		}
	})
	if err != nil || !errors.Is(seen, errInUse) {
		t.Errorf("ensure: %v, remove: %v", err, seen)
	}
}

// A caller that leaves does not disturb another; when the last one leaves, the
// space is free when Ensure returns.
func TestCancelReturnsTheDisk(t *testing.T) {
	w := newWorld(t)
	w.gate = make(chan struct{})
	s, _ := w.start()
	rec := recordOf(w.source(), w.content)
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	_, err := s.Ensure(ctx, rec, "", func(p v1alpha1.Progress) {
		if p.BytesDone == 0 || ctx.Err() != nil {
			return
		}
		go func() {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := s.Ensure(ctx, rec, "", func(p v1alpha1.Progress) { cancel() })
			second <- err
		}()
		if err := <-second; !errors.Is(err, context.Canceled) {
			t.Errorf("second caller: %v", err)
		}
		if w.partials() != 1 {
			t.Error("one caller left and took the other's download with it")
		}
		cancel()
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error is %v", err)
	}
	if w.partials() != 0 {
		t.Error("the part still takes disk")
	}
	close(w.gate)
	path, err := s.Ensure(t.Context(), rec, "", nil)
	wantContent(t, path, err, w.content)
}

func TestShutdownKeepsThePartForAResume(t *testing.T) {
	w := newWorld(t)
	w.gate = make(chan struct{})
	s, stop := w.start()
	rec := recordOf(w.source(), w.content)
	stopped := make(chan struct{})
	var once sync.Once
	_, err := s.Ensure(t.Context(), rec, "", func(p v1alpha1.Progress) {
		if p.BytesDone > 0 { // which may be called more than once before it ends
			once.Do(func() { go func() { stop(); close(stopped) }() })
		}
	})
	if err == nil {
		t.Fatal("a download ended well in spite of the shutdown")
	}
	<-stopped
	if w.partials() != 1 {
		t.Fatal("the part is gone")
	}
	s, _ = w.start()
	path, err := s.Ensure(t.Context(), rec, "", nil) // the gate is closed: only a Range request is served
	wantContent(t, path, err, w.content)
}

func TestStartClearsWhatACrashLeft(t *testing.T) {
	w := newWorld(t)
	name := strings.Repeat("a", 64)
	for _, p := range []string{name + "/files/model.gguf", "trash/x/files/model.gguf", "partial/" + strings.Repeat("b", 64) + "-0123456789abcdef/files/model.gguf", "partial/stray/x"} {
		p = filepath.Join(w.dir, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("left"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-1000 * time.Hour) // a download of a large model over a slow line takes days
	old := filepath.Join(w.dir, "partial", strings.Repeat("b", 64)+"-0123456789abcdef")
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	s, _ := w.start()
	if _, err := os.Stat(filepath.Join(w.dir, name)); err == nil {
		t.Error("weights without a record are kept")
	}
	if l, _ := os.ReadDir(filepath.Join(w.dir, trashDir)); len(l) != 0 || w.partials() != 1 {
		t.Errorf("trash %v and %d parts are kept, want the one that may be resumed", l, w.partials())
	}
	if err := s.Prune(nil); err != nil || w.partials() != 0 {
		t.Errorf("%d parts are kept that no assignment would resume, %v", w.partials(), err)
	}
	if l := s.List(); len(l) != 0 {
		t.Errorf("list is %+v", l)
	}
}

func TestFullDiskIsSaidBeforeTheDownload(t *testing.T) {
	w := newWorld(t)
	w.disk = func() (Disk, error) { return Disk{Free: diskMargin + 1<<20 - 1}, nil }
	s, _ := w.start()
	_, err := s.Ensure(t.Context(), recordOf(w.source(), w.content), "", nil)
	wantReason(t, err, v1alpha1.ReasonDiskFull)
	if w.requests.Load() != 0 || w.partials() != 0 {
		t.Errorf("%d requests, %d parts", w.requests.Load(), w.partials())
	}
}

func TestWrongDownloadLeavesNothing(t *testing.T) {
	w := newWorld(t)
	s, _ := w.start()
	rec := recordOf(w.source(), w.content)
	w.content = append([]byte(nil), w.content...)
	w.content[5] ^= 1
	_, err := s.Ensure(t.Context(), rec, "", nil)
	wantReason(t, err, v1alpha1.ReasonDigestMismatch)
	if w.partials() != 0 || len(s.List()) != 0 {
		t.Error("the wrong file takes disk")
	}
}

func TestAttackHostileRecordsAreRefused(t *testing.T) {
	w := newWorld(t)
	s, _ := w.start()
	w.put("m.gguf", w.content)
	for name, change := range map[string]func(*model.Record){
		"path with dots":      func(r *model.Record) { r.Files[0].Path = "../../escape" },
		"absolute path":       func(r *model.Record) { r.Files[0].Path = "/etc/cron.d/x" },
		"no files":            func(r *model.Record) { r.Files = nil },
		"digest of others":    func(r *model.Record) { r.Digest = "sha256:" + strings.Repeat("0", 64) },
		"digest with a path":  func(r *model.Record) { r.Digest = "sha256:../../escape" },
		"upper-case digest":   func(r *model.Record) { r.Files[0].SHA256 = strings.ToUpper(r.Files[0].SHA256) },
		"more than one file":  func(r *model.Record) { r.Files = append(r.Files, model.File{Path: "b", Bytes: 1, SHA256: digest(nil)}) },
		"plain http":          func(r *model.Record) { r.Source = "http://example.com/m.gguf" },
		"leaves the root":     func(r *model.Record) { r.Source = "file:///../m.gguf" },
		"no scheme":           func(r *model.Record) { r.Source = "/etc/passwd" },
		"size of another one": func(r *model.Record) { r.Files[0].Bytes++ },
		"malformed bucket":    func(r *model.Record) { r.Source = "s3://A" },
		"malformed registry":  func(r *model.Record) { r.Source = "oci://A" },
	} {
		t.Run(name, func(t *testing.T) {
			rec := recordOf("file:///m.gguf", w.content)
			change(&rec)
			if !strings.Contains(name, "digest") {
				rec.Digest = model.DigestOf(rec.Files)
			}
			path, err := s.Ensure(t.Context(), rec, "", nil)
			if err == nil || download.Reason(err, "") == "" {
				t.Fatalf("got %q, error %v", path, err)
			}
		})
	}
}

func TestModelRootIsUsedInPlaceAndVerified(t *testing.T) {
	w := newWorld(t)
	s, _ := w.start()
	file := w.put("llm/m.gguf", w.content)
	rec := recordOf("file://llm/m.gguf", w.content)
	path, err := s.Ensure(t.Context(), rec, "", nil)
	if err != nil || path != file {
		t.Fatalf("%q %v, want %q", path, err, file)
	}
	if l := s.List(); len(l) != 1 || l[0].Digest != rec.Digest || s.WeightsBytes() != 0 {
		t.Errorf("list is %+v, %d bytes in the store", l, s.WeightsBytes())
	}

	bad := append([]byte(nil), w.content...)
	bad[9] ^= 1
	w.put("llm/m.gguf", bad)
	_, err = s.Ensure(t.Context(), rec, "", nil)
	wantReason(t, err, v1alpha1.ReasonDigestMismatch)
	w.put("llm/m.gguf", bad[:100])
	_, err = s.Ensure(t.Context(), rec, "", nil)
	wantReason(t, err, v1alpha1.ReasonDigestMismatch)
	if l := s.List(); len(l) == 1 && l[0].Digest == rec.Digest {
		t.Error("a changed file is listed as what it was")
	}
	os.Remove(file)
	_, err = s.Ensure(t.Context(), rec, "", nil)
	wantReason(t, err, v1alpha1.ReasonSourceNotFound)
	if l := s.List(); len(l) != 0 {
		t.Errorf("a removed file is listed: %+v", l)
	}
}

func TestAttackModelRootKeepsReadersInside(t *testing.T) {
	w := newWorld(t)
	outside := filepath.Join(t.TempDir(), "secret.gguf")
	if err := os.WriteFile(outside, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.put("in/m.gguf", w.content)
	w.put("two/a.gguf", w.content)
	w.put("two/b.gguf", w.content)
	w.put("none/readme", nil)
	for link, to := range map[string]string{
		"absolute.gguf": outside, "relative.gguf": "../" + filepath.Base(filepath.Dir(outside)) + "/secret.gguf", "folder": filepath.Dir(outside),
		"inside.gguf": "in/m.gguf", "loop.gguf": "loop.gguf", "trap/m.gguf": outside, "self.gguf": filepath.Join(w.models, "in/m.gguf"),
	} {
		os.MkdirAll(filepath.Join(w.models, filepath.Dir(link)), 0o755)
		if err := os.Symlink(to, filepath.Join(w.models, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(w.models, "pipe.gguf"), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := OpenRoot(w.models, filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for source, reason := range map[string]string{
		"file:///in/m.gguf": "", "file://in/m.gguf": "", "file:///in": "", "file:///in/": "", "file:///inside.gguf": "", "file:///in/%6d.gguf": "",
		"file:///absent.gguf": v1alpha1.ReasonSourceNotFound, "file:///in/m.gguf/x": v1alpha1.ReasonSourceNotFound, "file:///none": v1alpha1.ReasonSourceNotFound,
		"file:///" + strings.Repeat("x", 300): v1alpha1.ReasonSourceNotFound,
		"file:///two":                         v1alpha1.ReasonInvalidModel,
		"file:///../secret.gguf":              v1alpha1.ReasonSourceForbidden, "file:///in/../../x": v1alpha1.ReasonSourceForbidden, "file:///%2e%2e/x": v1alpha1.ReasonSourceForbidden,
		"file:///etc/passwd": v1alpha1.ReasonSourceNotFound, "file:////etc/passwd": v1alpha1.ReasonSourceForbidden, "file:///%2fetc/passwd": v1alpha1.ReasonSourceForbidden, "file:///a%00b": v1alpha1.ReasonSourceForbidden,
		"file:///a%5cb": v1alpha1.ReasonSourceForbidden, "file:///./x": v1alpha1.ReasonSourceForbidden, "file://": v1alpha1.ReasonSourceForbidden, "file:///": v1alpha1.ReasonSourceForbidden,
		"file:///a%zz": v1alpha1.ReasonSourceForbidden, "file:///in/m.gguf?x": v1alpha1.ReasonSourceForbidden, "file:///in/m.gguf#x": v1alpha1.ReasonSourceForbidden,
		"file:/in/m.gguf": v1alpha1.ReasonSourceForbidden, outside: v1alpha1.ReasonSourceForbidden,
		"file:///absolute.gguf": v1alpha1.ReasonSourceForbidden, "file:///relative.gguf": v1alpha1.ReasonSourceForbidden, "file:///folder/secret.gguf": v1alpha1.ReasonSourceForbidden,
		"file:///loop.gguf": v1alpha1.ReasonSourceForbidden, "file:///trap": v1alpha1.ReasonSourceForbidden, "file:///self.gguf": v1alpha1.ReasonSourceForbidden,
		"file:///pipe.gguf": v1alpha1.ReasonSourceForbidden,
	} {
		l, err := root.Open(source)
		if err == nil {
			defer l.Close()
			if reason != "" || l.Size != int64(len(w.content)) {
				t.Errorf("%s opens %s of %d bytes", source, l.Path(), l.Size)
			}
			continue
		}
		if download.Reason(err, "") != reason {
			t.Errorf("%s: %v has reason %q, want %q", source, err, download.Reason(err, ""), reason)
		}
	}
}

func TestMacWithoutAModelRootHasNoFiles(t *testing.T) {
	root, err := OpenRoot("", "", logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	_, err = root.Open("file:///m.gguf")
	wantReason(t, err, v1alpha1.ReasonSourceNotFound)
	if len(root.held()) != 0 || root.Close() != nil {
		t.Error("it holds something")
	}
	if _, err := OpenRoot(filepath.Join(t.TempDir(), "absent"), "", logr.Discard()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent root: %v", err)
	}
}

// hashes counts how often Sum reads a file.
func hashes(t *testing.T, r *Root, source string) (sum string, read bool) {
	t.Helper()
	l, err := r.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sum, err = r.Sum(t.Context(), l, nil)
	if err != nil {
		t.Fatal(err)
	}
	at, err := l.Seek(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	return sum, at > 0
}

func TestDigestsOfTheModelRootAreRememberedByStamp(t *testing.T) {
	w := newWorld(t)
	notes := filepath.Join(t.TempDir(), "deep", "notes.json")
	open := func() *Root {
		r, err := OpenRoot(w.models, notes, logr.Discard())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	w.put("m.gguf", w.content)
	r := open()
	for i, want := range []bool{true, false} {
		if sum, read := hashes(t, r, "file:///m.gguf"); sum != digest(w.content) || read != want {
			t.Errorf("time %d: read %v, want %v", i, read, want)
		}
	}
	if _, read := hashes(t, open(), "file:///m.gguf"); read {
		t.Error("it is hashed again after a restart")
	}
	other := append([]byte("x"), w.content[1:]...) // same size, another time
	p := w.put("m.gguf", other)
	when := time.Now().Add(-time.Hour)
	os.Chtimes(p, when, when)
	if sum, read := hashes(t, r, "file:///m.gguf"); sum != digest(other) || !read {
		t.Error("a changed file keeps its old digest")
	}
	if err := os.WriteFile(notes, []byte("{broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if sum, read := hashes(t, open(), "file:///m.gguf"); sum != digest(other) || !read {
		t.Error("broken notes are believed")
	}
}

// A file written a moment ago may be written again within the same tick of the
// clock: its digest is not cached.
func TestFreshFilesAreHashedEachTime(t *testing.T) {
	w := newWorld(t)
	p := w.put("m.gguf", w.content)
	r, err := OpenRoot(w.models, filepath.Join(t.TempDir(), "n"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	now := time.Now().Add(time.Minute)
	os.Chtimes(p, now, now)
	for range 2 {
		if _, read := hashes(t, r, "file:///m.gguf"); !read {
			t.Error("the digest of a fresh file is remembered")
		}
	}
}

func TestFreeBytesAreTheDisks(t *testing.T) {
	w := newWorld(t)
	s, _ := w.start()
	if n, err := s.FreeBytes(); err != nil || n <= 0 {
		t.Errorf("%d %v", n, err)
	}
}

func FuzzLocalName(f *testing.F) {
	for _, s := range []string{"file:///a/b", "file://../x", "file:///%2e%2e%2fx", "file:////", "file:///a%00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		name, err := localName(source)
		if err == nil && (!filepath.IsLocal(name) || name == "." || !model.LocalPath(name)) {
			t.Errorf("%q leads to %q", source, name)
		}
	})
}

// The sources of one namespace never end: others are downloaded all the same.
func TestAttackSourcesThatNeverEnd(t *testing.T) {
	w := newWorld(t)
	w.gate = make(chan struct{})
	w.namespace = func(rec model.Record, _ string) string {
		if strings.Contains(rec.Source, "/slow-") {
			return "evil"
		}
		return "team"
	}
	s, _ := w.start()
	begun := make(chan struct{})
	var downloads sync.WaitGroup
	for i := range 2 * FetchesAtOnce {
		downloads.Go(func() {
			var once sync.Once
			_, err := s.Ensure(t.Context(), recordOf(fmt.Sprintf("%s/slow-%d.gguf", w.origin.URL, i), w.content), "", func(p v1alpha1.Progress) {
				if p.BytesDone > 0 {
					once.Do(func() { begun <- struct{}{} })
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for range FetchesAtOnce - 1 {
		<-begun
	}
	small := blob(1000)
	w.serve("/small.gguf", small)
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second) // before a source counts as stalled
	defer cancel()
	path, err := s.Ensure(soon, recordOf(w.origin.URL+"/small.gguf", small), "", nil)
	wantContent(t, path, err, small)
	go func() {
		for range begun { // the callers have left
		}
	}()
	close(w.gate)
	downloads.Wait()
	close(begun)
}

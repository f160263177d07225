package inspect

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

func tiny(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tinymodel.WriteTo(&b, tinymodel.Default()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func digest(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// local makes a resolver over a model root that holds files.
func local(t testing.TB, files map[string][]byte) *Resolver {
	t.Helper()
	dir := t.TempDir()
	past := time.Now().Add(-time.Minute)
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, content, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, past, past); err != nil {
			t.Fatal(err)
		}
	}
	root, err := store.OpenRoot(dir, filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return &Resolver{Root: root}
}

// remote makes a resolver that may ask a server on loopback, and the server.
func remote(t testing.TB, serve http.HandlerFunc) (*Resolver, *httptest.Server) {
	t.Helper()
	srv := httptest.NewTLSServer(serve)
	t.Cleanup(srv.Close)
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	c := download.NewClient(download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Roots: pool})
	t.Cleanup(c.Close)
	r := local(t, nil)
	r.Client = c
	return r, srv
}

func wantReason(t *testing.T, err error, reason string) {
	t.Helper()
	var e *download.Error
	if !errors.As(err, &e) || e.Reason != reason {
		t.Fatalf("error is %v, want reason %s", err, reason)
	}
	if len(e.Message) < 20 {
		t.Errorf("message %q is no sentence", e.Message)
	}
}

func wantTiny(t *testing.T, rec model.Record, err error, source string, content []byte) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(rec.Validate(), rec.Facts.Validate()); err != nil {
		t.Error(err)
	}
	f := rec.Facts
	if rec.Source != source || rec.Format != model.FormatGGUF || rec.Bytes() != int64(len(content)) || rec.Files[0].SHA256 != digest(content) {
		t.Errorf("record is %+v", rec)
	}
	if f.Architecture != "llama" || f.Layers != 2 || f.HiddenSize != 64 || f.KeyValueHeads != 2 || f.HeadSize != 16 || f.ContextTokens != 512 || f.Name != "tiny" {
		t.Errorf("facts are %+v", f)
	}
	if f.WeightBytes <= 0 || f.WeightBytes >= rec.Bytes() {
		t.Errorf("%d bytes of weights in a file of %d", f.WeightBytes, rec.Bytes())
	}
}

func TestResolveLocalFile(t *testing.T) {
	content := tiny(t)
	r := local(t, map[string][]byte{"m.gguf": content})
	rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "file:///m.gguf", SHA256: ""})
	wantTiny(t, rec, err, "file:///m.gguf", content)
	same, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "file://m.gguf", SHA256: digest(content)})
	if err != nil || same.Digest != rec.Digest {
		t.Errorf("%v: digests %s and %s of one content", err, same.Digest, rec.Digest)
	}
}

// The whole file costs megabytes; its header costs one range.
func TestResolveRemoteFileByRanges(t *testing.T) {
	content := append(tiny(t), make([]byte, 8<<20)...)
	var sent, asked atomic.Int64
	r, srv := remote(t, func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		cw := &countingWriter{ResponseWriter: w, n: &sent}
		w.Header().Set("ETag", `"v"`)
		http.ServeContent(cw, req, "m", time.Time{}, bytes.NewReader(content))
	})
	rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: srv.URL + "/any-name", SHA256: digest(content)})
	wantTiny(t, rec, err, srv.URL+"/any-name", content)
	if asked.Load() != 1 || sent.Load() > firstRange {
		t.Errorf("%d requests, %d bytes", asked.Load(), sent.Load())
	}
	here, err := local(t, map[string][]byte{"x.gguf": content}).Resolve(t.Context(), v1alpha1.Inspection{Source: "file:///x.gguf", SHA256: ""})
	if err != nil || here.Digest != rec.Digest {
		t.Errorf("%v: the same content has digest %s here and %s there", err, here.Digest, rec.Digest)
	}
}

type countingWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.n.Add(int64(len(p)))
	return w.ResponseWriter.Write(p)
}

// bigHeader is a valid model whose header needs several ranges.
func bigHeader(t testing.TB, padding int) []byte {
	b := tiny(t)
	keys := binary.LittleEndian.Uint64(b[16:])
	var extra bytes.Buffer
	name := "metalfleet.padding"
	binary.Write(&extra, binary.LittleEndian, uint64(len(name)))
	extra.WriteString(name)
	binary.Write(&extra, binary.LittleEndian, []uint32{9, 0}) // an array of bytes
	binary.Write(&extra, binary.LittleEndian, uint64(padding))
	extra.Write(make([]byte, padding))
	for extra.Len()%32 != 0 { // tensor data stays aligned
		t.Fatalf("choose a padding that makes %d a multiple of 32", extra.Len())
	}
	out := append([]byte(nil), b[:24]...)
	binary.LittleEndian.PutUint64(out[16:], keys+1)
	return append(append(out, extra.Bytes()...), b[24:]...)
}

const bigPadding = 5<<20 + 22 // 8+18+8+8 bytes of key before it

func TestResolveRemoteHeaderOfSeveralRanges(t *testing.T) {
	content := bigHeader(t, bigPadding)
	for name, ranges := range map[string]bool{"ranges": true, "a server that ignores ranges": false} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			r, srv := remote(t, func(w http.ResponseWriter, req *http.Request) {
				asked.Add(1)
				if !ranges {
					req.Header.Del("Range")
				}
				http.ServeContent(w, req, "m", time.Time{}, bytes.NewReader(content))
			})
			rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: srv.URL, SHA256: digest(content)})
			wantTiny(t, rec, err, srv.URL, content)
			if n := asked.Load(); ranges != (n > 2) {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestResolveNamesWhatIsWrong(t *testing.T) {
	content := tiny(t)
	other := bytes.Replace(append([]byte(nil), content...), []byte("llama"), []byte("alien"), 1)
	files := map[string][]byte{
		"good.gguf": content, "empty.gguf": nil, "text.gguf": []byte("once upon a time"), "short.gguf": content[:20],
		"cut.gguf": content[:len(content)-1], "half.gguf": content[:1000], "alien.gguf": other,
		"bomb.gguf": append(append([]byte("GGUF\x03\x00\x00\x00"), bytes.Repeat([]byte{0xff}, 16)...), make([]byte, 1000)...),
	}
	r := local(t, files)
	for name, c := range map[string]struct{ source, sha256, reason string }{
		"absent":               {source: "file:///absent.gguf", sha256: "", reason: v1alpha1.ReasonSourceNotFound},
		"outside":              {source: "file:///../../etc/passwd", sha256: "", reason: v1alpha1.ReasonSourceForbidden},
		"empty":                {source: "file:///empty.gguf", sha256: "", reason: v1alpha1.ReasonInvalidModel},
		"no model":             {source: "file:///text.gguf", sha256: "", reason: v1alpha1.ReasonInvalidModel},
		"truncated in header":  {source: "file:///short.gguf", sha256: "", reason: v1alpha1.ReasonInvalidModel},
		"truncated in tensors": {source: "file:///half.gguf", sha256: "", reason: v1alpha1.ReasonInvalidModel},
		"truncated in data":    {source: "file:///cut.gguf", sha256: "", reason: v1alpha1.ReasonInvalidModel},
		"huge counts":          {source: "file:///bomb.gguf", sha256: "", reason: v1alpha1.ReasonInvalidModel},
		"unknown family":       {source: "file:///alien.gguf", sha256: "", reason: v1alpha1.ReasonUnsupportedModel},
		"other digest":         {source: "file:///good.gguf", sha256: digest(nil), reason: v1alpha1.ReasonDigestMismatch},
		"no digest at all":     {source: "file:///good.gguf", sha256: "abc", reason: v1alpha1.ReasonDigestMismatch},
		"https without digest": {source: "https://example.com/m.gguf", sha256: "", reason: v1alpha1.ReasonSourceForbidden},
		"plain http":           {source: "http://example.com/m.gguf", sha256: digest(nil), reason: v1alpha1.ReasonSourceForbidden},
		"unknown scheme":       {source: "gopher://example.com/m.gguf", sha256: "", reason: v1alpha1.ReasonSourceForbidden},
		"no scheme":            {source: "/etc/passwd", sha256: "", reason: v1alpha1.ReasonSourceForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: c.source, SHA256: c.sha256})
			wantReason(t, err, c.reason)
			if rec.Digest != "" {
				t.Errorf("a record comes with the error: %+v", rec)
			}
		})
	}
}

func TestResolveRemoteNamesWhatIsWrong(t *testing.T) {
	content := tiny(t)
	whole := func(b []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "m", time.Time{}, bytes.NewReader(b))
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	ranged := func(header string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", header)
			w.WriteHeader(http.StatusPartialContent)
			w.Write(content)
		}
	}
	for name, c := range map[string]struct {
		serve  http.HandlerFunc
		reason string
	}{
		"not found":               {serve: status(404), reason: v1alpha1.ReasonSourceNotFound},
		"forbidden":               {serve: status(403), reason: v1alpha1.ReasonSourceForbidden},
		"broken server":           {serve: status(500), reason: v1alpha1.ReasonSourceUnreachable},
		"redirect into the Mac":   {serve: http.RedirectHandler("https://127.0.0.2/m.gguf", http.StatusFound).ServeHTTP, reason: v1alpha1.ReasonSourceForbidden},
		"redirect to metadata":    {serve: http.RedirectHandler("https://169.254.169.254/latest", http.StatusFound).ServeHTTP, reason: v1alpha1.ReasonSourceForbidden},
		"redirect to the network": {serve: http.RedirectHandler("https://10.0.0.1/m.gguf", http.StatusFound).ServeHTTP, reason: v1alpha1.ReasonSourceForbidden},
		"truncated":               {serve: whole(content[:2000]), reason: v1alpha1.ReasonInvalidModel},
		"empty":                   {serve: whole(nil), reason: v1alpha1.ReasonInvalidModel},
		"no model":                {serve: whole([]byte("<html>log in</html>")), reason: v1alpha1.ReasonInvalidModel},
		"unknown size":            {serve: func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); w.Write(content) }, reason: v1alpha1.ReasonSourceUnreachable},
		"unknown total":           {serve: ranged(fmt.Sprintf("bytes 0-%d/*", len(content)-1)), reason: v1alpha1.ReasonSourceUnreachable},
		"another range":           {serve: ranged(fmt.Sprintf("bytes 8-%d/%d", len(content)-1, len(content))), reason: v1alpha1.ReasonSourceUnreachable},
		"range beyond the end":    {serve: ranged("bytes 0-99/10"), reason: v1alpha1.ReasonSourceUnreachable},
		"more than asked":         {serve: ranged("bytes 0-99999999/100000000"), reason: v1alpha1.ReasonSourceUnreachable},
		"unbelievable size":       {serve: ranged("bytes 0-9/99999999999999999"), reason: v1alpha1.ReasonInvalidModel},
		"ends early":              {serve: ranged(fmt.Sprintf("bytes 0-%d/%d", len(content)+9, len(content)+10)), reason: v1alpha1.ReasonSourceUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			r, srv := remote(t, c.serve)
			_, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: srv.URL, SHA256: digest(content)})
			wantReason(t, err, c.reason)
		})
	}
}

func TestRemoteFileThatChangesMeanwhileIsNotMixed(t *testing.T) {
	content := bigHeader(t, bigPadding)
	var asked atomic.Int64
	r, srv := remote(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprint(asked.Add(1))))
		http.ServeContent(w, req, "m", time.Time{}, bytes.NewReader(content))
	})
	_, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: srv.URL, SHA256: digest(content)})
	wantReason(t, err, v1alpha1.ReasonSourceUnreachable)
	if !download.IsTransient(err) {
		t.Error("it is not tried again")
	}
}

// A header may claim any size: only a bounded part is read.
func TestAttackRemoteHeaderBombIsBounded(t *testing.T) {
	start := bigHeader(t, bigPadding)[:1<<20]
	at := bytes.Index(start, []byte("metalfleet.padding")) + len("metalfleet.padding") + 8
	binary.LittleEndian.PutUint64(start[at:], 200<<20)
	var sent atomic.Int64
	piece := make([]byte, lastRange)
	r, srv := remote(t, func(w http.ResponseWriter, req *http.Request) {
		var first, last int64
		if _, err := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-%d", &first, &last); err != nil {
			t.Error(err)
		}
		body := piece[:last-first+1]
		if first == 0 {
			body = start[:last-first+1]
		}
		sent.Add(int64(len(body)))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, int64(1)<<40))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(body)
	})
	r.headerBytes = 8 << 20
	_, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: srv.URL, SHA256: digest(nil)})
	wantReason(t, err, v1alpha1.ReasonInvalidModel)
	if sent.Load() > r.headerBytes+lastRange {
		t.Errorf("%d bytes were read", sent.Load())
	}
}

func TestResolveEndsWithItsContext(t *testing.T) {
	r, srv := remote(t, func(w http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Resolve(ctx, v1alpha1.Inspection{Source: srv.URL, SHA256: digest(nil)}); err == nil {
		t.Error("it resolved")
	}
}

// What a file calls itself must not reach a terminal or a log as commands.
func TestUnpresentableNameIsDropped(t *testing.T) {
	content := bytes.Replace(tiny(t), []byte("\x04\x00\x00\x00\x00\x00\x00\x00tiny"), []byte("\x04\x00\x00\x00\x00\x00\x00\x00\x1b[2J"), 1)
	rec, err := local(t, map[string][]byte{"m.gguf": content}).Resolve(t.Context(), v1alpha1.Inspection{Source: "file:///m.gguf", SHA256: ""})
	if err != nil || rec.Facts.Name != "" {
		t.Errorf("name is %q, %v", rec.Facts.Name, err)
	}
}

// Any content yields complete facts or an error with a reason.
func FuzzReadFacts(f *testing.F) {
	f.Add(tiny(f)[:4096])
	f.Add([]byte("GGUF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		found, err := new(Resolver).readHeader(t.Context(), bytes.NewReader(b), int64(len(b)))
		if err == nil {
			if err := found.facts.Validate(); err != nil {
				t.Error(err)
			}
			return
		}
		var e *download.Error
		if !errors.As(err, &e) || e.Transient || strings.ContainsAny(download.Sentence(err), "\x00\n\x1b") {
			t.Errorf("error is %v", err)
		}
	})
}

// TestResolveAFolderOfTheModelRoot: the same files make the same model, whether
// they lie on the Mac or on a hub.
func TestResolveAFolderOfTheModelRoot(t *testing.T) {
	for _, shards := range []bool{false, true} {
		dir, files := published(t, shards)
		root, err := store.OpenRoot(filepath.Dir(dir), filepath.Join(t.TempDir(), "notes"), logr.Discard())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { root.Close() })
		r := &Resolver{Root: root}
		got, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "file:///model"})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(got.Validate(), got.Facts.Validate()); err != nil {
			t.Error(err)
		}
		remote, _ := onHub(t, hubtest.Of(files))
		want, err := remote.Resolve(t.Context(), v1alpha1.Inspection{Source: "hf://org/tiny"})
		if err != nil || got.Digest != want.Digest || got.Facts != want.Facts || got.Format != want.Format {
			t.Errorf("on the Mac %+v, on a hub %+v (%v)", got, want, err)
		}
		_, err = r.Resolve(t.Context(), v1alpha1.Inspection{Source: "file:///model", SHA256: digest(nil)})
		wantReason(t, err, v1alpha1.ReasonSourceForbidden)
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = r.Resolve(t.Context(), v1alpha1.Inspection{Source: "file:///model"})
		wantReason(t, err, v1alpha1.ReasonInvalidModel)
	}
}

//go:build !race

package store

import (
	"net/http"
	"os"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/agent/download"
)

// TestAPartialFileSurvivesWhatMayPass: the connection ended in the middle of a large file, and the next
// response is a denial, or a page in its place.
func TestAPartialFileSurvivesWhatMayPass(t *testing.T) {
	for name, between := range map[string]http.HandlerFunc{
		"a denial": func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusForbidden) },
		"a page":   func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("We are back soon.")) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			whole, asked, resumed := w.origin.Config.Handler, 0, ""
			w.origin.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				switch asked++; asked {
				case 1:
					rw.Header().Set("ETag", `"v"`)
					rw.Header().Set("Content-Length", "1048576")
					_, _ = rw.Write(w.content[:1<<19])
					panic(http.ErrAbortHandler)
				case 2:
					between(rw, r)
				default:
					resumed = r.Header.Get("Range")
					whole.ServeHTTP(rw, r)
				}
			})
			s, stop := w.start()
			defer stop()
			rec := recordOf(w.origin.URL, w.content)
			if _, err := s.Ensure(t.Context(), rec, "", nil); err == nil || download.IsTransient(err) {
				t.Fatalf("%v, want a denial", err)
			}
			if _, err := s.Ensure(t.Context(), rec, "", nil); err != nil {
				t.Fatal(err)
			}
			if resumed != "bytes=524288-" {
				t.Errorf("the server was asked for %q, want the second half", resumed)
			}
		})
	}
}

// readBytes counts what is read of a file.
type readBytes struct {
	*os.File
	n *atomic.Int64
}

func (r readBytes) Read(b []byte) (int, error) {
	n, err := r.File.Read(b)
	r.n.Add(int64(n))
	return n, err
}

// TestADeniedPartIsHashedOnce: the source denies the rest of a file at each attempt.
func TestADeniedPartIsHashedOnce(t *testing.T) {
	w := newWorld(t)
	denies, asked := true, 0
	whole := w.origin.Config.Handler
	w.origin.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch asked++; {
		case asked == 1:
			rw.Header().Set("ETag", `"v"`)
			rw.Header().Set("Content-Length", "1048576")
			_, _ = rw.Write(w.content[:1<<19])
			panic(http.ErrAbortHandler)
		case denies:
			rw.WriteHeader(http.StatusForbidden)
		default:
			whole.ServeHTTP(rw, r)
		}
	})
	s, stop := w.start()
	defer stop()
	var read atomic.Int64
	s.opt.Fetch.Open = func(root *os.Root, name string) (download.File, error) {
		file, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		return readBytes{file, &read}, err
	}
	rec := recordOf(w.origin.URL, w.content)
	for range 4 {
		if _, err := s.Ensure(t.Context(), rec, "", nil); !download.Denied(err) {
			t.Fatalf("%v, want a denial", err)
		}
	}
	denies = false
	path, err := s.Ensure(t.Context(), rec, "", nil)
	wantContent(t, path, err, w.content)
	if read.Load() > 0 || len(s.objects.hashed) > 0 {
		t.Errorf("%d bytes of a part that this process wrote were hashed again, and %d downloads are remembered", read.Load(), len(s.objects.hashed))
	}
}

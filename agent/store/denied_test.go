//go:build !race

package store

import (
	"net/http"
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

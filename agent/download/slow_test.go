package download

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// TestAttackAnErrorInManyPieces: the document with the cause of an error comes byte by byte, and
// each of them would keep the request, and the slot of its download, for as long as a stall.
func TestAttackAnErrorInManyPieces(t *testing.T) {
	const stall, parts, most = 200 * time.Millisecond, 10, 5
	var sent atomic.Int64
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusInternalServerError)
		for sent.Load() < 2*most*parts && r.Context().Err() == nil {
			sent.Add(1)
			fmt.Fprint(w, "<")
			w.(http.Flusher).Flush()
			time.Sleep(stall / parts)
		}
	}))
	t.Cleanup(srv.Close)
	c := NewClient(Policy{Allow: loopback, Roots: rootsOf(srv), Stall: stall})
	t.Cleanup(c.Close)
	_, err := c.Get(t.Context(), srv.URL, nil)
	if !IsTransient(err) {
		t.Errorf("error is %v", err)
	}
	srv.Close() // waits for the handler
	if n := sent.Load(); n >= most*parts {
		t.Errorf("%d bytes were waited for, a tenth of a stall each", n)
	}
}

package proxy_test

import (
	"io"
	"net/http"
	"testing"
)

// TestALargeResponseThatBreaksOffIsAFailure of the Mac: its client has received part of it.
func TestALargeResponseThatBreaksOffIsAFailure(t *testing.T) {
	w := newWorld(t)
	w.addMac("bad", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write(make([]byte, 2<<20))
		panic(http.ErrAbortHandler)
	})
	for range 5 {
		if w.counter("replicas_ejected_total") > 0 {
			t.Fatal("ejected too early")
		}
		resp := w.chat()
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Fatal("the response is complete")
		}
	}
	eventually(t, "the replica is ejected", func() bool { return w.counter("replicas_ejected_total") > 0 })
}

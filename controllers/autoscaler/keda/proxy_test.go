//go:build stories

package keda_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// proxy forwards connections by name (CONNECT), in place of a cluster's DNS:
// KEDA dials the name in the operator's certificate and reaches this machine.
// It returns the address of the proxy.
func proxy(t *testing.T, names map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, ok := names[r.Host]
		if r.Method != http.MethodConnect || !ok {
			http.Error(w, "no such host", http.StatusBadGateway)
			return
		}
		far, err := net.Dial("tcp", to)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer far.Close()
		near, rest, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer near.Close()
		if _, err := io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(far, rest)
			far.Close()
		}()
		_, _ = io.Copy(near, far)
		near.Close()
		<-done
	}))
	t.Cleanup(s.Close)
	return s.URL
}

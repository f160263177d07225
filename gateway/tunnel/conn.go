package tunnel

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/url"
	"sync"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/identity"
)

// macConn is one tunnel connection of a Mac. It counts its requests itself: for net/http, a
// cancelled one is in flight until the Mac answers a ping.
type macConn struct {
	*http.ClientConn
	mac, uid string
	identity *identity.Identity
	secure   *tls.Conn

	mu      sync.Mutex // guards the fields after it
	running int        // requests
	retired bool       // it closes when its last request ends
}

// RoundTrip implements http.RoundTripper.
func (l *macConn) RoundTrip(r *http.Request) (*http.Response, error) {
	if !l.begin() {
		return nil, ErrNone
	}
	resp, err := l.ClientConn.RoundTrip(r)
	if err != nil {
		l.end()
		return nil, err
	}
	resp.Body = &CountedBody{ReadCloser: resp.Body, End: l.end}
	return resp, nil
}

// begin counts a request. It returns false if the tunnel closes.
func (l *macConn) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retired && l.running == 0 {
		return false
	}
	l.running++
	return true
}

// end counts the end of a request.
func (l *macConn) end() {
	l.mu.Lock()
	l.running--
	idle := l.retired && l.running == 0
	l.mu.Unlock()
	if idle {
		_ = l.Close() // the error of a connection that is given up is of no interest
	}
}

// retire closes a tunnel that is not used for further requests once it is idle.
func (l *macConn) retire() {
	l.mu.Lock()
	l.retired = true
	idle := l.running == 0
	l.mu.Unlock()
	if idle {
		_ = l.Close()
	}
}

// ping sends a small request to the Mac.
func (l *macConn) ping(ctx context.Context) error {
	r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: agentapi.MacServerName(l.mac), Path: agentapi.PathHealth}}
	resp, err := l.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// CountedBody calls End when it was closed for the first time.
type CountedBody struct {
	io.ReadCloser
	End  func()
	once sync.Once
}

// Close implements io.Closer.
func (b *CountedBody) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(b.End)
	return err
}

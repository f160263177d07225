package download

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// forwarder is an HTTP proxy that records what it is asked for.
type forwarder struct {
	*httptest.Server
	mu      sync.Mutex
	targets []string
	headers []http.Header
	status  int    // instead of a connection
	early   string // sent right after the response
}

func newForwarder(t *testing.T) *forwarder {
	f := &forwarder{}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.targets, f.headers = append(f.targets, r.Method+" "+r.Host), append(f.headers, r.Header.Clone())
	status, early := f.status, f.early
	f.mu.Unlock()
	if status != 0 {
		w.WriteHeader(status)
		return
	}
	to, err := net.Dial("tcp", r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer to.Close()
	from, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer from.Close()
	if _, err := io.WriteString(from, "HTTP/1.1 200 Connection established\r\n\r\n"+early); err != nil {
		return
	}
	go io.Copy(to, from)
	io.Copy(from, to)
}

func (f *forwarder) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.targets...)
}

// through is a policy with the proxy; user may be empty.
func (f *forwarder) through(t *testing.T, o *origin, user string, answers ...string) *Client {
	u, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		u.User = url.UserPassword(user, "secret")
	}
	c := NewClient(Policy{Allow: loopback, Roots: rootsOf(o.Server), Resolver: nameServer(t, answers...), Stall: 20 * time.Second,
		Proxy: func(to *url.URL) (*url.URL, error) {
			if strings.HasPrefix(to.Host, "direct.") {
				return nil, nil
			}
			return u, nil
		}})
	t.Cleanup(c.Close)
	return c
}

// TestAttackAProxyGetsOnlyCheckedAddresses: never a name, which it would resolve again.
func TestAttackAProxyGetsOnlyCheckedAddresses(t *testing.T) {
	o, f := newOrigin(t, blob(100)), newForwarder(t)
	_, port, _ := net.SplitHostPort(o.Listener.Addr().String())
	c := f.through(t, o, "agent", "127.0.0.1", "10.0.0.7")
	if err := get(t, c, "https://example.com:"+port); err != nil {
		t.Fatal(err)
	}
	want := "CONNECT 127.0.0.1:" + port
	if got := f.seen(); len(got) != 1 || got[0] != want || f.headers[0].Get("Proxy-Authorization") != "Basic YWdlbnQ6c2VjcmV0" {
		t.Errorf("the proxy got %q and %v, want %q", got, f.headers, want)
	}
	if got := o.seen(); len(got) != 1 || got[0].Get("Proxy-Authorization") != "" {
		t.Errorf("the origin got %v, want one request without credentials of the proxy", got)
	}
	c.Close() // a new lookup
	wantReason(t, get(t, c, "https://example.com:"+port), v1alpha1.ReasonSourceForbidden)
	wantReason(t, get(t, c, "https://127.0.0.2:"+port), v1alpha1.ReasonSourceForbidden)
	if got := f.seen(); len(got) != 1 {
		t.Errorf("the proxy got %q after addresses were refused", got)
	}
}

func TestAProxyMayBeBypassed(t *testing.T) {
	o, f := newOrigin(t, blob(100)), newForwarder(t)
	_, port, _ := net.SplitHostPort(o.Listener.Addr().String())
	err := get(t, f.through(t, o, "", "127.0.0.1"), "https://direct.example.com:"+port)
	if got := f.seen(); err != nil || len(got) != 0 {
		t.Errorf("the proxy got %q (%v)", got, err)
	}
}

func TestARefusalOfAProxyIsExplained(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		early  string
		says   string
	}{
		"denied":         {status: http.StatusForbidden, says: "refuses a connection to 127.0.0.1:"},
		"no credentials": {status: http.StatusProxyAuthRequired, says: "HTTP 407"},
		"overloaded":     {status: http.StatusServiceUnavailable, says: "does not connect to"},
		"no proxy":       {early: "hello", says: "sends data before"},
	} {
		t.Run(name, func(t *testing.T) {
			o, f := newOrigin(t, blob(100)), newForwarder(t)
			f.status, f.early = tc.status, tc.early
			_, port, _ := net.SplitHostPort(o.Listener.Addr().String())
			err := get(t, f.through(t, o, "", "127.0.0.1"), "https://example.com:"+port)
			if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %q", err, tc.says)
			}
			if got := o.seen(); len(got) != 0 {
				t.Errorf("the origin got %v", got)
			}
		})
	}
}

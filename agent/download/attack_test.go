package download

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const secret = Bearer("hf_secret-word")

// hosts are servers on several origins that record who sent them a secret.
type hosts struct {
	mu  sync.Mutex
	got []string
}

func (h *hosts) start(t *testing.T, serve http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || strings.Contains(fmt.Sprint(r.Header, r.URL), string(secret)) {
			h.mu.Lock()
			h.got = append(h.got, r.Host+r.URL.Path)
			h.mu.Unlock()
		}
		if from := r.Header.Get("Referer"); from != "" {
			t.Errorf("%s receives the referring address: %s", r.Host, from)
		}
		serve(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv
}

// TestAttackATokenAcrossARedirect: a token stays at the origin of the first
// request, also if the redirect leads to another port of that host or back.
func TestAttackATokenAcrossARedirect(t *testing.T) {
	for name, c := range map[string]struct{ to, back string }{
		"to another port":        {to: "127.0.0.1"},
		"back to where it began": {to: "127.0.0.1", back: "/home"},
	} {
		t.Run(name, func(t *testing.T) {
			var h hosts
			var hub *httptest.Server
			away := h.start(t, func(w http.ResponseWriter, r *http.Request) {
				if c.back != "" {
					http.Redirect(w, r, "https://"+hub.Listener.Addr().String()+c.back, http.StatusFound)
				}
			})
			hub = h.start(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/model" {
					_, port, _ := net.SplitHostPort(away.Listener.Addr().String())
					http.Redirect(w, r, "https://"+net.JoinHostPort(c.to, port)+"/stored", http.StatusTemporaryRedirect)
				}
			})
			client := NewClient(Policy{Allow: loopback, Roots: rootsOf(hub), Resolver: nameServer(t, "127.0.0.1")})
			t.Cleanup(client.Close)
			resp, err := client.Get(t.Context(), hub.URL+"/model", secret.Header(nil))
			if err == nil {
				resp.Body.Close()
			} else {
				t.Fatal(err)
			}
			if len(h.got) != 1 || !strings.HasSuffix(h.got[0], "/model") {
				t.Errorf("the token was sent to %q", h.got)
			}
		})
	}
}

// TestKeepSecretComparesWholeOrigins, for names that no test certificate covers.
func TestKeepSecretComparesWholeOrigins(t *testing.T) {
	request := func(address string) *http.Request {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		return &http.Request{URL: u, Header: secret.Header(nil)}
	}
	for name, c := range map[string]struct {
		way  []string
		kept bool
	}{
		"the same host":          {way: []string{"https://hub.example/a", "https://hub.example:443/b"}, kept: true},
		"twice the same host":    {way: []string{"https://hub.example/a", "https://hub.example/b", "https://hub.example/c"}, kept: true},
		"a name below it":        {way: []string{"https://hub.example/a", "https://cdn.hub.example/b"}, kept: false},
		"another port":           {way: []string{"https://hub.example/a", "https://hub.example:8443/b"}, kept: false},
		"another scheme":         {way: []string{"https://hub.example/a", "http://hub.example:443/b"}, kept: false},
		"away and back":          {way: []string{"https://hub.example/a", "https://cdn.example/b", "https://hub.example/c"}, kept: false},
		"a name that begins so":  {way: []string{"https://hub.example/a", "https://hub.example.evil.example/b"}, kept: false},
		"a name in another case": {way: []string{"https://hub.example/a", "https://HUB.example/b"}, kept: false},
	} {
		var via []*http.Request
		for _, a := range c.way {
			via = append(via, request(a))
		}
		last := via[len(via)-1]
		keepSecret(last, via[:len(via)-1])
		if kept := last.Header.Get("Authorization") != ""; kept != c.kept {
			t.Errorf("%s: kept %v, want %v", name, kept, c.kept)
		}
	}
}

func TestABearerPrintsNoSecret(t *testing.T) {
	if s := fmt.Sprintf("%v %s %+v %#v %q", secret, secret, struct{ B Bearer }{secret}, secret, secret); strings.Contains(s, "hf_") {
		t.Error(s)
	}
	if h := Bearer("").Header(http.Header{"Range": {"bytes=0-1"}}); len(h) != 1 {
		t.Errorf("header %v", h)
	}
}

// TestAttackAddressesBehindNames: any address that a name resolves to is checked
// when it is dialed, in all IPv6 notations.
func TestAttackAddressesBehindNames(t *testing.T) {
	o := newOrigin(t, blob(10))
	_, port, _ := net.SplitHostPort(o.Listener.Addr().String())
	c := NewClient(Policy{Roots: rootsOf(o.Server)})
	t.Cleanup(c.Close)
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "[::]", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::a00:1]",
		"[2002:7f00:1::1]", "[fe80::1]", "[fd00::1]", "169.254.169.254", "10.96.0.1", "10.244.0.1", "172.17.0.1", "192.168.1.1", "100.64.0.1", "127.1", "2130706433", "0x7f000001"} {
		err := get(t, c, "https://"+host+":"+port+"/m.gguf")
		if err == nil {
			t.Errorf("%s was asked", host)
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Reason != v1alpha1.ReasonSourceForbidden && e.Reason != v1alpha1.ReasonSourceUnreachable {
			t.Errorf("%s: %v", host, err)
		}
	}
	if len(o.seen()) != 0 {
		t.Error("a refused address was asked")
	}
}

// TestAttackADecompressionBomb: a compressed body is not decompressed, regardless
// of the requested encoding.
func TestAttackADecompressionBomb(t *testing.T) {
	for _, coding := range []string{"gzip", "deflate", "br", "zstd", "gzip, gzip"} {
		srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", coding)
			w.Write(blob(100))
		}))
		t.Cleanup(srv.Close)
		wantReason(t, get(t, clientFor(t, srv), srv.URL), v1alpha1.ReasonSourceUnreachable)
	}
}

// TestADeniedPartWaitsForARight: a hub that denies access is not asked
// repeatedly, and the partial file stays.
func TestADeniedPartWaitsForARight(t *testing.T) {
	content := blob(300 << 10)
	given := Bearer("wrong")
	asked := 0
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.Header.Get("Authorization") != "Bearer right" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Write(content)
	}))
	t.Cleanup(srv.Close)
	f := &Fetcher{Client: clientFor(t, srv)}
	target := Target{URL: srv.URL, Bytes: int64(len(content)), SHA256: digest(content), Root: place(t), Name: "m", Header: func(h http.Header) (http.Header, error) { return given.Header(h), nil }}
	if err := target.Root.WriteFile("m", content[:1000], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Fetch(t.Context(), target, nil); !Denied(err) || asked != 1 {
		t.Fatalf("%v after %d requests", err, asked)
	}
	if !exists(target.Root, "m") {
		t.Error("the part is gone")
	}
	given = "right"
	if err := f.Fetch(t.Context(), target, nil); err != nil {
		t.Errorf("with the right token: %v", err)
	}
}

// TestASessionsTokenStaysWithItsHost: a redirect to another host receives no part
// of a signature.
func TestASessionsTokenStaysWithItsHost(t *testing.T) {
	first, _ := http.NewRequest(http.MethodGet, "https://models.example/a", nil)
	for to, kept := range map[string]bool{"https://models.example/b": true, "https://other.example/b": false, "https://models.example:8443/b": false} {
		next, _ := http.NewRequest(http.MethodGet, to, nil)
		next.Header.Set("Authorization", "AWS4-HMAC-SHA256 x")
		next.Header.Set("X-Amz-Security-Token", "session")
		keepSecret(next, []*http.Request{first})
		if got := next.Header.Get("Authorization") != "" || next.Header.Get("X-Amz-Security-Token") != ""; got != kept {
			t.Errorf("%s is sent %v", to, next.Header)
		}
	}
}

// TestErrorCodeOfABucketIsRead, and only its error code.
func TestErrorCodeOfABucketIsRead(t *testing.T) {
	for body, want := range map[string]string{
		`<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>m</Message></Error>`: "AccessDenied",
		`<Error><Code>a b</Code></Error>`:                                   "",
		`<Other><Code>AccessDenied</Code></Other>`:                          "",
		`<Error><Code>` + strings.Repeat("a", 65) + `</Code></Error>`:       "",
		`<Error><Code>Late</Code>` + strings.Repeat(" ", maxResponseHeader): "",
		``: "",
	} {
		if got := bucketCode(strings.NewReader(body)); got != want {
			t.Errorf("%.60s: %q", body, got)
		}
	}
}

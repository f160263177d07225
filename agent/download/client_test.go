package download

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/net/dns/dnsmessage"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func wantReason(t *testing.T, err error, reason string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Reason != reason {
		t.Fatalf("error is %v, want reason %s", err, reason)
	}
}

func get(t *testing.T, c *Client, url string) error {
	t.Helper()
	resp, err := c.Get(t.Context(), url, nil)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

func TestAttackNotPublicAddresses(t *testing.T) {
	for _, a := range strings.Fields(`0.0.0.0 0.1.2.3 127.0.0.1 127.9.9.9 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1
		169.254.169.254 100.64.0.1 100.127.255.255 224.0.0.1 239.1.1.1 255.255.255.255 240.0.0.1 198.18.0.1 192.0.0.8
		192.0.2.1 198.51.100.1 203.0.113.1 :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.1.1.1 fe80::1 fe80::1%eth0 fec0::1
		fc00::1 fd12::1 ff02::1 64:ff9b::a00:1 64:ff9b:1::1 100::1 2001:db8::1 2001::1 2002:7f00:1::1 3fff::1 4000::1`) {
		if notPublic(netip.MustParseAddr(a)) == "" {
			t.Errorf("%s passes as public", a)
		}
	}
	for _, a := range strings.Fields("1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.32.0.1 192.169.0.1 223.255.255.255 2606:4700::1111 2a00:1450::1 ::ffff:8.8.8.8") {
		if kind := notPublic(netip.MustParseAddr(a)); kind != "" {
			t.Errorf("%s is refused as %s", a, kind)
		}
	}
}

func FuzzNotPublicMapped(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1})
	f.Add([]byte{8, 8, 8, 8})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != 4 {
			return
		}
		v4 := netip.AddrFrom4([4]byte(b))
		mapped := netip.AddrFrom16(v4.As16())
		if notPublic(v4) != notPublic(mapped) {
			t.Errorf("%v is judged otherwise than %v", mapped, v4)
		}
	})
}

func TestAttackAddressesAreRefusedUnlessAllowed(t *testing.T) {
	o := newOrigin(t, blob(100))
	closed := NewClient(Policy{Roots: rootsOf(o.Server)})
	t.Cleanup(closed.Close)
	wantReason(t, get(t, closed, o.URL), v1alpha1.ReasonSourceForbidden)
	wantReason(t, get(t, closed, strings.Replace(o.URL, "127.0.0.1", "localhost", 1)), v1alpha1.ReasonSourceForbidden)
	if len(o.seen()) != 0 {
		t.Fatal("a refused address was asked")
	}
	if err := get(t, clientFor(t, o.Server), o.URL); err != nil {
		t.Errorf("an allowed address: %v", err)
	}
}

func TestAttackRedirectsAreJudgedLikeSources(t *testing.T) {
	inner := newOrigin(t, blob(100))
	_, port, _ := net.SplitHostPort(inner.Listener.Addr().String())
	for _, target := range []string{
		"https://127.0.0.2:" + port, "https://169.254.169.254/latest/meta-data", "https://10.0.0.1/", "https://192.168.1.1/",
		"https://[::1]:" + port, "https://[::ffff:127.0.0.2]:" + port, "https://100.64.0.1/", "https://[fd00::1]/",
		"http://127.0.0.1:" + port, "file:///etc/passwd", "https://user:secret@127.0.0.1:" + port,
	} {
		t.Run(target, func(t *testing.T) {
			front := httptest.NewTLSServer(http.RedirectHandler(target, http.StatusFound))
			t.Cleanup(front.Close)
			wantReason(t, get(t, clientFor(t, front), front.URL), v1alpha1.ReasonSourceForbidden)
		})
	}
	if len(inner.seen()) != 0 {
		t.Error("a refused redirect was followed")
	}
}

func TestRedirectsAreFollowedAndBounded(t *testing.T) {
	var hops atomic.Int64
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hops.Add(1)
		http.Redirect(w, r, fmt.Sprintf("/%d", hops.Load()), http.StatusFound)
	}))
	t.Cleanup(srv.Close)
	wantReason(t, get(t, clientFor(t, srv), srv.URL), v1alpha1.ReasonSourceUnreachable)
	if n := hops.Load(); n != maxRedirects+1 {
		t.Errorf("%d requests, want %d", n, maxRedirects+1)
	}
	good := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/a" {
			http.Redirect(w, r, "/b", http.StatusFound)
		}
	}))
	t.Cleanup(good.Close)
	if err := get(t, clientFor(t, good), good.URL+"/a"); err != nil {
		t.Errorf("a harmless redirect: %v", err)
	}
}

// nameServer answers A queries with one address after the other.
func nameServer(t *testing.T, answers ...string) *net.Resolver {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf, asked := make([]byte, 1500), 0
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var q dnsmessage.Message
			if q.Unpack(buf[:n]) != nil || len(q.Questions) != 1 {
				continue
			}
			a := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true}, Questions: q.Questions}
			if q.Questions[0].Type == dnsmessage.TypeA {
				ip := netip.MustParseAddr(answers[min(asked, len(answers)-1)])
				asked++
				a.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 0},
					Body:   &dnsmessage.AResource{A: ip.As4()},
				}}
			}
			if out, err := a.Pack(); err == nil {
				conn.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// A name that first resolves to a public and then to a private address is refused
// at the dial: no earlier check could be bypassed.
func TestAttackDNSAnswersAreJudgedAtTheDial(t *testing.T) {
	o := newOrigin(t, blob(100))
	_, port, _ := net.SplitHostPort(o.Listener.Addr().String())
	c := NewClient(Policy{Allow: loopback, Roots: rootsOf(o.Server), Resolver: nameServer(t, "127.0.0.1", "127.0.0.2", "10.0.0.7")})
	t.Cleanup(c.Close)
	source := "https://example.com:" + port + "/m.gguf"
	if err := get(t, c, source); err != nil {
		t.Fatalf("the first answer: %v", err)
	}
	c.Close() // a new dial and a new lookup
	wantReason(t, get(t, c, source), v1alpha1.ReasonSourceForbidden)
	wantReason(t, get(t, c, source), v1alpha1.ReasonSourceForbidden)
	if n := len(o.seen()); n != 1 {
		t.Errorf("%d requests arrived, want 1", n)
	}
}

func TestProxiesOfTheEnvironmentAreIgnored(t *testing.T) {
	var asked atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(proxy.Close)
	for _, k := range []string{"HTTPS_PROXY", "https_proxy", "ALL_PROXY"} {
		t.Setenv(k, proxy.URL)
	}
	o := newOrigin(t, blob(100))
	_, port, _ := net.SplitHostPort(o.Listener.Addr().String())
	c := NewClient(Policy{Allow: loopback, Roots: rootsOf(o.Server), Resolver: nameServer(t, "127.0.0.1")})
	t.Cleanup(c.Close)
	if err := get(t, c, "https://example.com:"+port); err != nil {
		t.Error(err)
	}
	if asked.Load() != 0 {
		t.Error("the proxy was asked")
	}
}

func TestSourcesThatAreNoAddresses(t *testing.T) {
	c := NewClient(Policy{})
	for _, source := range []string{"", "https://", "https:///x", "http://example.com", "ftp://example.com", "https:example.com", "https://u:p@example.com", "https://exa mple.com", "https://[::1", "//example.com"} {
		wantReason(t, get(t, c, source), v1alpha1.ReasonSourceForbidden)
	}
}

func TestAttackHeaderBombIsRefused(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Bomb", strings.Repeat("x", 1<<20))
	}))
	t.Cleanup(srv.Close)
	wantReason(t, get(t, clientFor(t, srv), srv.URL), v1alpha1.ReasonSourceUnreachable)
}

func TestCompressedAnswerIsRefused(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
	}))
	t.Cleanup(srv.Close)
	wantReason(t, get(t, clientFor(t, srv), srv.URL), v1alpha1.ReasonSourceUnreachable)
}

func TestStandstillEndsARequest(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Write(make([]byte, 10))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	c := NewClient(Policy{Allow: loopback, Roots: rootsOf(srv), Stall: time.Second})
	t.Cleanup(c.Close)
	resp, err := c.Get(t.Context(), srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 100)
	for err == nil {
		_, err = resp.Body.Read(buf)
	}
	if !IsTransient(err) || !errors.Is(err, errStalled) {
		t.Errorf("error is %v", err)
	}
}

func TestUnknownAuthorityIsRefused(t *testing.T) {
	o := newOrigin(t, blob(100))
	c := NewClient(Policy{Allow: loopback})
	t.Cleanup(c.Close)
	err := get(t, c, o.URL)
	wantReason(t, err, v1alpha1.ReasonSourceUnreachable)
	var verify *tls.CertificateVerificationError
	if !errors.As(err, &verify) {
		t.Errorf("the cause is lost: %v", err)
	}
}

func TestRetryAfterIsFollowedAndBounded(t *testing.T) {
	for value, want := range map[string]time.Duration{"7": 7 * time.Second, "99999999999": maxRetryAfter, "86000": maxRetryAfter, "-1": 0, "soon": 0} {
		resp := &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {value}}}
		if got := retryAfter(judge(resp, "h")); got != want {
			t.Errorf("Retry-After %q is heard as %v, want %v", value, got, want)
		}
	}
}

func TestParseContentRange(t *testing.T) {
	if r, err := ParseContentRange("bytes 5-9/10"); err != nil || r != (ContentRange{First: 5, Last: 9, Total: 10}) {
		t.Errorf("%+v %v", r, err)
	}
	if r, err := ParseContentRange("bytes 0-0/*"); err != nil || r.Total != -1 {
		t.Errorf("%+v %v", r, err)
	}
	for _, s := range []string{"", "bytes */10", "bytes 5-4/10", "bytes 5-10/10", "bytes -1-4/10", "bytes 0-4/x", "items 0-4/5", "bytes 0-99999999999999999999/9"} {
		if r, err := ParseContentRange(s); err == nil {
			t.Errorf("%q is read as %+v", s, r)
		}
	}
}

func TestSentenceFitsACondition(t *testing.T) {
	s := Sentence(errors.New("bad\x00key\n\xff" + strings.Repeat("é", 2000)))
	if len([]rune(s)) > 1000 || strings.ContainsAny(s, "\x00\n") || !utf8.ValidString(s) || !strings.HasPrefix(s, "bad?key??") {
		t.Errorf("%.40q of %d", s, len(s))
	}
}

func TestAClientForSomeHostsGoesNowhereElse(t *testing.T) {
	c := NewClient(Policy{Hosts: []string{"images.example", "images.example:8443"}})
	defer c.Close()
	for source, allowed := range map[string]bool{
		"https://images.example/a": true, "https://IMAGES.example:443/a": true, "https://images.example:8443/a": true,
		"https://images.example:22/a": false, "https://other.example/a": false, "https://images.example.other/a": false,
	} {
		u, err := url.Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.checkHost(u); (err == nil) != allowed {
			t.Errorf("%s: %v", source, err)
		}
		request := &http.Request{URL: u}
		if err := c.http.CheckRedirect(request, []*http.Request{{URL: &url.URL{Scheme: "https", Host: "images.example"}}}); (err == nil) != allowed {
			t.Errorf("a redirect to %s: %v", source, err)
		}
	}
}

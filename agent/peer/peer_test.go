package peer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/patience"
)

const source = "hf://org/private"

var (
	content = bytes.Repeat([]byte("weights "), 100<<10)
	sum     = func() string { s := sha256.Sum256(content); return hex.EncodeToString(s[:]) }()
	digest  = "sha256:" + strings.Repeat("ab", 32)
	record  = model.Record{Source: source, Digest: digest, Files: []model.File{{Path: "m.gguf", Bytes: int64(len(content)), SHA256: sum}}}
)

// weights implements Weights with one file of one model.
type weights struct {
	path string

	mu    sync.Mutex
	err   error // guarded by mu
	asked int   // guarded by mu
}

func (s *weights) Give(d, from, _, sha string) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	switch {
	case s.err != nil:
		return nil, s.err
	case d != digest || from != source || sha != sum:
		return nil, store.ErrNotHere
	}
	return os.Open(s.path)
}

func (s *weights) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// stand is a Mac that serves weights on its own port.
type stand struct {
	t       *testing.T
	ca      *agentapitest.CA
	weights *weights
	addr    v1alpha1.MacAddress
}

func newStand(t *testing.T, change func(*ServerConfig)) *stand {
	t.Helper()
	s := &stand{t: t, ca: agentapitest.NewCA(t), weights: &weights{path: filepath.Join(t.TempDir(), "m")}}
	if err := os.WriteFile(s.weights.path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	c := ServerConfig{Mac: "giver", Roots: s.ca.Certificates, Revoked: func(string) bool { return false }, Weights: s.weights, AtOnce: 1, Log: logr.Discard()}
	if change != nil {
		change(&c)
	}
	s.serve(NewServer(c))
	return s
}

// serve serves peers as the Mac "giver".
func (s *stand) serve(h http.Handler) {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	srv := &http.Server{Handler: h, TLSConfig: agentapi.WeightsServerTLS(s.ca.Mac("giver").Pair(s.t), s.ca.Roots()), ErrorLog: nil}
	go srv.ServeTLS(l, "", "")
	s.t.Cleanup(func() { srv.Close() })
	s.addr = v1alpha1.MacAddress{Host: "127.0.0.1", Port: int32(l.Addr().(*net.TCPAddr).Port)}
}

// grant is for the Mac "asker".
func (s *stand) grant(change func(*agentapi.Grant)) string {
	g := agentapi.Grant{Server: "giver", Client: "asker", Digest: digest, Source: source}
	if change != nil {
		change(&g)
	}
	return s.ca.Grant(g)
}

func (s *stand) client(change func(*ClientConfig)) *Client {
	pair := s.ca.Mac("asker").Pair(s.t)
	c := ClientConfig{
		Assigned: func(model.Record, string) []v1alpha1.Peer {
			return []v1alpha1.Peer{{Mac: "giver", Address: s.addr, Grant: s.grant(nil)}}
		},
		TLS:  func(mac string) (*tls.Config, error) { return agentapi.WeightsClientTLS(pair, s.ca.Roots(), mac), nil },
		Pace: Pace{Look: time.Millisecond, Begin: time.Millisecond},
	}
	if change != nil {
		change(&c)
	}
	a := NewClient(c)
	s.t.Cleanup(a.Close)
	return a
}

// get requests a file with a certificate and a grant, and returns the status.
func (s *stand) get(pem agentapitest.PEM, path, grant string) (int, []byte, error) {
	client := &http.Client{Timeout: patience.Of(s.t), Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: agentapi.WeightsClientTLS(pem.Pair(s.t), s.ca.Roots(), "giver")}}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, fmt.Sprintf("https://%s:%d%s", s.addr.Host, s.addr.Port, path), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if grant != "" {
		req.Header.Set(agentapi.HeaderGrant, grant)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

// TestAttackWeightsWithoutAGrant: a Mac may read only what the
// operator's grant names.
func TestAttackWeightsWithoutAGrant(t *testing.T) {
	s := newStand(t, nil)
	client, path := s.ca.Mac("asker"), agentapi.WeightsPath(digest, sum)
	if status, b, err := s.get(client, path, s.grant(nil)); status != http.StatusOK || !bytes.Equal(b, content) || err != nil {
		t.Fatalf("with its grant: %d, %d bytes, %v", status, len(b), err)
	}
	before := s.weights.asked
	foreign := agentapitest.NewCA(t).Grant(agentapi.Grant{Server: "giver", Client: "asker", Digest: digest, Source: source})
	good := s.grant(nil)
	for what, v := range map[string]struct {
		pem   agentapitest.PEM
		path  string
		grant string
	}{
		"without one":                      {pem: client, path: path, grant: ""},
		"with nonsense":                    {pem: client, path: path, grant: "a.b"},
		"with another Mac's":               {pem: s.ca.Mac("thief"), path: path, grant: good},
		"with one for another giver":       {pem: client, path: path, grant: s.grant(func(g *agentapi.Grant) { g.Server = "other" })},
		"with one for other weights":       {pem: client, path: path, grant: s.grant(func(g *agentapi.Grant) { g.Digest = "sha256:" + strings.Repeat("cd", 32) })},
		"with one that ended":              {pem: client, path: path, grant: s.grant(func(g *agentapi.Grant) { g.Issued, g.Expires = time.Now().Unix()-7200, time.Now().Unix()-1 })},
		"with one without an end":          {pem: client, path: path, grant: s.grant(func(g *agentapi.Grant) { g.Issued, g.Expires = 1, time.Now().Add(time.Hour).Unix() })},
		"with another operator's":          {pem: client, path: path, grant: foreign},
		"with one that was changed":        {pem: client, path: path, grant: strings.Replace(good, ".", "A.", 1)},
		"at another path":                  {pem: client, path: "/v1/models", grant: good},
		"at a path that leaves its folder": {pem: client, path: agentapi.PathWeights + digest + "/../../" + sum, grant: good},
	} {
		status, b, err := s.get(v.pem, v.path, v.grant)
		if status != http.StatusForbidden || err != nil || bytes.Contains(b, []byte("weights weights")) {
			t.Errorf("%s: %d, %d bytes, %v", what, status, len(b), err)
		}
	}
	if s.weights.asked != before {
		t.Error("the store was read without a grant")
	}
	// The grant is valid, and this Mac does not have the weights.
	for what, v := range map[string]struct{ path, grant string }{
		"a file of no model":                  {path: agentapi.WeightsPath(digest, strings.Repeat("0", 64)), grant: good},
		"the same digest with another source": {path: path, grant: s.grant(func(g *agentapi.Grant) { g.Source = "https://evil.example/m.gguf" })},
	} {
		if status, _, err := s.get(client, v.path, v.grant); status != http.StatusNotFound || err != nil {
			t.Errorf("%s: %d, %v", what, status, err)
		}
	}
}

// TestAttackWeightsByAStranger: this protocol requires a Mac's certificate,
// and no other accepts it.
func TestAttackWeightsByAStranger(t *testing.T) {
	s := newStand(t, nil)
	path := agentapi.WeightsPath(digest, sum)
	for what, pem := range map[string]agentapitest.PEM{
		"a gateway":              s.ca.Gateway(),
		"a Mac of another fleet": agentapitest.NewCA(t).Mac("asker"),
		"a Mac with two names": s.ca.Forged(func(c *x509.Certificate) {
			c.DNSNames, c.ExtKeyUsage = []string{agentapi.MacServerName("asker"), agentapi.MacServerName("b")}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}),
		"a Mac with an old one": s.ca.Forged(func(c *x509.Certificate) {
			c.DNSNames, c.ExtKeyUsage, c.NotBefore, c.NotAfter = []string{agentapi.MacServerName("asker")}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		}),
		"a client with a Mac's name":   s.ca.Forged(func(c *x509.Certificate) { c.DNSNames = []string{agentapi.MacServerName("asker")} }),
		"the operator's demand server": s.ca.Server("operator.metalfleet.dev"),
	} {
		if status, _, err := s.get(pem, path, s.grant(nil)); err == nil {
			t.Errorf("%s: HTTP %d", what, status)
		}
	}
	if status, _, err := s.get(s.ca.MacOfUID("asker", "of a MacNode that was deleted"), path, s.grant(nil)); err != nil || status != http.StatusForbidden {
		t.Errorf("the Mac that had the asker's name before: HTTP %d, %v", status, err)
	}
	if s.weights.asked != 0 {
		t.Error("a stranger reached the store")
	}
}

// A Mac whose MacNode was deleted is refused at once, with a certificate and a grant that
// are valid for hours, and its running copies end.
func TestAttackWeightsByADeletedMac(t *testing.T) {
	var mu sync.Mutex
	revoked, given := "", 0
	s := newStand(t, func(c *ServerConfig) {
		c.Revoked = func(uid string) bool {
			mu.Lock()
			defer mu.Unlock()
			return uid == revoked
		}
		c.Given = func(int) { // it is deleted after the first chunk
			mu.Lock()
			defer mu.Unlock()
			given++
			revoked = agentapitest.UID("asker")
		}
	})
	path := agentapi.WeightsPath(digest, sum)
	if status, got, err := s.get(s.ca.Mac("asker"), path, s.grant(nil)); status == http.StatusOK && err == nil && len(got) == len(content) || given != 1 {
		t.Errorf("HTTP %d, %v: %d of %d bytes in %d pieces after its MacNode was deleted", status, err, len(got), len(content), given)
	}
	asked := s.weights.asked
	if status, _, err := s.get(s.ca.Mac("asker"), path, s.grant(nil)); status != http.StatusForbidden || err != nil || s.weights.asked != asked {
		t.Errorf("a new request: HTTP %d, %v", status, err)
	}
	other := s.ca.MacOfUID("asker", "its successor")
	if status, _, err := s.get(other, path, s.grant(func(g *agentapi.Grant) { g.ClientUID = "its successor" })); status != http.StatusOK || err != nil {
		t.Errorf("the Mac that has its name now: HTTP %d, %v", status, err)
	}
}

// fetched copies the file through a store's fetcher.
func fetched(t *testing.T, n store.Peer, tries int) ([]byte, error) {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	f := &download.Fetcher{Backoff: time.Millisecond}
	err = f.Fetch(t.Context(), download.Target{
		URL: "https://" + agentapi.MacServerName(n.Mac) + agentapi.WeightsPath(digest, sum), Bytes: int64(len(content)), SHA256: sum,
		Root: root, Name: "part", Get: n.Get, Tries: tries,
	}, nil)
	if err != nil {
		return nil, err
	}
	return root.ReadFile("part")
}

// until polls until so returns true.
func until(t *testing.T, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience.Of(t)); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the condition did not become true in time")
		}
	}
}

func TestCopyIsComplete(t *testing.T) {
	s := newStand(t, nil)
	peers := s.client(nil).Of(t.Context(), record, "", 0)
	if len(peers) != 1 {
		t.Fatalf("peers: %v", peers)
	}
	if b, err := fetched(t, peers[0], 1); err != nil || !bytes.Equal(b, content) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// TestDownloadOfAPeerIsWaitedFor while it makes progress, and no longer.
func TestDownloadOfAPeerIsWaitedFor(t *testing.T) {
	s := newStand(t, nil)
	s.weights.set(&store.Fetching{Done: 1})
	asking := make(chan []store.Peer)
	a := s.client(nil)
	go func() { asking <- a.Of(t.Context(), record, "", 0) }()
	until(t, func() bool {
		s.weights.mu.Lock()
		defer s.weights.mu.Unlock()
		return s.weights.asked > 2
	})
	s.weights.set(nil)
	if peers := <-asking; len(peers) != 1 {
		t.Errorf("after its download: %v", peers)
	}
	s.weights.set(&store.Fetching{Done: 1})
	if peers := s.client(func(c *ClientConfig) { c.Pace.Window = 20 * time.Millisecond }).Of(t.Context(), record, "", 0); len(peers) != 0 {
		t.Errorf("a download that stands still: %v", peers)
	}
}

// TestPeerMayStartLater: the peer that downloads from the source may get its
// assignment after those that copy from it.
func TestPeerMayStartLater(t *testing.T) {
	s := newStand(t, nil)
	s.weights.set(store.ErrNotHere)
	asking := make(chan []store.Peer)
	a := s.client(func(c *ClientConfig) { c.Pace.Begin = patience.Of(t) })
	go func() { asking <- a.Of(t.Context(), record, "", 0) }()
	until(t, func() bool {
		s.weights.mu.Lock()
		defer s.weights.mu.Unlock()
		return s.weights.asked > 2
	})
	s.weights.set(nil)
	if peers := <-asking; len(peers) != 1 {
		t.Errorf("after it began: %v", peers)
	}
	s.weights.set(store.ErrNotHere)
	if peers := s.client(nil).Of(t.Context(), record, "", 0); len(peers) != 0 {
		t.Errorf("one that never begins: %v", peers)
	}
}

func TestHowLongADownloadIsWaitedFor(t *testing.T) {
	p := Pace{Window: 30 * time.Second, Floor: 1 << 20}
	began := time.Unix(1_800_000_000, 0)
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	for name, tc := range map[string]struct {
		seen []int64 // MiB, every 10 s
		want bool
	}{
		"it has just begun":                   {seen: []int64{0}, want: true},
		"nothing for 20 s":                    {seen: []int64{0, 0, 0}, want: true},
		"nothing for 30 s":                    {seen: []int64{0, 0, 0, 0}, want: false},
		"a trickle":                           {seen: []int64{0, 1, 2, 3}, want: false},
		"the pace":                            {seen: []int64{0, 10, 20, 30, 40, 50, 60}, want: true},
		"the pace, and then nothing for 30 s": {seen: []int64{0, 10, 20, 30, 30, 30, 30}, want: false},
		"it starts again without progress":    {seen: []int64{100, 0, 10, 20}, want: false},
	} {
		var w wait
		got := true
		for i, done := range tc.seen {
			got = w.continues(done<<20, at(10*i), p)
		}
		if got != tc.want {
			t.Errorf("%s: waited for is %v", name, got)
		}
	}
}

// TestAttackLyingPeer: what a peer sends is hashed, and one that sent wrong bytes
// is not asked again.
func TestAttackLyingPeer(t *testing.T) {
	s := newStand(t, nil)
	s.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write(bytes.Repeat([]byte("poison! "), len(content)/8))
	}))
	var blamed []string
	a := s.client(func(c *ClientConfig) { c.Blamed = func(r string) { blamed = append(blamed, r) } })
	peers := a.Of(t.Context(), record, "", 0)
	if len(peers) != 1 {
		t.Fatal(peers)
	}
	_, err := fetched(t, peers[0], 1)
	if download.Reason(err, "") != v1alpha1.ReasonDigestMismatch {
		t.Fatalf("other bytes: %v", err)
	}
	a.Failed(peers[0].Mac, err)
	if peers := a.Of(t.Context(), record, "", 0); len(peers) != 0 || len(blamed) != 1 || blamed[0] != reasonLied {
		t.Errorf("after it lied: %v, blamed %q", peers, blamed)
	}
}

// TestAttackImpostorAtAPeersAddress: it receives no grant.
func TestAttackImpostorAtAPeersAddress(t *testing.T) {
	s := newStand(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan *http.Request, 10)
	srv := &http.Server{
		TLSConfig: agentapi.WeightsServerTLS(s.ca.Mac("thief").Pair(t), s.ca.Roots()),
		Handler:   http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r }),
	}
	// It serves any name with its own certificate.
	own := s.ca.Mac("thief").Pair(t)
	srv.TLSConfig.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() }
	go srv.ServeTLS(l, "", "")
	t.Cleanup(func() { srv.Close() })
	s.addr.Port = int32(l.Addr().(*net.TCPAddr).Port)
	if peers := s.client(nil).Of(t.Context(), record, "", 0); len(peers) != 0 {
		t.Errorf("peers: %v", peers)
	}
	if len(seen) > 0 {
		t.Errorf("the stranger was sent %v", (<-seen).Header)
	}
}

// TestSlowPeerIsAbandoned, whether it trickles or sends nothing.
func TestSlowPeerIsAbandoned(t *testing.T) {
	for name, piece := range map[string]int{"a trickle": 100, "nothing": 0} {
		synctest.Test(t, func(t *testing.T) {
			r, w := io.Pipe()
			ctx, cancel := context.WithCancelCause(t.Context())
			context.AfterFunc(ctx, func() { r.CloseWithError(context.Cause(ctx)) })
			body := newWatched(ctx, r, "giver", Pace{}.withDefaults(), nil, cancel)
			var writing sync.WaitGroup
			writing.Go(func() {
				for piece > 0 && ctx.Err() == nil {
					time.Sleep(time.Second)
					w.Write(make([]byte, piece))
				}
			})
			began := time.Now()
			_, err := io.Copy(io.Discard, body)
			if reason, _ := verdict(err); reason != reasonSlow || download.IsTransient(err) || time.Since(began) != 30*time.Second {
				t.Errorf("%s: %v after %s", name, err, time.Since(began))
			}
			body.Close()
			w.Close()
			writing.Wait()
		})
	}
}

// TestServerBoundsCopies, in number and in bytes per second.
func TestServerBoundsCopies(t *testing.T) {
	s := newStand(t, func(c *ServerConfig) { c.Rate = 1 }) // the first chunk at once, the next one never
	client, path := s.ca.Mac("asker"), agentapi.WeightsPath(digest, sum)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	peers := s.client(nil).Of(ctx, record, "", 0)
	resp, err := peers[0].Get(ctx, "https://giver"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, pieceBytes/2)); err != nil {
		t.Fatal(err)
	}
	if status, _, err := s.get(client, path, s.grant(nil)); status != http.StatusServiceUnavailable || err != nil {
		t.Errorf("a second one gets HTTP %d, %v", status, err)
	}
	got := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(io.Discard, resp.Body)
		got <- n
	}()
	stop()
	if n := <-got; n > pieceBytes/2 {
		t.Errorf("%d bytes more at one byte per second", n)
	}
}

// A Mac that floods another one with requests costs it few verifications, and no
// other Mac its own.
func TestServerBoundsTheRequestsOfAMac(t *testing.T) {
	s := newStand(t, nil)
	path := agentapi.WeightsPath(digest, sum)
	flood := &http.Client{Timeout: patience.Of(t), Transport: &http.Transport{TLSClientConfig: agentapi.WeightsClientTLS(s.ca.Mac("asker").Pair(t), s.ca.Roots(), "giver")}}
	defer flood.CloseIdleConnections()
	began, verified, busy := time.Now(), 0, 0
	for range 2 * requestBurst {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodHead, fmt.Sprintf("https://%s:%d%s", s.addr.Host, s.addr.Port, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(agentapi.HeaderGrant, "none")
		resp, err := flood.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusForbidden:
			verified++
		case http.StatusServiceUnavailable:
			busy++
		}
	}
	if most := requestBurst + int(time.Since(began).Seconds()*requestRate) + 1; verified > most || verified+busy != 2*requestBurst {
		t.Errorf("%d of %d were verified, want at most %d; %d were refused", verified, 2*requestBurst, most, busy)
	}
	if status, _, err := s.get(s.ca.Mac("other"), path, s.grant(func(g *agentapi.Grant) { g.Client = "other" })); status != http.StatusOK || err != nil {
		t.Errorf("another Mac: HTTP %d, %v", status, err)
	}
}

func TestServerThatSharesNothingReturnsNotFound(t *testing.T) {
	s := newStand(t, func(c *ServerConfig) { c.AtOnce = 0 })
	if status, _, err := s.get(s.ca.Mac("asker"), agentapi.WeightsPath(digest, sum), s.grant(nil)); status != http.StatusNotFound || err != nil {
		t.Errorf("HTTP %d, %v", status, err)
	}
}

func TestFailureDecidesHowLongAPeerIsAvoided(t *testing.T) {
	mismatch := &download.Error{Reason: v1alpha1.ReasonDigestMismatch}
	for name, tc := range map[string]struct {
		err    error
		reason string
		avoid  time.Duration
	}{
		"other bytes":       {err: fmt.Errorf("copy: %w", mismatch), reason: reasonLied, avoid: 24 * time.Hour},
		"too slow":          {err: &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Err: errSlow}, reason: reasonSlow, avoid: 10 * time.Minute},
		"busy":              {err: &download.Error{Status: 503}, reason: reasonRefused, avoid: 0},
		"the grant expired": {err: &download.Error{Status: 403}, reason: reasonRefused, avoid: time.Minute},
		"not there":         {err: &download.Error{Status: 404}, reason: reasonRefused, avoid: time.Minute},
		"cut":               {err: errors.New("connection reset"), reason: reasonGone, avoid: time.Minute},
	} {
		if reason, avoid := verdict(tc.err); reason != tc.reason || avoid != tc.avoid {
			t.Errorf("%s: %s for %s", name, reason, avoid)
		}
	}
}

package identity

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/test/patience"
)

// line is a connection that stays open: what is sent comes back.
type line struct {
	t    *testing.T
	conn *tls.Conn
}

func dial(t *testing.T, i *Identity, gateway material) *line {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", i.ServerTLS())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 1)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}()
	pair, err := tls.X509KeyPair(gateway.Certificate, gateway.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots, _, err := agentapi.Roots(gateway.Authority)
	if err != nil {
		t.Fatal(err)
	}
	config := agentapi.ClientTLS(func() (*tls.Certificate, error) { return &pair, nil }, roots, "m1")
	c, err := tls.Dial("tcp", l.Addr().String(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = l.Close(); <-ended })
	return &line{t: t, conn: c}
}

// echo wants one byte more of the stream.
func (l *line) echo(what string) {
	l.t.Helper()
	b := []byte("x")
	_ = l.conn.SetDeadline(time.Now().Add(patience.Of(l.t)))
	if _, err := l.conn.Write(b); err != nil {
		l.t.Fatalf("%s: %v", what, err)
	}
	if _, err := l.conn.Read(b); err != nil {
		l.t.Fatalf("%s: the connection was cut: %v", what, err)
	}
}

// TestAConnectionOutlivesARotation, and new ones are made at each of its steps.
func TestAConnectionOutlivesARotation(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	both := slices.Concat(a.pem, b.pem)
	gateway := func(of authority, trusts []byte) material {
		m := of.leaf(t, agentapi.GatewayName, x509.ExtKeyUsageClientAuth)
		m.Authority = trusts
		return m
	}
	i := open(t, t.TempDir())
	i.learn(a.pem)
	if err := i.take(a.mac(t, "m1")); err != nil {
		t.Fatal(err)
	}
	stream := dial(t, i, gateway(a, a.pem))
	renewed := func() {
		m := b.mac(t, "m1")
		if err := i.renewed(m.Certificate, m.Key); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		what    string
		do      func()
		gateway material
		ok      bool
	}{
		{what: "before", do: func() {}, gateway: gateway(a, a.pem), ok: true},
		{what: "the gateway trusts both", do: func() {}, gateway: gateway(a, both), ok: true},
		{what: "a gateway of the next root comes too early", do: func() {}, gateway: gateway(b, both), ok: false},
		{what: "the Mac trusts both", do: func() { i.learn(both) }, gateway: gateway(a, a.pem), ok: true},
		{what: "the next root signs for a gateway", do: func() {}, gateway: gateway(b, both), ok: true},
		{what: "the next root signs for the Mac", do: renewed, gateway: gateway(a, both), ok: true},
		{what: "and for both", do: func() {}, gateway: gateway(b, both), ok: true},
		{what: "the gateway drops the old root", do: func() {}, gateway: gateway(b, b.pem), ok: true},
		{what: "the Mac drops the old root", do: func() { i.learn(b.pem) }, gateway: gateway(b, both), ok: true},
		{what: "both have", do: func() {}, gateway: gateway(b, b.pem), ok: true},
		{what: "a gateway of the old root comes too late", do: func() {}, gateway: gateway(a, both), ok: false},
	} {
		step.do()
		if _, err := handshake(t, i, step.gateway); (err == nil) != step.ok {
			t.Errorf("%s: a new connection: %v, want ok=%v", step.what, err, step.ok)
		}
		stream.echo(step.what)
	}
}

// TestWhatIsTrustedIsTold, also before there is a certificate and after a restart.
func TestWhatIsTrustedIsTold(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	i := open(t, dir)
	if got := i.TrustedRoots(); got != nil {
		t.Errorf("a new Mac trusts %v", got)
	}
	want := func(what string, told bool, roots ...authority) {
		t.Helper()
		var fingerprints []string
		for _, r := range roots {
			fingerprints = append(fingerprints, agentapi.Fingerprint(r.cert))
		}
		slices.Sort(fingerprints)
		if got := i.TrustedRoots(); !slices.Equal(got, fingerprints) {
			t.Errorf("%s: it trusts %v, want %v", what, got, fingerprints)
		}
		select {
		case <-i.Changed():
			if !told {
				t.Errorf("%s: told without a change", what)
			}
		default:
			if told {
				t.Errorf("%s: no change is reported", what)
			}
		}
	}
	i.learn(a.pem)
	want("without a certificate", true, a)
	if err := i.take(a.mac(t, "m1")); err != nil {
		t.Fatal(err)
	}
	want("with one", false, a)
	i.learn(slices.Concat(a.pem, b.pem))
	want("both", true, a, b)
	i.learn(slices.Concat(b.pem, a.pem))
	want("both, in another order", false, a, b)
	i = open(t, dir)
	want("after a restart", true, a, b)
	i.learn(b.pem)
	want("the next alone", true, b)
}

// TestAConnectionIsTrustedAsLongAsItsRoot.
func TestAConnectionIsTrustedAsLongAsItsRoot(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	opened := func(of authority) *tls.ConnectionState {
		return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{of.certificate(t, of.leaf(t, agentapi.GatewayName, x509.ExtKeyUsageClientAuth))}}
	}
	i := open(t, t.TempDir())
	if i.Trusts(opened(a)) {
		t.Error("a new Mac trusts a root")
	}
	i.learn(slices.Concat(a.pem, b.pem))
	if !i.Trusts(opened(a)) || !i.Trusts(opened(b)) || i.Trusts(nil) || i.Trusts(&tls.ConnectionState{}) {
		t.Error("both roots are trusted, and nothing else")
	}
	i.learn(b.pem)
	if i.Trusts(opened(a)) || !i.Trusts(opened(b)) {
		t.Error("a root that left is trusted, or one that stays is not")
	}
	expired := b.certificate(t, b.ended(t))
	if !i.Trusts(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{expired}}) {
		t.Error("a connection whose certificate expired since ends")
	}
}

// TestACertificateThatComesLateDoesNotBringBackAnOldRoot: it was asked for
// before the root left.
func TestACertificateThatComesLateDoesNotBringBackAnOldRoot(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	i := open(t, t.TempDir())
	i.learn(slices.Concat(a.pem, b.pem))
	late := b.mac(t, "m1")
	i.learn(b.pem)
	if err := i.renewed(late.Certificate, late.Key); err != nil {
		t.Fatal(err)
	}
	old := a.leaf(t, agentapi.GatewayName, x509.ExtKeyUsageClientAuth)
	old.Authority = slices.Concat(a.pem, b.pem)
	if _, err := handshake(t, i, old); err == nil {
		t.Error("a gateway of the old root is let in")
	}
	if got := i.TrustedRoots(); len(got) != 1 {
		t.Errorf("it trusts %d roots", len(got))
	}
}

// TestATrustThatWasWithdrawnStaysSoAfterARestart, although the certificate of
// the old root is still the one that is there.
func TestATrustThatWasWithdrawnStaysSoAfterARestart(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	i := open(t, dir)
	if err := i.take(a.mac(t, "m1")); err != nil {
		t.Fatal(err)
	}
	i.learn(b.pem)
	if !i.Known() {
		t.Error("the pair of the old root does not serve on")
	}
	raw, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	var m material
	if err := json.Unmarshal(raw, &m); err != nil || string(m.Authority) != string(b.pem) {
		t.Errorf("the file trusts the old root: %v", err)
	}
	if i = open(t, dir); i.Known() {
		t.Error("after a restart it is used under the old root")
	}
}

// A Mac that was deleted is refused as a peer at once, after a restart too, and until the
// Secret no longer names it.
func TestDeletedMacsAreRefused(t *testing.T) {
	a := newAuthority(t)
	dir := t.TempDir()
	i := open(t, dir)
	list, err := agentapi.Revoked{}.Add("u1", time.Now(), time.Now().Add(time.Hour)).Encode()
	if err != nil {
		t.Fatal(err)
	}
	if i.Revoked("u1") || i.Revoked("") {
		t.Error("refused before it was deleted")
	}
	i.revoke(list)
	if err := i.take(a.mac(t, "m1")); err != nil {
		t.Fatal(err)
	}
	for _, again := range []string{"learnt before the certificate", "after a restart", "named again"} {
		if !i.Revoked("u1") || i.Revoked("u2") {
			t.Errorf("%s: refused u1 %t, u2 %t", again, i.Revoked("u1"), i.Revoked("u2"))
		}
		i.revoke([]byte("no list")) // keeps what is known
		if again == "learnt before the certificate" {
			i = open(t, dir)
		} else {
			i.revoke(list)
		}
	}
	c, err := i.WeightsTLS("m2")
	if err != nil {
		t.Fatal(err)
	}
	peer := func(uid string) tls.ConnectionState {
		template := &x509.Certificate{DNSNames: []string{c.ServerName}, URIs: []*url.URL{agentapi.MacURI(uid)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		raw, _, _ := sign(t, template, a.cert, a.key)
		return tls.ConnectionState{ServerName: c.ServerName, PeerCertificates: []*x509.Certificate{a.certificate(t, material{Certificate: raw})}}
	}
	if err := c.VerifyConnection(peer("u1")); !errors.Is(err, agentapi.ErrReplaced) {
		t.Errorf("weights are read from a deleted Mac: %v", err)
	}
	if err := c.VerifyConnection(peer("u2")); err != nil {
		t.Error(err)
	}
	i.revoke(nil)
	if i.Revoked("u1") || open(t, dir).Revoked("u1") {
		t.Error("refused although the Secret does not name it")
	}
}

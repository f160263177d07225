package agentapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/patience"
)

// authority is a throw-away CA.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	a.cert, a.key = issue(t, nil, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) leaf(t *testing.T, name string, usage x509.ExtKeyUsage) func() (*tls.Certificate, error) {
	t.Helper()
	cert, key := issue(t, a, &x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{usage}, KeyUsage: x509.KeyUsageDigitalSignature})
	return func() (*tls.Certificate, error) {
		return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}, nil
	}
}

func issue(t *testing.T, parent *authority, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: "test"}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	signer, signerKey := template, key
	if parent != nil {
		signer, signerKey = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, key.Public(), signerKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// handshake runs one TLS handshake and exchanges one byte each way, so that the server's
// refusal of a client certificate (after the client's own Finished) is noticed.
func handshake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience.Of(t)))
		_, err = tls.Server(c, server).Write([]byte("x"))
		served <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience.Of(t)))
	_, clientErr := tls.Client(c, client).Read(make([]byte, 1))
	c.Close()
	if serverErr := <-served; serverErr != nil {
		return serverErr
	}
	return clientErr
}

func TestWhoMaySpeakToWhom(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	mac := ours.leaf(t, MacServerName("studio-1"), x509.ExtKeyUsageServerAuth)
	gateway := ours.leaf(t, GatewayName, x509.ExtKeyUsageClientAuth)
	for name, tc := range map[string]struct {
		server, client func() (*tls.Certificate, error)
		dial           string
		ok             bool
	}{
		"a gateway reaches the Mac it dials":                   {server: mac, client: gateway, dial: "studio-1", ok: true},
		"another Mac at that address is refused":               {server: mac, client: gateway, dial: "studio-2"},
		"a client certificate of another name is refused":      {server: mac, client: ours.leaf(t, "intruder.metalfleet.dev", x509.ExtKeyUsageClientAuth), dial: "studio-1"},
		"a Mac's own certificate is no gateway's":              {server: mac, client: ours.leaf(t, GatewayName, x509.ExtKeyUsageServerAuth), dial: "studio-1"},
		"a gateway's name under a foreign CA is refused":       {server: mac, client: theirs.leaf(t, GatewayName, x509.ExtKeyUsageClientAuth), dial: "studio-1"},
		"a Mac's name under a foreign CA is refused":           {server: theirs.leaf(t, MacServerName("studio-1"), x509.ExtKeyUsageServerAuth), client: gateway, dial: "studio-1"},
		"a client without a certificate is refused":            {server: mac, client: func() (*tls.Certificate, error) { return &tls.Certificate{}, nil }, dial: "studio-1"},
		"a gateway's certificate does not serve a Mac's place": {server: gateway, client: gateway, dial: "studio-1"},
	} {
		t.Run(name, func(t *testing.T) {
			err := handshake(t, ServerTLS(tc.server, ours.pool), ClientTLS(tc.client, ours.pool, tc.dial))
			if (err == nil) != tc.ok {
				t.Errorf("handshake: %v, want ok=%v", err, tc.ok)
			}
		})
	}
}

// TestAttackAnOldSession: a session must not be resumed, because its certificate or
// authority may no longer be valid.
func TestAttackAnOldSession(t *testing.T) {
	ours := newAuthority(t)
	server := ServerTLS(ours.leaf(t, MacServerName("studio-1"), x509.ExtKeyUsageServerAuth), ours.pool)
	client := ClientTLS(ours.leaf(t, GatewayName, x509.ExtKeyUsageClientAuth), ours.pool, "studio-1")
	client.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	resumed := false
	verify := client.VerifyConnection
	client.VerifyConnection = func(s tls.ConnectionState) error { resumed = resumed || s.DidResume; return verify(s) }
	for range 2 {
		if err := handshake(t, server, client); err != nil {
			t.Fatal(err)
		}
	}
	if resumed {
		t.Error("a session was taken up again")
	}
}

// A name may be used again; only the certificate of the MacNode that has it now is accepted.
func TestAClientRequiresTheUIDOfAMac(t *testing.T) {
	peer := func(uris ...*url.URL) tls.ConnectionState {
		return tls.ConnectionState{PeerCertificates: []*x509.Certificate{{URIs: uris}}}
	}
	verify := RequireUID(&tls.Config{}, "u1").VerifyConnection
	for name, c := range map[string]struct {
		peer tls.ConnectionState
		want error
	}{
		"its own":        {peer: peer(MacURI("u1")), want: nil},
		"another's":      {peer: peer(MacURI("u2")), want: ErrReplaced},
		"of no UID":      {peer: peer(), want: ErrReplaced},
		"of two":         {peer: peer(MacURI("u1"), MacURI("u2")), want: ErrReplaced},
		"of another URI": {peer: peer(&url.URL{Scheme: "urn", Opaque: "u1"}), want: ErrReplaced},
	} {
		if err := verify(c.peer); !errors.Is(err, c.want) {
			t.Errorf("a certificate %s: %v, want %v", name, err, c.want)
		}
	}
	if verify(tls.ConnectionState{}) == nil {
		t.Error("no certificate is accepted")
	}
}

// TestKeyExchangesThatTakeLongAreRefused: anyone may begin a handshake, and the client chooses.
func TestKeyExchangesThatTakeLongAreRefused(t *testing.T) {
	ours := newAuthority(t)
	server := ServerTLS(ours.leaf(t, MacServerName("studio-1"), x509.ExtKeyUsageServerAuth), ours.pool)
	for curve, ok := range map[tls.CurveID]bool{tls.X25519MLKEM768: true, tls.X25519: true, tls.CurveP256: true, tls.CurveP384: false, tls.CurveP521: false} {
		client := ClientTLS(ours.leaf(t, GatewayName, x509.ExtKeyUsageClientAuth), ours.pool, "studio-1")
		client.CurvePreferences = []tls.CurveID{curve}
		if err := handshake(t, server, client); (err == nil) != ok {
			t.Errorf("%s: %v", curve, err)
		}
	}
}

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

// handshake runs one TLS handshake and one byte each way, so that the server's
// refusal of a client certificate (after the client's own Finished) is seen.
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
		"a gateway reaches the Mac it dials":                   {mac, gateway, "studio-1", true},
		"another Mac at that address is refused":               {mac, gateway, "studio-2", false},
		"a client certificate of another name is refused":      {mac, ours.leaf(t, "intruder.metalfleet.dev", x509.ExtKeyUsageClientAuth), "studio-1", false},
		"a Mac's own certificate is no gateway's":              {mac, ours.leaf(t, GatewayName, x509.ExtKeyUsageServerAuth), "studio-1", false},
		"a gateway's name under a foreign CA is refused":       {mac, theirs.leaf(t, GatewayName, x509.ExtKeyUsageClientAuth), "studio-1", false},
		"a Mac's name under a foreign CA is refused":           {theirs.leaf(t, MacServerName("studio-1"), x509.ExtKeyUsageServerAuth), gateway, "studio-1", false},
		"a client without a certificate is refused":            {mac, func() (*tls.Certificate, error) { return &tls.Certificate{}, nil }, "studio-1", false},
		"a gateway's certificate does not serve a Mac's place": {gateway, gateway, "studio-1", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := handshake(t, ServerTLS(tc.server, ours.pool), ClientTLS(tc.client, ours.pool, tc.dial))
			if (err == nil) != tc.ok {
				t.Errorf("handshake: %v, want ok=%v", err, tc.ok)
			}
		})
	}
}

// TestAttackAnOldSession: what was proved in one handshake is not carried over
// to another one, in which certificate and authority may be good no more.
func TestAttackAnOldSession(t *testing.T) {
	ours := newAuthority(t)
	server := ServerTLS(ours.leaf(t, MacServerName("studio-1"), x509.ExtKeyUsageServerAuth), ours.pool)
	client := ClientTLS(ours.leaf(t, GatewayName, x509.ExtKeyUsageClientAuth), ours.pool, "studio-1")
	client.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	resumed := false
	client.VerifyConnection = func(s tls.ConnectionState) error { resumed = resumed || s.DidResume; return nil }
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
		"its own":        {peer(MacURI("u1")), nil},
		"another's":      {peer(MacURI("u2")), ErrReplaced},
		"of no UID":      {peer(), ErrReplaced},
		"of two":         {peer(MacURI("u1"), MacURI("u2")), ErrReplaced},
		"of another URI": {peer(&url.URL{Scheme: "urn", Opaque: "u1"}), ErrReplaced},
		"none":           {tls.ConnectionState{}, ErrReplaced},
	} {
		if err := verify(c.peer); !errors.Is(err, c.want) {
			t.Errorf("a certificate %s: %v, want %v", name, err, c.want)
		}
	}
}

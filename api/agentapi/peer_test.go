package agentapi

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"testing"
	"time"
)

// signed issues a certificate for any key; nil authority signs with the key itself.
func signed(t *testing.T, template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) *x509.Certificate {
	t.Helper()
	template.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ecdsaKey(t *testing.T, of elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(of, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func certificateOf(key crypto.PrivateKey, certs []*x509.Certificate) func() (*tls.Certificate, error) {
	c := &tls.Certificate{PrivateKey: key}
	for _, one := range certs {
		c.Certificate = append(c.Certificate, one.Raw)
	}
	return func() (*tls.Certificate, error) { return c, nil }
}

// madeUp is a certificate for a name, and 100 authorities of one name with large keys, none
// of which signed it. It needs no secret of the fleet.
func madeUp(t *testing.T, name string, usage x509.ExtKeyUsage) (crypto.PrivateKey, []*x509.Certificate) {
	t.Helper()
	authority := func() *x509.Certificate {
		return &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true}
	}
	key, large := ecdsaKey(t, elliptic.P256()), ecdsaKey(t, elliptic.P521())
	leaf := &x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{usage}, SignatureAlgorithm: x509.ECDSAWithSHA512}
	certs := []*x509.Certificate{signed(t, leaf, authority(), key.Public(), large)}
	for range 100 {
		certs = append(certs, signed(t, authority(), &x509.Certificate{Subject: pkix.Name{CommonName: "root"}}, ecdsaKey(t, elliptic.P521()).Public(), key))
	}
	return key, certs
}

// TestAttackAChainOfAuthorities: a peer that has not authenticated causes no signature to be
// checked by keys of its choice, which would take a third of a second.
func TestAttackAChainOfAuthorities(t *testing.T) {
	ours := newAuthority(t)
	_, certs := madeUp(t, GatewayName, x509.ExtKeyUsageClientAuth)
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	began := time.Now()
	if _, err := certs[0].Verify(x509.VerifyOptions{Roots: ours.pool, Intermediates: between}); err == nil {
		t.Fatal("the library accepts the chain")
	}
	library := time.Since(began)
	for intermediates := range 4 {
		p := Peer{Roots: ours.pool, Usage: x509.ExtKeyUsageClientAuth, Intermediates: intermediates}
		for _, n := range []int{len(certs), 1 + intermediates} {
			best := library
			for range 3 { // one may be interrupted by another program
				began = time.Now()
				if err := p.Verify(certs[:n]); err == nil {
					t.Errorf("%d of %d certificates are accepted", n, 1+intermediates)
				}
				best = min(best, time.Since(began))
			}
			if best > library/10 {
				t.Errorf("%d of %d certificates are refused after %s; the library takes %s", n, 1+intermediates, best, library)
			}
		}
	}
}

// A chain is refused at every port and by every client, even if it leads to a trusted root.
func TestAPeerHasOneCertificateOfARoot(t *testing.T) {
	ours := newAuthority(t)
	mac := ours.leaf(t, MacServerName("studio-1"), x509.ExtKeyUsageServerAuth)
	gateway := ours.leaf(t, GatewayName, x509.ExtKeyUsageClientAuth)
	key := ecdsaKey(t, elliptic.P256())
	middle := signed(t, &x509.Certificate{Subject: pkix.Name{CommonName: "middle"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, ours.cert, key.Public(), ours.key)
	chain := func(name string, usage x509.ExtKeyUsage, signer *x509.Certificate, by *ecdsa.PrivateKey) func() (*tls.Certificate, error) {
		own := ecdsaKey(t, elliptic.P256())
		leaf := signed(t, &x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{usage}}, signer, own.Public(), by)
		return certificateOf(own, []*x509.Certificate{leaf, middle})
	}
	const client, server = x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	peer := ClientTLS(mac, ours.pool, "studio-1")
	weights := func(as func() (*tls.Certificate, error)) *tls.Config {
		return WeightsClientTLS(as, ours.pool, "studio-1")
	}
	for name, c := range map[string]struct {
		server, client *tls.Config
		ok             bool
	}{
		"a gateway":                           {server: ServerTLS(mac, ours.pool), client: ClientTLS(gateway, ours.pool, "studio-1"), ok: true},
		"a gateway of an intermediate":        {server: ServerTLS(mac, ours.pool), client: ClientTLS(chain(GatewayName, client, middle, key), ours.pool, "studio-1")},
		"a gateway with a second one":         {server: ServerTLS(mac, ours.pool), client: ClientTLS(chain(GatewayName, client, ours.cert, ours.key), ours.pool, "studio-1")},
		"a Mac of an intermediate":            {server: ServerTLS(chain(MacServerName("studio-1"), server, middle, key), ours.pool), client: ClientTLS(gateway, ours.pool, "studio-1")},
		"a Mac with a second one":             {server: ServerTLS(chain(MacServerName("studio-1"), server, ours.cert, ours.key), ours.pool), client: ClientTLS(gateway, ours.pool, "studio-1")},
		"a peer":                              {server: WeightsServerTLS(mac, ours.pool), client: weights(mac), ok: true},
		"a peer of an intermediate":           {server: WeightsServerTLS(mac, ours.pool), client: weights(chain(MacServerName("studio-2"), server, middle, key))},
		"a peer with a second one":            {server: WeightsServerTLS(mac, ours.pool), client: weights(chain(MacServerName("studio-2"), server, ours.cert, ours.key))},
		"a gateway for weights":               {server: WeightsServerTLS(mac, ours.pool), client: weights(gateway)},
		"a Mac where a UID is wanted as well": {server: ServerTLS(chain(MacServerName("studio-1"), server, middle, key), ours.pool), client: Also(peer.Clone(), func(*x509.Certificate) error { return nil })},
	} {
		if err := handshake(t, c.server, c.client); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok=%v", name, err, c.ok)
		}
	}
}

// A key is judged by its size before anything is computed with it.
func TestAttackLargeKeysInCertificates(t *testing.T) {
	ours := newAuthority(t)
	modulus := func(bits int) *rsa.PublicKey {
		n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
		return &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 65537}
	}
	for name, c := range map[string]struct {
		key   crypto.PublicKey
		names int
		ok    bool
	}{
		"P-256":             {key: ecdsaKey(t, elliptic.P256()).Public(), ok: true},
		"P-384":             {key: ecdsaKey(t, elliptic.P384()).Public(), ok: true},
		"P-521":             {key: ecdsaKey(t, elliptic.P521()).Public()},
		"RSA of 4,096 bits": {key: modulus(4096), ok: true},
		"RSA of 4,104 bits": {key: modulus(4104)},
		"RSA of 8,192 bits": {key: modulus(8192)},
		"many names":        {key: ecdsaKey(t, elliptic.P256()).Public(), names: 1000},
	} {
		template := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		for range c.names {
			template.DNSNames = append(template.DNSNames, GatewayName)
		}
		leaf := signed(t, template, ours.cert, c.key, ours.key)
		err := Peer{Roots: ours.pool, Usage: x509.ExtKeyUsageClientAuth}.Verify([]*x509.Certificate{leaf})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok=%v", name, err, c.ok)
		}
	}
}

// A peer is verified by name, purpose, time and root.
func TestAPeerIsVerified(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	of := func(a *authority) []*x509.Certificate {
		return []*x509.Certificate{signed(t, &x509.Certificate{DNSNames: []string{"a.b"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, a.cert, ecdsaKey(t, elliptic.P256()).Public(), a.key)}
	}
	const server = x509.ExtKeyUsageServerAuth
	for name, c := range map[string]struct {
		peer  Peer
		certs []*x509.Certificate
		ok    bool
	}{
		"itself":             {peer: Peer{Roots: ours.pool, Usage: server, Name: "a.b"}, certs: of(ours), ok: true},
		"any name":           {peer: Peer{Roots: ours.pool, Usage: server}, certs: of(ours), ok: true},
		"another name":       {peer: Peer{Roots: ours.pool, Usage: server, Name: "c.b"}, certs: of(ours)},
		"another purpose":    {peer: Peer{Roots: ours.pool, Usage: x509.ExtKeyUsageClientAuth}, certs: of(ours)},
		"another root":       {peer: Peer{Roots: ours.pool, Usage: server}, certs: of(theirs)},
		"later":              {peer: Peer{Roots: ours.pool, Usage: server, Now: time.Now().Add(2 * time.Hour)}, certs: of(ours)},
		"no certificate":     {peer: Peer{Roots: ours.pool, Usage: server}},
		"no root":            {peer: Peer{Roots: x509.NewCertPool(), Usage: server}, certs: of(ours)},
		"roots are left out": {peer: Peer{Usage: server}, certs: of(ours)},
	} {
		if err := c.peer.Verify(c.certs); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok=%v", name, err, c.ok)
		}
		var failed *tls.CertificateVerificationError
		if err := c.peer.VerifyConnection(tls.ConnectionState{PeerCertificates: c.certs}); (err == nil) != c.ok || err != nil && !errors.As(err, &failed) {
			t.Errorf("%s, in a handshake: %v, want ok=%v", name, err, c.ok)
		}
	}
}

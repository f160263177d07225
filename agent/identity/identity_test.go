package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func sign(t *testing.T, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (certPEM, keyPEM []byte, key *ecdsa.PrivateKey) {
	t.Helper()
	return signBetween(t, template, parent, signer, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
}

func signBetween(t *testing.T, template, parent *x509.Certificate, signer *ecdsa.PrivateKey, from, until time.Time) (certPEM, keyPEM []byte, key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		t.Fatal(err)
	}
	template.NotBefore, template.NotAfter = from, until
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), key
}

func newAuthority(t *testing.T) authority {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	certPEM, _, key := signBetween(t, template, template, nil, time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0))
	block, _ := pem.Decode(certPEM)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert: cert, key: key, pem: certPEM}
}

func (a authority) leaf(t *testing.T, name string, usage x509.ExtKeyUsage) material {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{usage}, KeyUsage: x509.KeyUsageDigitalSignature}
	cert, key, _ := sign(t, template, a.cert, a.key)
	return material{Certificate: cert, Key: key, Authority: a.pem}
}

func (a authority) mac(t *testing.T, name string) material {
	return a.leaf(t, agentapi.MacServerName(name), x509.ExtKeyUsageServerAuth)
}

// certificate parses the one of a material.
func (authority) certificate(t *testing.T, m material) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(m.Certificate)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ended is a gateway's material that has expired.
func (a authority) ended(t *testing.T) material {
	t.Helper()
	template := &x509.Certificate{DNSNames: []string{agentapi.GatewayName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	cert, key, _ := signBetween(t, template, a.cert, a.key, time.Now().Add(-30*time.Minute), time.Now().Add(-time.Minute))
	return material{Certificate: cert, Key: key, Authority: a.pem}
}

func open(t *testing.T, dir string) *Identity {
	t.Helper()
	i, err := Open(dir, "m1", logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestOnlyAnIdentityThatCouldServeIsUsed(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	good := a.mac(t, "m1")
	mixed := good
	mixed.Key = a.mac(t, "m1").Key
	foreign := good
	foreign.Authority = b.pem
	none := good
	none.Authority = []byte("nothing")
	for name, tc := range map[string]struct {
		m    material
		want string
	}{
		"its own":                    {m: good, want: ""},
		"another Mac's":              {m: a.mac(t, "m2"), want: "not m1.mac"},
		"a gateway's":                {m: a.leaf(t, agentapi.MacServerName("m1"), x509.ExtKeyUsageClientAuth), want: "key usage"},
		"a key of another":           {m: mixed, want: "private key does not match"},
		"signed by another root":     {m: foreign, want: "unknown authority"},
		"without an authority":       {m: none, want: "other than certificates"},
		"nothing at all (a new Mac)": {m: material{}, want: "certificate and key"},
	} {
		t.Run(name, func(t *testing.T) {
			i := open(t, t.TempDir())
			err := i.take(tc.m)
			if tc.want == "" && (err != nil || !i.Known()) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || i.Known()) {
				t.Errorf("known %v, %v; want %q", i.Known(), err, tc.want)
			}
		})
	}
}

func TestTheIdentityIsKeptOnDiskForThisUserAlone(t *testing.T) {
	dir, m := t.TempDir(), newAuthority(t).mac(t, "m1")
	if err := open(t, dir).take(m); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, fileName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if !open(t, dir).Known() {
		t.Error("forgotten over a restart")
	}
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if i := open(t, dir); i.Known() || i.take(m) != nil {
		t.Error("a damaged copy stands in the way")
	}
}

// handshake dials the identity's listener as a gateway and returns the
// certificate that it showed.
func handshake(t *testing.T, i *Identity, gateway material) (serial string, err error) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", i.ServerTLS())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.(*tls.Conn).HandshakeContext(t.Context())
			_, _ = c.Write([]byte("x"))
			_ = c.Close()
		}
		served <- err
	}()
	pair, err := tls.X509KeyPair(gateway.Certificate, gateway.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(gateway.Authority)
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, agentapi.ClientTLS(func() (*tls.Certificate, error) { return &pair, nil }, roots, "m1"))
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	if sErr := <-served; err == nil {
		err = sErr
	}
	if err != nil {
		return "", err
	}
	return c.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

func TestARenewedCertificateIsShownWithoutARestart(t *testing.T) {
	a := newAuthority(t)
	gateway := a.leaf(t, agentapi.GatewayName, x509.ExtKeyUsageClientAuth)
	i := open(t, t.TempDir())
	if _, err := handshake(t, i, gateway); err == nil {
		t.Error("a Mac without identity completed a handshake")
	}
	if err := i.take(a.mac(t, "m1")); err != nil {
		t.Fatal(err)
	}
	first, err := handshake(t, i, gateway)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.take(a.mac(t, "m1")); err != nil {
		t.Fatal(err)
	}
	if second, err := handshake(t, i, gateway); err != nil || second == first {
		t.Errorf("serial %s after %s, %v", second, first, err)
	}
	b := newAuthority(t) // a new authority is heeded too
	if err := i.take(b.mac(t, "m1")); err != nil {
		t.Fatal(err)
	}
	if _, err := handshake(t, i, gateway); err == nil {
		t.Error("a gateway of the old authority is let in")
	}
	if _, err := handshake(t, i, b.leaf(t, "stranger", x509.ExtKeyUsageClientAuth)); err == nil {
		t.Error("a client that is no gateway is let in")
	}
	if err := i.take(a.mac(t, "m2")); err == nil || errors.Is(err, errNone) || !i.Known() {
		t.Errorf("a useless identity replaced a good one: %v", err)
	}
}

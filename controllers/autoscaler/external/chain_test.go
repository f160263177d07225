package external

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
)

// TestAttackAChainToTheMetrics: an API server's authority may have intermediate ones; a chain
// of more, or of keys that take long, is refused at the handshake.
func TestAttackAChainToTheMetrics(t *testing.T) {
	root := newLink(t, nil, elliptic.P256())
	v := &Vouched{Now: time.Now, Live: fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: trustNamespace, Name: trustName},
		Data:       map[string]string{keyCA: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.cert.Raw})), keyUser: `["X-Remote-User"]`},
	}).Build()}
	own, err := agentapitest.NewCA(t).Server("metrics").Pair(t)()
	if err != nil {
		t.Fatal(err)
	}
	config := v.TLS(func(context.Context) (*tls.Certificate, error) { return own, nil })
	for name, c := range map[string]struct {
		curves []elliptic.Curve // of the intermediates
		ok     bool
	}{
		"none":       {ok: true},
		"three":      {curves: []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P256()}, ok: true},
		"four":       {curves: slices.Repeat([]elliptic.Curve{elliptic.P256()}, 4)},
		"large keys": {curves: []elliptic.Curve{elliptic.P521()}},
	} {
		at, between := root, [][]byte(nil)
		for _, curve := range c.curves {
			at = newLink(t, at, curve)
			between = slices.Insert(between, 0, at.cert.Raw)
		}
		leaf := newLink(t, at, elliptic.P256())
		client := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{{PrivateKey: leaf.key, Certificate: append([][]byte{leaf.cert.Raw}, between...)}}}
		near, far := net.Pipe()
		ended := make(chan error, 1)
		go func() { _, err := tls.Client(near, client).Read(make([]byte, 1)); ended <- err }()
		err := tls.Server(far, config).HandshakeContext(t.Context())
		far.Close()
		<-ended
		near.Close()
		if (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok=%v", name, err, c.ok)
		}
	}
}

// link is a certificate of a chain, which may sign others.
type link struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newLink is signed by another one, or by itself.
func newLink(t *testing.T, by *link, curve elliptic.Curve) *link {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		Subject: pkix.Name{CommonName: rand.Text()}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if by == nil {
		by = &link{cert: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &link{cert: cert, key: key}
}

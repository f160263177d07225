package identity

import (
	"bytes"
	"crypto/x509"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Unix(1_800_000_000, 0)

func authorityAt(t *testing.T, at time.Time) *authority {
	t.Helper()
	data, err := newAuthority(at)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := parseAuthority(&corev1.Secret{Data: data})
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestLeavesAreRenewedInTime(t *testing.T) {
	ca, other := authorityAt(t, now), authorityAt(t, now)
	mac := leaf{dnsName: "m.mac.metalfleet.dev", usage: x509.ExtKeyUsageServerAuth}
	data, err := ca.issue(mac, now)
	if err != nil {
		t.Fatal(err)
	}
	swapped, err := ca.issue(mac, now)
	if err != nil {
		t.Fatal(err)
	}
	swapped[corev1.TLSPrivateKeyKey] = data[corev1.TLSPrivateKeyKey]
	due := leafLife*renewPercent/100 - backdate*(100-renewPercent)/100
	for name, tc := range map[string]struct {
		ca   *authority
		leaf leaf
		data map[string][]byte
		at   time.Time
		left time.Duration
	}{
		"fresh":                 {ca, mac, data, now, due},
		"just before 70 %":      {ca, mac, data, now.Add(due - time.Second), time.Second},
		"at 70 %":               {ca, mac, data, now.Add(due), 0},
		"of another authority":  {other, mac, data, now, 0},
		"of another name":       {ca, leaf{"n.mac.metalfleet.dev", mac.usage}, data, now, 0},
		"of another use":        {ca, leaf{mac.dnsName, x509.ExtKeyUsageClientAuth}, data, now, 0},
		"with a key of another": {ca, mac, swapped, now, 0},
		"missing":               {ca, mac, nil, now, 0},
		"that is no PEM":        {ca, mac, map[string][]byte{corev1.TLSCertKey: []byte("x"), corev1.TLSPrivateKeyKey: []byte("y")}, now, 0},
	} {
		if left := tc.ca.renewIn(tc.leaf, tc.data, tc.at); left != tc.left {
			t.Errorf("a leaf %s is good for %s, want %s", name, left, tc.left)
		}
	}
}

func TestALeafIsGoodForOneSideAlone(t *testing.T) {
	ca := authorityAt(t, now)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	data, err := ca.issue(leaf{dnsName: "m.mac.metalfleet.dev", usage: x509.ExtKeyUsageServerAuth}, now)
	if err != nil {
		t.Fatal(err)
	}
	cert, _, err := parse(data)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(u x509.ExtKeyUsage) error {
		_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{u}})
		return err
	}
	if err := verify(x509.ExtKeyUsageServerAuth); err != nil {
		t.Errorf("as a server: %v", err)
	}
	if verify(x509.ExtKeyUsageClientAuth) == nil {
		t.Error("a Mac's certificate is good for a client")
	}
	if cert.IsCA || !bytes.Equal(data[keyCA], ca.pem) {
		t.Error("a leaf may sign, or its Secret lacks the authority")
	}
}

func TestADamagedAuthorityIsNotReplaced(t *testing.T) {
	good, err := newAuthority(now)
	if err != nil {
		t.Fatal(err)
	}
	leafData, err := authorityAt(t, now).issue(leaf{"x", x509.ExtKeyUsageServerAuth}, now)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]map[string][]byte{
		"empty": nil, "without a key": {corev1.TLSCertKey: good[corev1.TLSCertKey]}, "a leaf": leafData,
	} {
		_, err := parseAuthority(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: SecretCA}, Data: data})
		if !errors.Is(err, errNoAuthority) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

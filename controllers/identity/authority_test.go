package identity

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/controllers/identity/rotation"
)

var now = time.Unix(1_800_000_000, 0)

// leafLife of the tests' certificates.
const leafLife = 24 * time.Hour

func authorityAt(t *testing.T, at time.Time) *authority {
	t.Helper()
	data, err := newAuthority(at)
	if err != nil {
		t.Fatal(err)
	}
	data[keyIssuedUntil] = stamp(at.Add(leafLife))
	ca, err := parseAuthority(&corev1.Secret{Data: data}, at)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestARootOfAClockAheadIsValidOnceTheClockIsRight(t *testing.T) {
	ca := authorityAt(t, now.Add(caLife-LongestLife))
	data, err := ca.issue(leaf{dnsName: "m.mac.metalfleet.dev", usage: x509.ExtKeyUsageServerAuth}, now, now.Add(leafLife))
	if err != nil {
		t.Fatal(err)
	}
	cert, _, err := parse(data)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	if err := verifies(cert, roots, now, x509.ExtKeyUsageServerAuth); err != nil {
		t.Error(err)
	}
}

func TestLeavesAreRenewedInTime(t *testing.T) {
	ca, other := authorityAt(t, now), authorityAt(t, now)
	mac := leaf{dnsName: "m.mac.metalfleet.dev", usage: x509.ExtKeyUsageServerAuth}
	data, err := ca.issue(mac, now, now.Add(leafLife))
	if err != nil {
		t.Fatal(err)
	}
	swapped, err := ca.issue(mac, now, now.Add(leafLife))
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
		"fresh":                 {ca: ca, leaf: mac, data: data, at: now, left: due},
		"just before 70 %":      {ca: ca, leaf: mac, data: data, at: now.Add(due - time.Second), left: time.Second},
		"at 70 %":               {ca: ca, leaf: mac, data: data, at: now.Add(due)},
		"of a clock ahead":      {ca: ca, leaf: mac, data: data, at: now.Add(-time.Hour)},
		"of another authority":  {ca: other, leaf: mac, data: data, at: now},
		"of another name":       {ca: ca, leaf: leaf{dnsName: "n.mac.metalfleet.dev", usage: mac.usage}, data: data, at: now},
		"of another use":        {ca: ca, leaf: leaf{dnsName: mac.dnsName, usage: x509.ExtKeyUsageClientAuth}, data: data, at: now},
		"with a key of another": {ca: ca, leaf: mac, data: swapped, at: now},
		"missing":               {ca: ca, leaf: mac, at: now},
		"that is no PEM":        {ca: ca, leaf: mac, data: map[string][]byte{corev1.TLSCertKey: []byte("x"), corev1.TLSPrivateKeyKey: []byte("y")}, at: now},
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
	data, err := ca.issue(leaf{dnsName: "m.mac.metalfleet.dev", usage: x509.ExtKeyUsageServerAuth}, now, now.Add(leafLife))
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
	if cert.IsCA || !bytes.Equal(data[keyCA], ca.bundle) {
		t.Error("a leaf may sign, or its Secret lacks the authority")
	}
}

func TestADamagedAuthorityIsNotReplaced(t *testing.T) {
	good := func() map[string][]byte { return authorityData(t, rotation.Spreading) }
	retiring := func() map[string][]byte { return authorityData(t, rotation.Retiring) }
	leafData, err := authorityAt(t, now).issue(leaf{dnsName: "x", usage: x509.ExtKeyUsageServerAuth}, now, now.Add(leafLife))
	if err != nil {
		t.Fatal(err)
	}
	for want, data := range map[string]map[string][]byte{
		"tls.crt is not one PEM block (it is empty)":                    nil,
		"tls.key is not a PEM block":                                    without(good(), corev1.TLSPrivateKeyKey),
		"not a CA's":                                                    leafData,
		"tls.key does not belong to tls.crt":                            with(good(), corev1.TLSPrivateKeyKey, good()[corev1.TLSPrivateKeyKey]),
		"next.crt is not one PEM block (cut off)":                       with(good(), keyNext, good()[keyNext][:100]),
		"next.key is not a PEM block":                                   without(good(), keyNextKey),
		"next.key does not belong to next.crt":                          with(good(), keyNextKey, good()[keyNextKey]),
		"spread-since without next.crt":                                 without(without(good(), keyNext), keyNextKey),
		"spread-since is not a time":                                    with(good(), keySpreadSince, []byte("yesterday")),
		"the same root twice":                                           sameTwice(good()),
		"issued-until is not a time":                                    with(good(), keyIssuedUntil, nil),
		"old.crt is not one PEM block (there is none)":                  without(retiring(), keyOld),
		"old.crt is not one PEM block (two of them)":                    with(retiring(), keyOld, append(retiring()[keyOld], retiring()[keyOld]...)),
		"old.crt without old-until":                                     without(retiring(), keyOldUntil),
		"next.crt and old.crt, but only one rotation can run at a time": both(good(), retiring()),
	} {
		want, _, _ := strings.Cut(want, " (")
		_, err := parseAuthority(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: SecretCA}, Data: data}, now)
		if !errors.Is(err, errNoAuthority) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, stage := range rotation.Stages() {
		a, err := parseAuthority(&corev1.Secret{Data: authorityData(t, stage)}, now)
		if err != nil || a.state.Stage() != stage {
			t.Errorf("a whole one that is %s: %v", stage, err)
		}
	}
}

// authorityData returns the authority's Secret at a stage.
func authorityData(t *testing.T, stage rotation.Stage) map[string][]byte {
	t.Helper()
	data, err := newAuthority(now)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []rotation.Step{rotation.Begin, rotation.Spread, rotation.Sign} {
		a, err := parseAuthority(&corev1.Secret{Data: data}, now)
		if err != nil {
			t.Fatal(err)
		}
		if a.state.Stage() == stage {
			break
		}
		if err := a.apply(data, rotation.Decision{Step: step}, rotation.World{}, now); err != nil {
			t.Fatal(err)
		}
	}
	return data
}

func with(data map[string][]byte, key string, value []byte) map[string][]byte {
	data[key] = value
	return data
}

func without(data map[string][]byte, key string) map[string][]byte {
	delete(data, key)
	return data
}

func sameTwice(data map[string][]byte) map[string][]byte {
	data[keyNext], data[keyNextKey] = data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]
	return data
}

func both(data, retiring map[string][]byte) map[string][]byte {
	data[keyOld], data[keyOldUntil] = retiring[keyOld], retiring[keyOldUntil]
	return data
}

// The root is dropped at the recorded time.
func TestNothingIsSignedForLongerThanTheSecretSays(t *testing.T) {
	ca := authorityAt(t, now)
	key, err := join.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	late := now.Add(leafLife + time.Second)
	if _, err := ca.issue(leaf{dnsName: "x", usage: x509.ExtKeyUsageClientAuth}, now, late); err == nil {
		t.Error("a gateway's certificate may outlive its root's time")
	}
	if _, err := ca.issueMac(&key.PublicKey, "m", "uid", now, late); err == nil {
		t.Error("a Mac's certificate may outlive its root's time")
	}
	if _, err := ca.issueMac(&key.PublicKey, "m", "uid", now, now.Add(leafLife)); err != nil {
		t.Error(err)
	}
}

// Gateways and Macs refuse a Mac whose certificate does not name the UID of its MacNode.
func TestTheCertificateOfAMacNamesItsUID(t *testing.T) {
	key, err := join.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := authorityAt(t, now).issueMac(&key.PublicKey, "m", "uid-1", now, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(chain)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil || agentapi.UIDOf(c) != "uid-1" {
		t.Errorf("the certificate names %v, %v", c.URIs, err)
	}
}

// An unchanged bundle avoids a write for every Mac.
func TestARootThatSignsChangesNoBundle(t *testing.T) {
	data := authorityData(t, rotation.Spreading)
	before, err := parseAuthority(&corev1.Secret{Data: data}, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := before.apply(data, rotation.Decision{Step: rotation.Sign}, rotation.World{}, now); err != nil {
		t.Fatal(err)
	}
	after, err := parseAuthority(&corev1.Secret{Data: data}, now)
	if err != nil || !bytes.Equal(before.bundle, after.bundle) || after.state.Signing != *before.state.Next || *after.state.Old != before.state.Signing {
		t.Errorf("%+v after %+v, %v", after, before, err)
	}
	if len(data[keyNextKey]) > 0 || !bytes.Equal(data[corev1.TLSPrivateKeyKey], mustKey(t, after)) {
		t.Error("a key of old is left, or the key is not the signing root's")
	}
	gateway := leaf{dnsName: agentapi.GatewayName, usage: x509.ExtKeyUsageClientAuth}
	before.state.IssuedUntil = now.Add(leafLife)
	of, err := before.issue(gateway, now, now.Add(leafLife))
	if err != nil || after.renewIn(gateway, of, now) == 0 {
		t.Errorf("a certificate of the old root is renewed before its time: %v", err)
	}
}

func mustKey(t *testing.T, a *authority) []byte {
	t.Helper()
	data, err := pair(a.cert.Raw, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return data[corev1.TLSPrivateKeyKey]
}

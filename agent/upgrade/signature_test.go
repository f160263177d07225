package upgrade

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func newKey(t *testing.T, curve elliptic.Curve) (*ecdsa.PrivateKey, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func sign(t *testing.T, key *ecdsa.PrivateKey, sha256 string) []byte {
	t.Helper()
	sum, err := hex.DecodeString(sha256)
	if err != nil {
		t.Fatal(err)
	}
	der, err := ecdsa.SignASN1(rand.Reader, key, sum)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(base64.StdEncoding.EncodeToString(der) + "\n")
}

func TestAttackAnAgentThatNoKeySigned(t *testing.T) {
	mine, minePEM := newKey(t, elliptic.P256())
	_, nextPEM := newKey(t, elliptic.P256())
	other, _ := newKey(t, elliptic.P256())
	keys, err := ReadKeys([]byte(nextPEM + minePEM))
	if err != nil || len(keys) != 2 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	f := newFollower(t, func(c *Config) { c.Keys = keys })
	for attempt, tc := range []struct {
		signature []byte
		says      string
	}{
		{nil, "none of the release keys"},
		{[]byte("?"), "not base64"},
		{sign(t, other, f.digest), "none of the release keys"},
		{sign(t, mine, strings.Repeat("0", 64)), "none of the release keys"},
		{[]byte(strings.Repeat("A", maxSignature+1)), "more than"},
	} {
		f.signature.Store(&tc.signature)
		f.order(func(o *v1alpha1.AgentOrder) { o.Attempt = int64(attempt + 1) })
		f.waitPhase(v1alpha1.UpgradeRefused, tc.says)
		for f.u.Status().Attempt != int64(attempt+1) {
			f.waitPhase(v1alpha1.UpgradeRefused, tc.says)
		}
	}
	good := sign(t, mine, f.digest)
	f.signature.Store(&good)
	f.order(func(o *v1alpha1.AgentOrder) { o.Attempt = 99 })
	f.waitPhase(v1alpha1.UpgradeDraining, "")
}

func TestKeysThatAreNone(t *testing.T) {
	_, small := newKey(t, elliptic.P224())
	_, good := newKey(t, elliptic.P256())
	for name, text := range map[string]string{
		"nothing": "", "no PEM": "key", "another curve": small, "more after it": good + "x",
		"a certificate": strings.ReplaceAll(good, "PUBLIC KEY", "CERTIFICATE"),
	} {
		if keys, err := ReadKeys([]byte(text)); err == nil {
			t.Errorf("%s: %d keys are read", name, len(keys))
		}
	}
}

func TestAttackAnOlderAgent(t *testing.T) {
	for _, tc := range []struct {
		own, version string
		policy       v1alpha1.DowngradePolicy
		refused      bool
	}{
		{own: "v0.5.0", version: "v0.5.1", policy: "", refused: false},
		{own: "v0.5.0", version: "v0.5.0", policy: "", refused: false},
		{own: "v0.5.0", version: "v0.4.9", policy: "", refused: true},
		{own: "v0.5.0", version: "v0.4.9", policy: v1alpha1.DowngradeRefuse, refused: true},
		{own: "v0.5.0", version: "v0.4.9", policy: v1alpha1.DowngradeAllow, refused: false},
		{own: "v0.5.0", version: "v0.5.0-rc.1", policy: "", refused: true},
		{own: "v0.10.0", version: "v0.9.0", policy: "", refused: true},
		{own: "v0.5.0", version: "unversioned", policy: "", refused: true},
		{own: "unversioned", version: "v0.4.0", policy: "", refused: false},
		{own: "v0.0.0-dev.gb", version: "v0.0.0-dev.ga", policy: "", refused: false},
		{own: "v0.5.0", version: "v0.0.0-dev.ga", policy: "", refused: true},
	} {
		err := older(tc.own, &v1alpha1.AgentOrder{Version: tc.version, Downgrade: tc.policy})
		if (err != nil) != tc.refused {
			t.Errorf("%s to %s with %q: %v", tc.own, tc.version, tc.policy, err)
		}
	}
}

package upgrade

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// SignatureSuffix is appended to the path of an archive's URL for that of its
// signature: base64 of an ECDSA signature of its SHA-256 in ASN.1, as
// `cosign sign-blob --key` writes it.
const SignatureSuffix = ".sig"

// maxSignature is more than any signature has.
const maxSignature = 4 << 10

// Keys are the public keys of those whose releases a Mac installs; one of them has
// to have signed an archive. Without keys the digest of the order is enough.
type Keys []*ecdsa.PublicKey

// ReadKeys reads public keys in PEM, as `cosign generate-key-pair` writes them.
func ReadKeys(text []byte) (Keys, error) {
	var keys Keys
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("a PEM block is of type %q, want PUBLIC KEY", block.Type)
		}
		any, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read public key: %w", err)
		}
		key, ok := any.(*ecdsa.PublicKey)
		if !ok || key.Curve != elliptic.P256() {
			return nil, errors.New("a public key is not of type ECDSA P-256, as cosign generates them")
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 || strings.TrimSpace(string(text)) != "" {
		return nil, errors.New("want one or more public keys in PEM and nothing else")
	}
	return keys, nil
}

// Verify checks a signature of what has this SHA-256.
func (k Keys) Verify(sha256 string, signature []byte) error {
	sum, err := hex.DecodeString(sha256)
	if err != nil {
		return fmt.Errorf("read digest: %w", err)
	}
	der, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(signature)))
	if err != nil {
		return fmt.Errorf("the signature is not base64: %w", err)
	}
	for _, key := range k {
		if ecdsa.VerifyASN1(key, sum, der) {
			return nil
		}
	}
	return errors.New("none of the release keys has signed it")
}

// signed checks the signature of an archive before the archive is fetched.
func (u *Upgrader) signed(ctx context.Context, o *v1alpha1.AgentOrder) error {
	if len(u.Keys) == 0 {
		return nil
	}
	at, err := url.Parse(o.Source)
	if err != nil {
		return fmt.Errorf("read URL of the archive: %w", err)
	}
	at.Path, at.RawPath = at.Path+SignatureSuffix, ""
	resp, err := u.Client.Get(ctx, at.String(), nil)
	if err != nil {
		return fmt.Errorf("fetch the signature of the archive, its URL with %s: %w", SignatureSuffix, err)
	}
	defer resp.Body.Close()
	signature, err := io.ReadAll(io.LimitReader(resp.Body, maxSignature+1))
	if err != nil {
		return fmt.Errorf("read the signature of the archive: %w", err)
	}
	if len(signature) > maxSignature {
		return fmt.Errorf("the signature of the archive has more than %d bytes", maxSignature)
	}
	return u.Keys.Verify(o.SHA256, signature)
}

// older refuses an order to go back to an older version, whose faults are known,
// unless it allows a downgrade. Builds of a developer, v0.0.0-dev and such,
// have no order.
func older(own string, o *v1alpha1.AgentOrder) error {
	have, err := version.ParseSemantic(own)
	if err != nil || o.Downgrade == v1alpha1.DowngradeAllow {
		return nil // nothing to compare with
	}
	want, err := version.ParseSemantic(o.Version)
	switch {
	case err != nil:
		return fmt.Errorf("version %s cannot be compared with %s, which runs; allow a downgrade to install it all the same", o.Version, own)
	case development(have) && development(want) || !want.LessThan(have):
		return nil
	}
	return fmt.Errorf("version %s is older than %s, which runs; allow a downgrade to install it all the same", o.Version, own)
}

func development(v *version.Version) bool { return v.Major() == 0 && v.Minor() == 0 && v.Patch() == 0 }

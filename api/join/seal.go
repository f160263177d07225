package join

import (
	"crypto/ecdsa"
	"crypto/hpke"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Access is a Mac's credential for the API server after it has joined.
type Access struct {
	// Token authenticates as the Mac's own ServiceAccount.
	Token string `json:"token"`
	// Expires is when the token expires.
	Expires time.Time `json:"expires"`
}

// errSealed is returned for an envelope that was not made for this key and
// request.
var errSealed = errors.New("the API token in the Secret is not sealed to this Mac's key")

// Seal encrypts data so that only the holder of the request's key can read it:
// reading the Secret, even together with the join token, is not enough. It uses
// HPKE (RFC 9180) with the P-256 key of the request with that UID.
func Seal(key *ecdsa.PublicKey, uid string, a Access) ([]byte, error) {
	curve, err := key.ECDH()
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	to, err := hpke.NewDHKEMPublicKey(curve)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	plain, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	sealed, err := hpke.Seal(to, hpke.HKDFSHA256(), hpke.AES256GCM(), info(uid), plain)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return sealed, nil
}

// Open decrypts what Seal encrypted for the request with that UID.
func Open(key *ecdsa.PrivateKey, uid string, sealed []byte) (Access, error) {
	curve, err := key.ECDH()
	if err != nil {
		return Access{}, fmt.Errorf("open: %w", err)
	}
	me, err := hpke.NewDHKEMPrivateKey(curve)
	if err != nil {
		return Access{}, fmt.Errorf("open: %w", err)
	}
	plain, err := hpke.Open(me, hpke.HKDFSHA256(), hpke.AES256GCM(), info(uid), sealed)
	if err != nil {
		return Access{}, errSealed
	}
	var a Access
	if err := json.Unmarshal(plain, &a); err != nil || a.Token == "" {
		return Access{}, errSealed
	}
	return a, nil
}

func info(uid string) []byte { return []byte("metalfleet.dev join v1 " + uid) }

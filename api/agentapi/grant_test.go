package agentapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
)

// The JSON encoding does not lengthen the query of a source.
func TestTheGrantOfTheLongestURLIsShortEnough(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	g := Grant{Server: strings.Repeat("g", 63), Client: strings.Repeat("a", 63), ClientUID: strings.Repeat("u", 36), Digest: "sha256:" + strings.Repeat("d", 64), Issued: 1 << 31, Expires: 1 << 31}
	for n, want := range map[int]error{1024: nil, 2048: ErrGrantTooLong} {
		g.Source = "https://h/?" + strings.Repeat("&", n-11)
		if text, err := g.Sign(key); !errors.Is(err, want) {
			t.Errorf("a source of %d characters: a grant of %d, %v; want %v", n, len(text), err, want)
		}
	}
}

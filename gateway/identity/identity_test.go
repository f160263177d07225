package identity_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/identity"
)

func TestParseRefusesWhatNoMacWouldAccept(t *testing.T) {
	ca := agentapitest.NewCA(t)
	data := func(p agentapitest.PEM) map[string][]byte {
		return map[string][]byte{"tls.crt": p.Certificate, "tls.key": p.Key, "ca.crt": p.CA}
	}
	good := data(ca.Gateway())
	if i, err := identity.Parse(good); err != nil || i.ClientTLS("a", "").ServerName != "a.mac.metalfleet.dev" {
		t.Fatalf("a good Secret is refused: %v", err)
	}
	with := func(key string, value []byte) map[string][]byte {
		out := maps.Clone(good)
		out[key] = value
		return out
	}
	for name, bad := range map[string]map[string][]byte{
		"empty":              nil,
		"no key":             with("tls.key", nil),
		"another pair's key": with("tls.key", ca.Gateway().Key),
		"no authority":       with("ca.crt", nil),
		"authority not PEM":  with("ca.crt", []byte("x")),
		"authority cut off":  with("ca.crt", append(slices.Clone(ca.PEM()), ca.PEM()[:200]...)),
		"a Mac's":            data(ca.Mac("a")),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := identity.Parse(bad); !errors.Is(err, identity.ErrInvalid) {
				t.Errorf("Parse = %v", err)
			}
		})
	}
}

func TestTheSameSecretChangesNothing(t *testing.T) {
	ca := agentapitest.NewCA(t)
	parse := func(p agentapitest.PEM) *identity.Identity {
		i, err := identity.Parse(map[string][]byte{"tls.crt": p.Certificate, "tls.key": p.Key, "ca.crt": p.CA})
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	var s identity.Store
	leaf := ca.Gateway()
	first := parse(leaf)
	if s.Current() != nil || !s.Set(first) || s.Set(parse(leaf)) || s.Current() != first {
		t.Error("the same Secret, read again, replaced the identity")
	}
	if !s.Set(parse(ca.Gateway())) || s.Current() == first {
		t.Error("a new certificate was not taken")
	}
}

// Only a root that is no longer trusted closes connections.
func TestOnlyARemovedRootEndsConnections(t *testing.T) {
	a, b := agentapitest.NewCA(t), agentapitest.NewCA(t)
	of := func(ca *agentapitest.CA, roots ...[]byte) *identity.Identity {
		p := ca.Gateway()
		i, err := identity.Parse(map[string][]byte{"tls.crt": p.Certificate, "tls.key": p.Key, "ca.crt": slices.Concat(roots...)})
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	before := of(a, a.PEM())
	for name, tc := range map[string]struct {
		now, older *identity.Identity
		ok         bool
	}{
		"the same":                  {now: before, older: before, ok: true},
		"a certificate is renewed":  {now: of(a, a.PEM()), older: before, ok: true},
		"a root comes":              {now: of(a, a.PEM(), b.PEM()), older: before, ok: true},
		"the next root signs":       {now: of(b, a.PEM(), b.PEM()), older: of(a, b.PEM(), a.PEM()), ok: true},
		"a root is removed":         {now: of(b, b.PEM()), older: of(b, a.PEM(), b.PEM())},
		"another authority at once": {now: of(b, b.PEM()), older: before},
	} {
		if got := tc.now.Succeeds(tc.older); got != tc.ok {
			t.Errorf("%s: connections go on: %v, want %v", name, got, tc.ok)
		}
	}
}

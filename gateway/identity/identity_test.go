package identity_test

import (
	"errors"
	"maps"
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
	if i, err := identity.Parse(good); err != nil || i.ClientTLS("a").ServerName != "a.mac.metalfleet.dev" {
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

package identity

import (
	"crypto/tls"
	"crypto/x509"

	"metalfleet.dev/metalfleet/api/agentapi"
)

func (c *current) certificate() (*tls.Certificate, error) { return c.pair, nil }

// WeightsTLS is how this Mac dials the one called mac for weights. It refuses a Mac
// whose MacNode was deleted.
func (i *Identity) WeightsTLS(mac string) (*tls.Config, error) {
	c := i.current.Load()
	if c == nil {
		return nil, errNone
	}
	config := agentapi.WeightsClientTLS(c.certificate, c.roots, mac)
	return agentapi.Also(config, func(leaf *x509.Certificate) error {
		if i.Revoked(agentapi.UIDOf(leaf)) {
			return agentapi.ErrReplaced
		}
		return nil
	}), nil
}

// Roots are the roots that are trusted now, of which one signs grants; none
// while there is no identity.
func (i *Identity) Roots() []*x509.Certificate {
	c := i.current.Load()
	if c == nil {
		return nil
	}
	roots, err := agentapi.RootCertificates(c.material.Authority)
	if err != nil { // it was read before
		return nil
	}
	return roots
}

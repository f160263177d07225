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
	config.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 || i.Revoked(agentapi.UIDOf(s.PeerCertificates[0])) {
			return agentapi.ErrReplaced
		}
		return nil
	}
	return config, nil
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

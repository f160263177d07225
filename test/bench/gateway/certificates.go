package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/test/pki"
)

// certificates of Macs, and of the gateway that asks them.
type certificates struct {
	authority *pki.Authority
	roots     *x509.CertPool
}

func newCertificates(dir string, macs ...string) (*certificates, error) {
	leaf := func(name, dns string) pki.Leaf {
		return pki.Leaf{Name: name, Subject: pkix.Name{CommonName: dns}, DNS: []string{dns}}
	}
	leaves := []pki.Leaf{leaf("gateway", agentapi.GatewayName)}
	for _, mac := range macs {
		leaves = append(leaves, leaf(mac, agentapi.MacServerName(mac)))
	}
	authority, err := pki.New(dir, leaves...)
	if err != nil {
		return nil, err
	}
	root, err := os.ReadFile(authority.File("ca.crt"))
	if err != nil {
		return nil, err
	}
	c := &certificates{authority: authority, roots: x509.NewCertPool()}
	if !c.roots.AppendCertsFromPEM(root) {
		return nil, errors.New("ca.crt holds no certificate")
	}
	return c, nil
}

// pair loads the certificate of a Mac or of the gateway.
func (c *certificates) pair(name string) (func() (*tls.Certificate, error), error) {
	pair, err := tls.LoadX509KeyPair(c.authority.File(name+".crt"), c.authority.File(name+".key"))
	return func() (*tls.Certificate, error) { return &pair, nil }, err
}

// server is the TLS configuration of a Mac's agent.
func (c *certificates) server(mac string) (*tls.Config, error) {
	pair, err := c.pair(mac)
	return agentapi.ServerTLS(pair, c.roots), err
}

// identity is the data of the Secret that the operator makes for gateways.
func (c *certificates) identity() (map[string][]byte, error) {
	data := map[string][]byte{}
	for key, file := range map[string]string{"tls.crt": "gateway.crt", "tls.key": "gateway.key", "ca.crt": "ca.crt"} {
		b, err := os.ReadFile(c.authority.File(file))
		if err != nil {
			return nil, fmt.Errorf("the gateway's identity: %w", err)
		}
		data[key] = b
	}
	return data, nil
}

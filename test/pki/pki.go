// Package pki is a certificate authority for clusters that live as long as a
// test or a demonstration, and the folder with what it issued.
//
// It owns the folder's files NAME.crt and NAME.key, of mode 0600, and writes
// kubeconfigs with them. It refuses nothing: no certificate of it is to leave the
// machine.
//
// Start reading at New.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Authority issues certificates; its own is ca.crt.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Leaf is a certificate to issue, good for servers and clients.
type Leaf struct {
	// Name of its files.
	Name    string
	Subject pkix.Name
	IPs     []net.IP
	DNS     []string
	URIs    []*url.URL
}

// New makes an authority and the folder of what it issues, and issues leaves.
func New(dir string, leaves ...Leaf) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	p := &Authority{dir: dir}
	if err := p.makeCA(); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	for _, l := range leaves {
		if err := p.Issue(l); err != nil {
			return nil, fmt.Errorf("certificate %s: %w", l.Name, err)
		}
	}
	return p, nil
}

// File is the path of NAME.crt or NAME.key.
func (p *Authority) File(name string) string { return filepath.Join(p.dir, name) }

func (p *Authority) makeCA() error {
	template, err := template(pkix.Name{CommonName: "local-ca"})
	if err != nil {
		return err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	if p.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, p.key.Public(), p.key)
	if err != nil {
		return err
	}
	if p.cert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	return p.write("ca", der, p.key)
}

// Issue makes a leaf, in place of an earlier one of its name.
func (p *Authority) Issue(l Leaf) error {
	template, err := template(l.Subject)
	if err != nil {
		return err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.IPAddresses, template.DNSNames, template.URIs = l.IPs, l.DNS, l.URIs
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, key.Public(), p.key)
	if err != nil {
		return err
	}
	return p.write(l.Name, der, key)
}

func template(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject,
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}, nil
}

// write stores NAME.crt and NAME.key. The key is SEC 1: out of PKCS 8 the API
// server reads no public key for service accounts.
func (p *Authority) write(name string, der []byte, key *ecdsa.PrivateKey) error {
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(p.File(name+".crt"), cert, 0o600); err != nil {
		return err
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(p.File(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), 0o600)
}

// Kubeconfig writes a self-contained kubeconfig that uses one leaf.
func (p *Authority) Kubeconfig(path, server, leaf string) error {
	var data [3][]byte
	for i, name := range []string{"ca.crt", leaf + ".crt", leaf + ".key"} {
		b, err := os.ReadFile(p.File(name))
		if err != nil {
			return fmt.Errorf("kubeconfig for %s: %w", leaf, err)
		}
		data[i] = b
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["local"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: data[0]}
	config.AuthInfos[leaf] = &clientcmdapi.AuthInfo{ClientCertificateData: data[1], ClientKeyData: data[2]}
	config.Contexts["local"] = &clientcmdapi.Context{Cluster: "local", AuthInfo: leaf}
	config.CurrentContext = "local"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("kubeconfig for %s: %w", leaf, err)
	}
	return nil
}

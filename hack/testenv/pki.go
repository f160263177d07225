package testenv

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
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// pki is a certificate authority that lives as long as its control plane, and
// the folder with what it issued.
type pki struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newPKI issues everything the control plane needs, once.
func newPKI(dir string) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	p := &pki{dir: dir}
	if err := p.makeCA(); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	leaves := []struct {
		name    string
		subject pkix.Name
		ips     []net.IP
		dns     []string
	}{
		{"apiserver", pkix.Name{CommonName: "kube-apiserver"}, []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"}},
		{"admin", pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, nil, nil},
		{"controllers", pkix.Name{CommonName: "system:kube-controller-manager", Organization: []string{"system:masters"}}, nil, nil},
		{"sa", pkix.Name{CommonName: "service-accounts"}, nil, nil},
	}
	for _, l := range leaves {
		if err := p.issue(l.name, l.subject, l.ips, l.dns); err != nil {
			return nil, fmt.Errorf("certificate %s: %w", l.name, err)
		}
	}
	return p, nil
}

func (p *pki) file(name string) string { return filepath.Join(p.dir, name) }

func (p *pki) makeCA() error {
	template, err := template(pkix.Name{CommonName: "testenv-ca"})
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

func (p *pki) issue(name string, subject pkix.Name, ips []net.IP, dns []string) error {
	template, err := template(subject)
	if err != nil {
		return err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.IPAddresses, template.DNSNames = ips, dns
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, key.Public(), p.key)
	if err != nil {
		return err
	}
	return p.write(name, der, key)
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
func (p *pki) write(name string, der []byte, key *ecdsa.PrivateKey) error {
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(p.file(name+".crt"), cert, 0o600); err != nil {
		return err
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(p.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), 0o600)
}

// kubeconfig writes a self-contained kubeconfig that uses one leaf.
func (p *pki) kubeconfig(path, server, leaf string) error {
	var data [3][]byte
	for i, name := range []string{"ca.crt", leaf + ".crt", leaf + ".key"} {
		b, err := os.ReadFile(p.file(name))
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

package intake

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/patience"
)

// certificateOf returns a certificate that signs itself.
func certificateOf(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, DNSNames: []string{"x"}, NotAfter: time.Now().Add(time.Hour)}
	own, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{own}, PrivateKey: key}
}

// TestAttackLongHandshakes: certificates of more than 32 KiB are not read to their end, and
// so not parsed. Afterwards a client may send as much as it likes.
func TestAttackLongHandshakes(t *testing.T) {
	own := certificateOf(t)
	parsed := atomic.Int64{}
	config := &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAnyClientCert,
		VerifyConnection: func(s tls.ConnectionState) error { parsed.Store(int64(len(s.PeerCertificates))); return nil }}
	p := newPipes()
	h := Authenticate(p, config, log.New(io.Discard, "", 0))
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for c, err := h.Accept(); err == nil; c, err = h.Accept() {
			accepted <- c
		}
	}()
	defer func() { _ = h.Close(); <-accepted }()
	for name, c := range map[string]struct {
		certificates int
		ok           bool
	}{
		"one certificate":  {certificates: 1, ok: true},
		"20 certificates":  {certificates: 20, ok: true},
		"130 certificates": {certificates: 130},
		"400 certificates": {certificates: 400},
	} {
		parsed.Store(0)
		mine := tls.Certificate{PrivateKey: own.PrivateKey}
		for range c.certificates {
			mine.Certificate = append(mine.Certificate, own.Certificate[0])
		}
		raw := p.dial("10.0.0.1")
		_ = raw.SetDeadline(time.Now().Add(patience.Of(t)))
		client := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{mine}})
		sent := make(chan error, 1)
		go func() { _, err := client.Write(make([]byte, 1<<20)); sent <- err }()
		if !c.ok {
			if err := <-sent; err == nil || parsed.Load() > 0 {
				t.Errorf("%s: %v, %d were parsed", name, err, parsed.Load())
			}
			continue
		}
		served, ok := <-accepted
		if !ok {
			t.Fatal("the listener ended")
		}
		if n, err := io.ReadFull(served, make([]byte, 1<<20)); err != nil || parsed.Load() != int64(c.certificates) {
			t.Errorf("%s: %d bytes, %v; %d were parsed", name, n, err, parsed.Load())
		}
		if err := <-sent; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = raw.Close()
	}
}

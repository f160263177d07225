package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/demand"
)

// It uses a certificate of its own, which is created once and renewed in time.
func TestTheOperatorProvesItselfToGatewaysAndLetsNobodyElseIn(t *testing.T) {
	d := newDrama(t)
	s := &Server{Issuer: d.issuer()}
	pairOf := func(secret string) func() (*tls.Certificate, error) {
		held, _ := d.secret(secret)
		pair, err := tls.X509KeyPair(held.Data["tls.crt"], held.Data["tls.key"])
		d.must(err)
		return func() (*tls.Certificate, error) { return &pair, nil }
	}
	roots, _, err := agentapi.Roots(d.authority().bundle)
	d.must(err)
	dial := func(as func() (*tls.Certificate, error)) ([]byte, error) {
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		server, client := s.TLS(), demand.ClientTLS(as, roots)
		server.Time, client.Time = d.clock.Now, d.clock.Now
		of := server.GetConfigForClient
		server.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := of(h)
			if c != nil {
				c.Time = d.clock.Now
			}
			return c, err
		}
		listens := tls.Server(far, server)
		ended := make(chan error, 1)
		go func() { ended <- listens.HandshakeContext(t.Context()) }()
		c := tls.Client(near, client)
		if err := c.HandshakeContext(t.Context()); err != nil {
			near.Close()
			<-ended
			return nil, err
		}
		serial := c.ConnectionState().PeerCertificates[0].SerialNumber.Bytes()
		near.Close()
		return serial, <-ended
	}
	first, err := dial(pairOf(SecretGateway))
	d.must(err)
	if again, err := dial(pairOf(SecretGateway)); err != nil || string(again) != string(first) {
		t.Errorf("a certificate for each handshake (%v)", err)
	}
	d.clock.SetTime(d.clock.Now().Add(d.life * renewPercent / 100).Add(time.Minute))
	if later, err := dial(pairOf(SecretGateway)); err != nil || string(later) == string(first) {
		t.Errorf("not renewed in time (%v)", err)
	}
	if _, err := dial(func() (*tls.Certificate, error) { return &tls.Certificate{}, nil }); err == nil {
		t.Error("who has no certificate is let in")
	}
}

// TestCertificatesOfAClockThatWasAhead: they are not valid yet once the clock is right, and due much
// later. Neither Macs nor gateways accept them.
func TestCertificatesOfAClockThatWasAhead(t *testing.T) {
	d := newDrama(t)
	s, g := &Server{Issuer: d.issuer()}, &Gateway{Issuer: d.issuer()}
	look := func() []*x509.Certificate {
		t.Helper()
		own, _, err := s.current(t.Context())
		d.must(err)
		again, err := g.Reconcile(t.Context(), reconcile.Request{})
		if d.must(err); again.RequeueAfter > time.Minute {
			t.Errorf("the certificate of gateways is compared with the clock in %s", again.RequeueAfter)
		}
		held, _ := d.secret(SecretGateway)
		pair, err := tls.X509KeyPair(held.Data[corev1.TLSCertKey], held.Data[corev1.TLSPrivateKeyKey])
		d.must(err)
		return []*x509.Certificate{own.Leaf, pair.Leaf}
	}
	look()
	right := d.clock.Now()
	d.clock.SetTime(right.Add(24 * time.Hour))
	look()
	d.clock.SetTime(right)
	for _, c := range look() {
		if c.NotBefore.After(right) {
			t.Errorf("the certificate of %s is valid in %s", c.Subject.CommonName, c.NotBefore.Sub(right))
		}
	}
}

// TestAHandshakeParsesNoAuthority: a stranger causes a handshake, which must cost little
// before the client has authenticated. The authority is parsed once for each change.
func TestAHandshakeParsesNoAuthority(t *testing.T) {
	d := newDrama(t)
	s := &Server{Issuer: d.issuer()}
	_, _, err := s.current(t.Context()) // issues a certificate, which the authority's Secret records
	d.must(err)
	certificate, roots, err := s.current(t.Context())
	d.must(err)
	again, rootsAgain, err := s.current(t.Context())
	d.must(err)
	if certificate != again || roots != rootsAgain {
		t.Error("the second handshake parses the authority again")
	}
	held, _ := d.secret(SecretCA)
	held.Annotations = map[string]string{AnnotationRotateAtOnce: "now"}
	d.must(d.api.Update(t.Context(), held))
	for range 4 {
		d.pass()
	}
	_, rotated, err := s.current(t.Context())
	d.must(err)
	if rotated.Equal(roots) {
		t.Error("handshakes use roots from before a rotation")
	}
	held, _ = d.secret(SecretCA)
	held.Data["tls.crt"] = []byte("damaged")
	d.must(d.api.Update(t.Context(), held))
	if _, _, err := s.current(t.Context()); !errors.Is(err, errNoAuthority) {
		t.Errorf("a damaged authority: %v, want %v", err, errNoAuthority)
	}
}

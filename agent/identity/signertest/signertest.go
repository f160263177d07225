// Package signertest plays the operator for agents under test: it approves and
// signs their certificate requests under our signer name.
//
// It owns a loop that runs as long as a test. It verifies nothing, which the
// operator's own tests do, and refuses the requests that a test names.
//
// Start reading at Start.
package signertest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Signer signs for one authority.
type Signer struct {
	// Before, if set, is called for each request before it is signed; an error
	// denies the request, with the error's text as its reason.
	Before func(*certificatesv1.CertificateSigningRequest) error

	t  *testing.T
	c  client.Client
	ca *agentapitest.CA

	mu     sync.Mutex // guards signed
	signed int

	judged map[types.UID]bool // by Before; of run alone
}

// Signed counts the certificates.
func (s *Signer) Signed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signed
}

// Start signs until the test ends. c may approve and sign; it knows the kind.
func Start(t *testing.T, c client.Client, ca *agentapitest.CA, before func(*certificatesv1.CertificateSigningRequest) error) *Signer {
	t.Helper()
	s := &Signer{Before: before, t: t, c: c, ca: ca, judged: map[types.UID]bool{}}
	ctx, stop := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() { s.run(ctx) })
	t.Cleanup(func() { stop(); loop.Wait() })
	return s
}

func (s *Signer) run(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var list certificatesv1.CertificateSigningRequestList
		if err := s.c.List(ctx, &list); err != nil {
			continue // the API server is away
		}
		for i := range list.Items {
			if r := &list.Items[i]; r.Spec.SignerName == join.Signer && open(r) {
				if err := s.sign(ctx, r); err != nil && ctx.Err() == nil {
					s.t.Logf("sign %s: %v", r.Name, err) // taken away meanwhile, or the API server is
				}
			}
		}
	}
}

// open requests are neither denied nor signed. One may be approved: the API
// server went away between the two.
func open(r *certificatesv1.CertificateSigningRequest) bool {
	for _, c := range r.Status.Conditions {
		if c.Type != certificatesv1.CertificateApproved {
			return false
		}
	}
	return len(r.Status.Certificate) == 0
}

// approve handles a pending request; it reports whether it may be signed.
func (s *Signer) approve(ctx context.Context, r *certificatesv1.CertificateSigningRequest) (bool, error) {
	if len(r.Status.Conditions) > 0 {
		return true, nil
	}
	c := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: join.ReasonIssued, Message: "by a test"}
	if s.Before != nil && !s.judged[r.UID] {
		if err := s.Before(r); err != nil {
			c.Type, c.Reason = certificatesv1.CertificateDenied, err.Error()
		} else {
			s.judged[r.UID] = true
		}
	}
	r.Status.Conditions = append(r.Status.Conditions, c)
	err := s.c.SubResource("approval").Update(ctx, r)
	return err == nil && c.Type == certificatesv1.CertificateApproved, err
}

func (s *Signer) sign(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
	if ok, err := s.approve(ctx, r); err != nil || !ok {
		return err
	}
	account := strings.TrimPrefix(r.Name, join.RequestName(""))
	mac := strings.TrimPrefix(strings.TrimPrefix(account, join.Account("")), v1alpha1.AgentObjectName(""))
	key, err := join.CheckRequest(r.Spec.Request, mac)
	if err != nil {
		return err
	}
	r.Status.Certificate = s.ca.MacFor(mac, key)
	s.count(1) // before anybody can have it
	if err := s.c.Status().Update(ctx, r); err != nil {
		s.count(-1)
		return err
	}
	return nil
}

func (s *Signer) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signed += n
}

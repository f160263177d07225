package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	// renewPercent of a certificate's life is over when another is asked for.
	renewPercent = 70
	// renewWithin bounds one attempt.
	renewWithin = time.Minute
	// look is the longest wait at a time: timers sleep while the Mac does.
	look       = 10 * time.Minute
	retryFirst = time.Second
	retryMost  = 5 * time.Minute
)

// Run learns the authority from the Secret in namespace, and has the Mac's own
// account ask for a certificate whenever one is due, until ctx ends.
func (i *Identity) Run(ctx context.Context, c client.WithWatch, namespace string) error {
	var renewal sync.WaitGroup
	renewal.Go(func() {
		i.renewLoop(ctx, func(ctx context.Context) error { return i.renew(ctx, c) })
	})
	defer renewal.Wait()
	key := types.NamespacedName{Namespace: namespace, Name: v1alpha1.AgentObjectName(i.mac)}
	return register.Follow(ctx, c, &corev1.SecretList{}, key, i.log, func(s *corev1.Secret) {
		i.revoke(s.Data[agentapi.KeyRevoked])
		i.learn(s.Data[corev1.ServiceAccountRootCAKey])
	})
}

// learn trusts the roots that the Secret names, from the next handshake on.
// Where none of them has signed the certificate in use, that stays in use until
// there is one that one of them has: gateways may know the old root yet.
func (i *Identity) learn(authority []byte) {
	roots, fingerprints, err := agentapi.Roots(authority)
	if err != nil {
		i.log.Error(err, "The Secret contains no authority; keeping the last known one")
		return
	}
	i.mu.Lock()
	i.authority = authority
	if c := i.current.Load(); c != nil && !bytes.Equal(c.material.Authority, authority) {
		i.follow(c, authority, roots)
	}
	i.trust(roots, fingerprints)
	i.mu.Unlock()
	select {
	case i.wakes <- struct{}{}:
	default:
	}
}

// revoke refuses the Macs that the Secret names, from their next request on, also after
// a restart.
func (i *Identity) revoke(list []byte) {
	revoked, err := agentapi.ReadRevoked(list)
	if err != nil {
		i.log.Error(err, "Cannot read which Macs were deleted; refusing those that are known")
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if old := i.revoked.Swap(&revoked); old != nil && maps.Equal(*old, revoked) {
		return
	}
	if c := i.current.Load(); c != nil {
		if err := i.keep(c.material); err != nil {
			i.log.Error(err, "The deleted Macs are refused, but their list could not be stored")
		}
	}
}

// follow continues with the current pair under other roots.
func (i *Identity) follow(c *current, authority []byte, roots *x509.CertPool) {
	m := c.material
	m.Authority = authority
	cert, err := tls.X509KeyPair(m.Certificate, m.Key)
	if err != nil { // it was read before
		i.log.Error(err, "Cannot read the certificate in use")
		return
	}
	vouched := verify(&cert, roots, i.mac, time.Now()) == nil
	if !vouched {
		i.log.Info("No trusted root signed the certificate in use; requesting another one")
	}
	i.set(&current{material: m, leaf: cert.Leaf, config: serverTLS(&cert, roots), pair: &cert, roots: roots, vouched: vouched})
	if err := i.keep(m); err != nil {
		i.log.Error(err, "The trusted roots are in use but could not be stored")
	}
}

// newest is the authority that the Secret named last, or that was in use. The
// caller holds mu.
func (i *Identity) newest() []byte {
	if i.authority == nil {
		if c := i.current.Load(); c != nil {
			return c.material.Authority
		}
	}
	return i.authority
}

// due returns the time until the next request for a certificate.
func (i *Identity) due(now time.Time) time.Duration {
	c := i.current.Load()
	switch {
	case i.TrustedRoots() == nil:
		return look // whether the certificate is still valid is unknown
	case c == nil || !c.vouched:
		return 0
	}
	life, held := c.leaf.NotAfter.Sub(c.leaf.NotBefore), now.Sub(c.since)
	// This Mac's clock may be wrong, and the time for which it was held leaves
	// out when the Mac slept: the later one counts.
	left, least := life*renewPercent/100-max(held, now.Sub(c.leaf.NotBefore)), life/10
	if now.Before(c.leaf.NotBefore) { // gateways refuse it, if not this clock is slow but that of the operator was ahead
		left, least = 0, min(least, look)
	}
	if c.fresh {
		left = max(left, least-held) // or a clock that is far ahead or slow would ask without end
	}
	return min(look, max(0, left))
}

// renewLoop asks for a certificate whenever one is due.
func (i *Identity) renewLoop(ctx context.Context, renew func(context.Context) error) {
	failures := 0
	for ctx.Err() == nil {
		wait := i.due(time.Now())
		if wait == 0 {
			attempt, cancel := context.WithTimeout(ctx, renewWithin)
			err := renew(attempt)
			cancel()
			if err == nil {
				failures = 0
				continue
			}
			if failures == 0 && ctx.Err() == nil {
				i.log.Error(err, "Failed to obtain a certificate; retrying")
			}
			wait = min(retryMost, retryFirst<<min(failures, 20))
			failures++
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-i.wakes:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// errAgain names the administrator's next step.
var errAgain = errors.New("the API server no longer accepts this Mac's account; join this Mac again with a new join token")

// renew makes a new key and gets it a certificate.
func (i *Identity) renew(ctx context.Context, c client.Client) error {
	key, err := join.NewKey()
	if err != nil {
		return err
	}
	account := v1alpha1.AgentObjectName(i.mac)
	certificate, uid, err := Obtain(ctx, c, account, i.mac, key)
	if apierrors.IsUnauthorized(err) {
		return errAgain
	}
	if err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	if err := i.renewed(certificate, keyPEM(raw)); err != nil {
		return err
	}
	return Collected(ctx, c, account, uid)
}

func keyPEM(raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

package identity

import (
	"context"
	"crypto/x509"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// Grant signs what a Mac may read of another with the root that signs
// certificates. What was signed before stays while it is good for the same, by
// that root, and for longer than least.
func (i *Issuer) Grant(ctx context.Context, want agentapi.Grant, before string, least time.Duration) (string, error) {
	ca, err := i.load(ctx)
	if err != nil {
		return "", err
	}
	had, err := agentapi.ReadGrant(before, []*x509.Certificate{ca.cert}, i.Clock.Now().Add(least))
	if err == nil && had.Same(want) {
		return before, nil
	}
	return want.Sign(ca.key)
}

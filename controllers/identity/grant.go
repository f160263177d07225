package identity

import (
	"context"
	"crypto/x509"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// Grant signs the permission of a Mac to read weights from another, with the signing root.
// The previous grant is returned instead if it has the same content, is signed by that
// root, and remains valid for longer than least, unless a clock that was ahead signed it.
func (i *Issuer) Grant(ctx context.Context, want agentapi.Grant, before string, least time.Duration) (string, error) {
	ca, err := i.load(ctx)
	if err != nil {
		return "", err
	}
	had, err := agentapi.ReadGrant(before, []*x509.Certificate{ca.cert}, i.Clock.Now().Add(least))
	if err == nil && had.Same(want) && had.Issued <= want.Issued {
		return before, nil
	}
	return want.Sign(ca.key)
}

package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"metalfleet.dev/metalfleet/agent/identity"
	contract "metalfleet.dev/metalfleet/api/join"
)

// errUsed says that the API server knows the account and no token for it.
var errUsed = errors.New("the join token was used or burned")

// newToken is the way out of most of it.
func newToken(t contract.Token) string {
	return fmt.Sprintf("make a new one with `kubectl metalfleet join-token %s`", t.Mac)
}

// explain turns what went wrong into what to do. It hides no cause.
func explain(err error, t contract.Token, now time.Time) error {
	var strange x509.UnknownAuthorityError
	var misnamed x509.HostnameError
	var badCert *tls.CertificateVerificationError
	var network net.Error
	var no *identity.Refused
	switch {
	case err == nil:
		return nil
	case errors.As(err, &no):
		return explainRefusal(no, t)
	case errors.Is(err, errOtherRoots):
		return fmt.Errorf("%w: %s", err, newToken(t))
	case errors.As(err, &misnamed):
		return fmt.Errorf("the API server's certificate is not for %s: have the token made with --api-server and an address that the certificate names: %w", t.Server, err)
	case errors.As(err, &strange), errors.As(err, &badCert):
		return fmt.Errorf("the server at %s is not the one that the join token vouches for: something stands in between, or the API server's CA was changed since; if you trust the way, %s: %w", t.Server, newToken(t), err)
	case apierrors.IsUnauthorized(err) && now.After(t.Expires):
		return fmt.Errorf("the join token ended at %s: %s: %w", t.Expires.Local().Format(time.RFC1123), newToken(t), err)
	case apierrors.IsUnauthorized(err), errors.Is(err, errUsed):
		return fmt.Errorf("the API server does not take the join token: it was used, or burned by a newer one, or its MacNode was deleted (or this Mac's clock is behind, and it has ended): %s: %w", newToken(t), err)
	case errors.Is(err, identity.ErrUnanswered):
		return fmt.Errorf("%w See `kubectl -n %s get deployment metalfleet-operator` and its log, then run this again with the same token", err, t.Namespace)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the API server refuses what joining needs: chart or config/rbac of the fleet are older than this agent, or were changed: %w", err)
	case errors.As(err, &network), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the API server %s cannot be reached from this Mac: try `curl -k %s/version`; if Macs reach it by another address, have the token made with --api-server: %w", t.Server, t.Server, err)
	}
	return err
}

func explainRefusal(no *identity.Refused, t contract.Token) error {
	switch no.Reason {
	case contract.ReasonTokenUsed, contract.ReasonTokenReplaced, contract.ReasonNoMac, contract.ReasonOldAccount:
		return fmt.Errorf("%w: %s", no, newToken(t))
	}
	return fmt.Errorf("%w: operator and agent differ in version, or an approver in this cluster denies it: look at `kubectl get csr %s -o yaml`", no, contract.RequestName(contract.Account(t.Mac)))
}

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

// errUsed means that the API server knows the account but not its token.
var errUsed = errors.New("the join token was already used or revoked")

// newToken is the way out of most of it.
func newToken(t contract.Token) string {
	if t.Enrolment != "" {
		return fmt.Sprintf("create a new one with `kubectl metalfleet enrolment create %s`", t.Enrolment)
	}
	return fmt.Sprintf("create a new one with `kubectl metalfleet join-token %s`", t.Mac)
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
		return fmt.Errorf("the API server's certificate is not valid for %s: create the token with --api-server and an address that the certificate contains: %w", t.Server, err)
	case errors.As(err, &strange), errors.As(err, &badCert):
		return fmt.Errorf("the server at %s is not the one that the join token was created for: a proxy may intercept the connection, or the API server's CA has changed; if you trust the connection, %s: %w", t.Server, newToken(t), err)
	case apierrors.IsUnauthorized(err) && now.After(t.Expires):
		return fmt.Errorf("the join token expired at %s: %s: %w", t.Expires.Local().Format(time.RFC1123), newToken(t), err)
	case apierrors.IsUnauthorized(err) && t.Enrolment != "":
		return fmt.Errorf("the API server rejected the enrolment token: it was revoked (or it has expired and this Mac's clock is slow): %s: %w", newToken(t), err)
	case apierrors.IsUnauthorized(err), errors.Is(err, errUsed):
		return fmt.Errorf("the API server rejected the join token: it was used, replaced by a newer one, or its MacNode was deleted (or the token has expired and this Mac's clock is slow): %s: %w", newToken(t), err)
	case errors.Is(err, identity.ErrUnanswered):
		return fmt.Errorf("%w. See `kubectl -n %s get deployment metalfleet-operator` and its log, then run this command again with the same token", err, t.Namespace)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the API server denied access that joining needs: the fleet's chart or config/rbac is older than this agent, or was modified: %w", err)
	case errors.As(err, &network), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("cannot reach the API server %s from this Mac: try `curl -k %s/version`; if Macs reach it at another address, create the token with --api-server: %w", t.Server, t.Server, err)
	}
	return err
}

func explainRefusal(no *identity.Refused, t contract.Token) error {
	if t.Enrolment != "" {
		return no // which names the next step, or a person wrote it
	}
	switch no.Reason {
	case contract.ReasonTokenUsed, contract.ReasonTokenReplaced, contract.ReasonNoMac, contract.ReasonOldAccount:
		return fmt.Errorf("%w: %s", no, newToken(t))
	}
	return fmt.Errorf("%w: operator and agent have different versions, or an approver in this cluster denied the request: see `kubectl get csr %s -o yaml`", no, contract.RequestName(contract.Account(t.Mac)))
}

package join

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/account"
	"metalfleet.dev/metalfleet/agent/identity"
	"metalfleet.dev/metalfleet/agent/register"
	contract "metalfleet.dev/metalfleet/api/join"
)

// enrol joins with a token that many Macs share. A Mac that joined before keeps its identity,
// so that a management system may run the same command again.
func enrol(ctx context.Context, o Options) error {
	enrolment := o.Token
	if err := contract.CheckMac(o.Mac); err != nil {
		return fmt.Errorf("an enrolment token needs the name of this Mac: %w", err)
	}
	if have, err := account.Open(o.StateDir, o.Log); err == nil {
		return fmt.Errorf("%w as %s: nothing was changed", ErrMember, have.Mac())
	} else if !errors.Is(err, account.ErrNone) {
		return fmt.Errorf("%w; an enrolment token does not replace an account: use `kubectl metalfleet join-token %s`", err, o.Mac)
	}
	c, err := newClient(o, enrolment.Credential)
	if err != nil {
		return err
	}
	if err := reachEnrolment(ctx, c, enrolment); err != nil {
		return explain(err, enrolment, time.Now())
	}
	_, err = os.Stat(filepath.Join(o.StateDir, keyFile))
	again := err == nil
	key, err := firstKey(o.StateDir)
	if err != nil {
		return err
	}
	if enrolment.Approval && o.Waiting != nil {
		fingerprint, err := contract.Fingerprint(&key.PublicKey)
		if err != nil {
			return err
		}
		o.Waiting(fingerprint)
	}
	limited, cancel := context.WithTimeout(ctx, patienceOf(o, time.Now()))
	defer cancel()
	got, err := identity.Enrol(limited, c, enrolment.Enrolment, o.Mac, key, again)
	if err != nil {
		return explain(dropRefused(o.StateDir, err), enrolment, time.Now())
	}
	access, err := contract.Open(key, string(got.Request), got.Sealed)
	if err != nil {
		return err
	}
	o.Token.Mac = o.Mac
	if err := settle(limited, o, key, got.Certificate, access); err != nil {
		return explain(err, enrolment, time.Now())
	}
	return forgetKey(o.StateDir)
}

// reachEnrolment succeeds if the server is the right one and accepts the token.
func reachEnrolment(ctx context.Context, c client.Client, token contract.Token) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachWithin, fmt.Errorf("no answer within %s", reachWithin))
	defer cancel()
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		err := identity.EnrolmentKnown(ctx, c, token.Enrolment)
		// The API server learns of a new account's rights within moments.
		if !apierrors.IsForbidden(err) || !register.Sleep(ctx, pause) {
			return err
		}
	}
}

// patienceOf is how long the answer may take: a person has until the token expires.
func patienceOf(o Options, now time.Time) time.Duration {
	switch {
	case o.SignWithin > 0:
		return o.SignWithin
	case o.Token.Approval:
		return max(signWithin, o.Token.Expires.Sub(now))
	}
	return signWithin
}

// dropRefused forgets a key that was refused: the next try uses another one.
func dropRefused(dir string, err error) error {
	var no *identity.Refused
	if errors.As(err, &no) {
		return errors.Join(err, ignoreNone(os.Remove(filepath.Join(dir, keyFile))))
	}
	return err
}

func ignoreNone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Package join adds this Mac to a fleet, once, with a token that an administrator
// created for it.
//
// It owns the Mac's first key until it has a certificate, and the messages for
// all failures. The account and the identity that it writes to the state folder
// belong to the agent. It refuses an API server that the token does not vouch for
// and a state folder of another Mac, and never sends the key. It can be repeated:
// it resumes an earlier run with the same token. Models, journal and engines are
// not touched.
//
// Start reading at Run.
package join

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/account"
	"metalfleet.dev/metalfleet/agent/identity"
	"metalfleet.dev/metalfleet/agent/register"
	contract "metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	// reachWithin is how long the first answer of the API server may take.
	reachWithin = 15 * time.Second
	// signWithin is how long the operator may take.
	signWithin = 2 * time.Minute
	// keyFile holds the key of a join that is under way.
	keyFile = "join-key.pem"
)

// Options say who joins what.
type Options struct {
	Token contract.Token
	// Mac is the name under which this Mac enrols; only for an enrolment token, and required
	// then.
	Mac string
	// StateDir is the agent's, which must not run.
	StateDir string
	// UserAgent is what the API server's audit log names.
	UserAgent string
	Log       logr.Logger
	// Waiting, if set, is called when a person has to approve the key with this fingerprint.
	Waiting func(fingerprint string)
	// SignWithin is for tests; 0 means two minutes, and until the token expires where a person
	// approves.
	SignWithin time.Duration
}

// ErrMember means that this Mac joined before; an enrolment token changes nothing then.
var ErrMember = errors.New("this Mac has already joined")

// Run joins. Its errors name the next step.
func Run(ctx context.Context, o Options) error {
	if o.Token.Enrolment != "" {
		return enrol(ctx, o)
	}
	if err := check(o); err != nil {
		return err
	}
	if o.SignWithin == 0 {
		o.SignWithin = signWithin
	}
	token := o.Token
	c, err := newClient(o, token.Credential)
	if err != nil {
		return err
	}
	if err := reach(ctx, c, token); err != nil {
		return explain(err, token, time.Now())
	}
	key, err := firstKey(o.StateDir)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, o.SignWithin)
	defer cancel()
	name := contract.Account(token.Mac)
	certificate, uid, err := identity.Obtain(limited, c, name, token.Mac, key)
	if err != nil {
		return explain(err, token, time.Now())
	}
	access, err := collect(limited, c, token, key, uid)
	if err == nil {
		err = settle(limited, o, key, certificate, access)
	}
	if err != nil {
		return explain(err, token, time.Now())
	}
	if err := identity.Collected(ctx, c, name, uid); err != nil {
		o.Log.Info("The operator will revoke the join token within two minutes", "reason", err.Error())
	}
	return forgetKey(o.StateDir)
}

// forgetKey ends a join: the identity has the key.
func forgetKey(dir string) error {
	if err := os.Remove(filepath.Join(dir, keyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove temporary join files: %w", err)
	}
	return nil
}

// check refuses a folder that belongs to another Mac.
func check(o Options) error {
	have, err := account.Open(o.StateDir, o.Log)
	switch {
	case err == nil && have.Mac() != o.Token.Mac:
		return fmt.Errorf("the folder %s belongs to Mac %s, but the token is for %s: use another folder with --state, or create a token for %s", o.StateDir, have.Mac(), o.Token.Mac, have.Mac())
	case err == nil, errors.Is(err, account.ErrNone):
		return nil
	}
	// Damaged or readable by others: joining replaces it.
	o.Log.Info("Replacing the existing account", "reason", err.Error())
	return nil
}

func newClient(o Options, token string) (client.WithWatch, error) {
	return register.NewClient(&rest.Config{
		Host: o.Token.Server, BearerToken: token, UserAgent: o.UserAgent, TLSClientConfig: rest.TLSClientConfig{CAData: o.Token.CA},
	})
}

// reach reads the Secret that the token is bound to: success means that the
// server is the right one and accepts the token.
func reach(ctx context.Context, c client.Client, token contract.Token) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachWithin, fmt.Errorf("no answer within %s", reachWithin))
	defer cancel()
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		var anchor corev1.Secret
		err := c.Get(ctx, client.ObjectKey{Namespace: token.Namespace, Name: contract.Account(token.Mac)}, &anchor)
		// The API server learns of a new account's rights within moments.
		if !apierrors.IsForbidden(err) || !register.Sleep(ctx, pause) {
			if apierrors.IsNotFound(err) {
				return fmt.Errorf("%w: its Secret does not exist", errUsed)
			}
			return err
		}
	}
}

// collect reads the Mac's first API token, which only this key opens.
func collect(ctx context.Context, c client.Client, token contract.Token, key *ecdsa.PrivateKey, uid types.UID) (contract.Access, error) {
	var anchor corev1.Secret
	at := client.ObjectKey{Namespace: token.Namespace, Name: contract.Account(token.Mac)}
	if err := c.Get(ctx, at, &anchor); err != nil {
		return contract.Access{}, fmt.Errorf("read Secret %s: %w", at.Name, err)
	}
	return contract.Open(key, string(uid), anchor.Data[contract.KeyAccess])
}

// settle stores what the Mac needs to go on without the token. The account comes
// last: with it the Mac has joined.
func settle(ctx context.Context, o Options, key *ecdsa.PrivateKey, certificate []byte, access contract.Access) error {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	id, err := identity.Open(o.StateDir, o.Token.Mac, o.Log)
	if err != nil {
		return err
	}
	err = readAuthority(ctx, o, access.Token, func(authority []byte) error {
		return id.Take(certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), authority)
	})
	if err != nil {
		return err
	}
	return account.Save(o.StateDir, account.Credentials{
		Server: o.Token.Server, CA: o.Token.CA, Namespace: o.Token.Namespace, Mac: o.Token.Mac,
		Token: access.Token, Issued: time.Now(), Expires: access.Expires,
	})
}

// errOtherRoots means that the authority was changed while this Mac joined.
var errOtherRoots = errors.New("the issued certificate is not signed by any of the authority's roots: the authority changed while this Mac was joining")

// readAuthority tries the new account at once, on the Secret that is its own,
// until take can use what it names. A root that came to sign a moment ago may
// reach the Secret a moment later.
func readAuthority(ctx context.Context, o Options, token string, take func(authority []byte) error) error {
	c, err := newClient(o, token)
	if err != nil {
		return err
	}
	at := client.ObjectKey{Namespace: o.Token.Namespace, Name: v1alpha1.AgentObjectName(o.Token.Mac)}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		var s corev1.Secret
		var strange x509.UnknownAuthorityError
		err := c.Get(ctx, at, &s)
		authority, named := s.Data[corev1.ServiceAccountRootCAKey], false
		if err == nil && len(authority) > 0 {
			named = true
			if err = take(authority); err == nil {
				return nil
			}
			if !errors.As(err, &strange) {
				return fmt.Errorf("the issued certificate is not usable: %w", err)
			}
		}
		if register.Sleep(ctx, pause) {
			continue
		}
		switch {
		case named:
			return errOtherRoots
		case err == nil:
			err = errors.New("it contains no authority")
		}
		return fmt.Errorf("the Mac's account cannot read the authority from its Secret %s; check that the operator is running: %w", at.Name, err)
	}
}

// firstKey is the key of this join, or of an earlier run that ended before it
// had a certificate.
func firstKey(dir string) (*ecdsa.PrivateKey, error) {
	path := filepath.Join(dir, keyFile)
	b, err := os.ReadFile(path)
	if err == nil {
		if block, _ := pem.Decode(b); block != nil {
			if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
				return key, nil
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read key: %w", err)
	}
	key, err := contract.NewKey()
	if err != nil {
		return nil, err
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // or its mode would stay
		return nil, fmt.Errorf("store key: %w", err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), 0o600); err != nil {
		return nil, fmt.Errorf("store key: %w", err)
	}
	return key, nil
}

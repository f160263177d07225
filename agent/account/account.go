// Package account is this Mac's way into the API: where the server is, how it
// is known, and the token of the Mac's own ServiceAccount.
//
// It owns the file account.json of mode 0600 in the state folder, which joining
// writes, and keeps the token fresh: a new one is asked for when a tenth of its
// life is over, so that a Mac may be off for the rest. It refuses a file that
// others may read. The token goes into requests to that one server and nowhere
// else: no log and no error has it.
//
// Start reading at Open, then Account.Run.
package account

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Errors of Open.
var (
	// ErrNone means that this Mac has not joined.
	ErrNone = errors.New("this Mac has not joined: create a token with `kubectl metalfleet join-token NAME`, then run `agent join --token-file FILE --state DIR` on this Mac")
	// errOpen means that other users may read the token.
	errOpen = errors.New("can be read by other users: restrict it with chmod 600, and join this Mac again if another user may have read it")
)

const fileName = "account.json"

// Credentials are what account.json holds.
type Credentials struct {
	// Server is the https URL of the API server.
	Server string `json:"server"`
	// CA holds the certificates that it is known by, in PEM; empty: this Mac's roots.
	CA []byte `json:"ca,omitempty"`
	// Namespace of the Mac's Lease, Secret and account.
	Namespace string `json:"namespace"`
	// Mac is the name of the MacNode.
	Mac string `json:"mac"`
	// Token of the account, from Issued until Expires.
	Token   string    `json:"token"`
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
}

// Account is one Mac's, with the token of each moment.
type Account struct {
	path    string
	log     logr.Logger
	current atomic.Pointer[Credentials]
}

// Open takes up what joining has left in dir.
func Open(dir string, log logr.Logger) (*Account, error) {
	a := &Account{path: filepath.Join(dir, fileName), log: log}
	info, err := os.Stat(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w (no %s)", ErrNone, a.path)
	}
	if err != nil {
		return nil, fmt.Errorf("account: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s %w", a.path, errOpen)
	}
	b, err := os.ReadFile(a.path)
	if err != nil {
		return nil, fmt.Errorf("account: %w", err)
	}
	var c Credentials
	if err := json.Unmarshal(b, &c); err != nil || c.Server == "" || c.Token == "" || c.Mac == "" || c.Namespace == "" {
		return nil, fmt.Errorf("%s is damaged: join this Mac again (its models are kept)", a.path)
	}
	a.current.Store(&c)
	return a, nil
}

// Save writes account.json, whole or not at all.
func Save(dir string, c Credentials) (err error) {
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode account: %w", err)
	}
	f, err := os.CreateTemp(dir, ".account-*") // of mode 0600
	if err != nil {
		return fmt.Errorf("store account: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, fileName))
	}
	if err != nil {
		return fmt.Errorf("store account: %w", err)
	}
	return nil
}

// Mac is the name of the MacNode, and Namespace that of its other objects.
func (a *Account) Mac() string       { return a.current.Load().Mac }
func (a *Account) Namespace() string { return a.current.Load().Namespace }

// REST is how a client reaches the API, with the token of each moment.
func (a *Account) REST() *rest.Config {
	c := a.current.Load()
	config := &rest.Config{Host: c.Server, TLSClientConfig: rest.TLSClientConfig{CAData: c.CA}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bearer{a, next} })
	return config
}

// bearer puts the token of the moment on each request.
type bearer struct {
	account *Account
	next    http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.account.current.Load().Token)
	return b.next.RoundTrip(r)
}

const (
	// tokenSeconds is how long a token is asked for. The API server may give less.
	tokenSeconds = 7 * 24 * 3600
	// renewPart of its life is over when a token is renewed.
	renewPart = 10
	// look is the longest wait at a time: timers sleep while the Mac does.
	look = 10 * time.Minute
	// leastPause is the minimum time between two tokens, regardless of this Mac's
	// clock.
	leastPause = time.Minute
	retryFirst = time.Second
	retryMost  = 5 * time.Minute
)

// due returns how long the token is not renewed yet. A clock that was set back
// makes it sooner: an hour before it was issued counts as an hour after. By a clock
// that is slow a token seems to live longer than it was asked for.
func due(c Credentials, now time.Time) time.Duration {
	life := min(c.Expires.Sub(c.Issued), tokenSeconds*time.Second)
	return max(0, life/renewPart-now.Sub(c.Issued).Abs())
}

// Run keeps the token fresh until ctx ends.
func (a *Account) Run(ctx context.Context, c client.Client) error {
	failures := 0
	for {
		wait := due(*a.current.Load(), time.Now())
		if wait == 0 {
			err := a.renew(ctx, c)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err == nil:
				failures, wait = 0, leastPause
			default:
				if failures == 0 {
					a.log.Error(err, "Failed to renew the API token; retrying", "expires", a.current.Load().Expires)
				}
				wait = min(retryMost, retryFirst<<min(failures, 20))
				failures++
			}
		}
		timer := time.NewTimer(min(wait, look))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// errAgain names the administrator's next step.
var errAgain = errors.New("the API server no longer accepts this Mac's token: it expired while the Mac was off, or the MacNode was deleted; join this Mac again with a new join token")

func (a *Account) renew(ctx context.Context, c client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	now := *a.current.Load()
	seconds := int64(tokenSeconds)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	own := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: now.Namespace, Name: v1alpha1.AgentObjectName(now.Mac)}}
	if err := c.SubResource("token").Create(ctx, own, request); err != nil {
		if apierrors.IsUnauthorized(err) {
			return errAgain
		}
		return fmt.Errorf("renew API token: %w", err)
	}
	issued := time.Now().Round(0) // without the monotonic clock, which stops while the Mac sleeps
	now.Token, now.Issued, now.Expires = request.Status.Token, issued, request.Status.ExpirationTimestamp.Time
	a.current.Store(&now)
	if err := Save(filepath.Dir(a.path), now); err != nil {
		a.log.Error(err, "The new API token is in use but could not be stored")
	}
	return nil
}

// Package hubsecret reads the Secrets that deployments name for their hub, bucket or
// registry.
//
// It owns how often that is done: the operator may get such a Secret by its name, but
// neither list nor watch Secrets outside its own namespace, so all controllers use this
// package, which caches results for a few seconds. It returns only credentials of the
// expected kind, or a message that explains why there is none.
//
// Start reading at Reader.Read.
package hubsecret

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/controllers/fleet"
)

// How long a result is cached, and when a caller should read again: there is no watch for
// changes.
const (
	holds = 3 * time.Second
	// AgainGood is when to read a credential again, which its owner may replace.
	AgainGood = 10 * time.Second
	// AgainMissing is when to read a missing one again.
	AgainMissing = 5 * time.Second
)

// maxAnswers bounds the cache.
const maxAnswers = 10_000

// Reader reads Secrets from the API server itself, past every other cache.
type Reader struct {
	Live  client.Reader
	Clock clock.PassiveClock

	// mu guards the fields after it.
	mu      sync.Mutex
	answers map[question]answer
}

// question is a Secret, and the kind of source that it is read for.
type question struct {
	key  client.ObjectKey
	kind string
}

type answer struct {
	at      time.Time
	token   []byte
	refusal *fleet.Refusal
}

// Read returns the credential for a source, or why there is none. An error means that
// neither is known.
func (r *Reader) Read(ctx context.Context, key client.ObjectKey, source string) ([]byte, *fleet.Refusal, error) {
	now := r.Clock.Now()
	asked := question{key, fleet.CredentialKind(source)}
	r.mu.Lock()
	a, ok := r.answers[asked]
	r.mu.Unlock()
	if ok && now.Sub(a.at) < holds && !now.Before(a.at) {
		return a.token, a.refusal, nil
	}
	a = answer{at: now}
	var s corev1.Secret
	err := r.Live.Get(ctx, key, &s)
	switch {
	case apierrors.IsNotFound(err):
		a.refusal = fleet.NoSecret(key.Namespace, key.Name, source)
	case apierrors.IsForbidden(err):
		a.refusal = fleet.UnreadableSecret(key.Namespace, key.Name)
	case err != nil:
		return nil, nil, fmt.Errorf("read Secret %s: %w", key, err)
	default:
		a.token, a.refusal = fleet.Credential(&s, source)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answers == nil || len(r.answers) >= maxAnswers {
		r.answers = map[question]answer{}
	}
	r.answers[asked] = a
	return a.token, a.refusal, nil
}

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
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
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
	// AgainMissing is when to read a missing one again, at first; each reader of one costs a pass.
	AgainMissing = 5 * time.Second
	// againMissed is when to read one again that has been missing for long.
	againMissed = time.Minute
)

const (
	// maxAnswers bounds the cache for a namespace.
	maxAnswers = 10_000
	// spacing is the least time between two reads for a namespace on average: with more
	// Secrets, their answers are cached for longer.
	spacing = 50 * time.Millisecond
	// forgets is when an answer that was not asked for ends, which is looked for each
	// pruneEvery.
	forgets    = 10 * time.Minute
	pruneEvery = time.Minute
)

// Reader reads Secrets from the API server itself, past every other cache.
type Reader struct {
	Live  client.Reader
	Clock clock.PassiveClock

	// mu guards the fields after it.
	mu         sync.Mutex
	namespaces map[string]*answers
}

// answers are those for one namespace.
type answers struct {
	all    map[question]*answer
	pruned time.Time
}

// question is a Secret, and the kind of source that it is read for.
type question struct {
	key  client.ObjectKey
	kind string
}

type answer struct {
	at, asked time.Time
	// refused is since when there is no credential.
	refused    time.Time
	credential Credential
	refusal    *fleet.Refusal
}

// Credential is that for a source, with the UID of the Secret that has it.
type Credential struct {
	Token []byte
	UID   types.UID
}

// Read returns the credential for a source, or why there is none. An error means that
// neither is known.
func (r *Reader) Read(ctx context.Context, key client.ObjectKey, source string) (Credential, *fleet.Refusal, error) {
	now := r.Clock.Now()
	asked := question{key, fleet.CredentialKind(source)}
	if a := r.cached(asked, now); a != nil {
		return a.credential, a.refusal, nil
	}
	a := &answer{at: now, asked: now}
	var s corev1.Secret
	err := r.Live.Get(ctx, key, &s)
	switch {
	case apierrors.IsNotFound(err):
		a.refusal = fleet.NoSecret(key.Namespace, key.Name, source)
	case apierrors.IsForbidden(err):
		a.refusal = fleet.UnreadableSecret(key.Namespace, key.Name)
	case err != nil:
		return Credential{}, nil, fmt.Errorf("read Secret %s: %w", key, err)
	default:
		a.credential.UID = s.UID
		a.credential.Token, a.refusal = fleet.Credential(&s, source)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.of(key.Namespace, now)
	if before := n.all[asked]; a.refusal != nil && before != nil && before.refusal != nil {
		a.refused = before.refused
	} else if a.refusal != nil {
		a.refused = now
	}
	if len(n.all) >= maxAnswers {
		clear(n.all)
	}
	n.all[asked] = a
	return a.credential, a.refusal, nil
}

// Again returns when to read a credential again: soon if it has been missing for a short time, which
// a person may be about to change, and at last once a minute.
func (r *Reader) Again(key client.ObjectKey, source string) time.Duration {
	now := r.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch a := r.of(key.Namespace, now).all[question{key, fleet.CredentialKind(source)}]; {
	case a == nil:
		return AgainMissing
	case a.refusal == nil:
		return AgainGood
	default:
		return min(max(AgainMissing, now.Sub(a.refused)/4), againMissed)
	}
}

// cached returns an answer that is not too old; nil if there is none.
func (r *Reader) cached(asked question, now time.Time) *answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.of(asked.key.Namespace, now)
	a := n.all[asked]
	if a == nil {
		return nil
	}
	a.asked = now
	if age := now.Sub(a.at); age < 0 || age >= max(holds, time.Duration(len(n.all))*spacing) {
		return nil
	}
	return a
}

// of returns the answers for a namespace, without those that are not asked for any more. The
// lock is held.
func (r *Reader) of(namespace string, now time.Time) *answers {
	n := r.namespaces[namespace]
	if n == nil {
		n = &answers{all: map[question]*answer{}, pruned: now}
		if r.namespaces == nil {
			r.namespaces = map[string]*answers{}
		}
		r.namespaces[namespace] = n
	}
	if now.Sub(n.pruned) >= pruneEvery {
		n.pruned = now
		maps.DeleteFunc(n.all, func(_ question, a *answer) bool { return now.Sub(a.asked) > forgets })
	}
	return n
}

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
	"crypto/sha256"
	"errors"
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
	// maxKind is the length of a kind that is not replaced by its digest.
	maxKind = 64
	// spacing is the least time between two reads for a namespace on average: with more
	// Secrets, their answers are cached for longer.
	spacing = 50 * time.Millisecond
	// ahead is how many credentials of a namespace may be read at once, before one each spacing: those
	// that one Mac has at most.
	ahead = 128
	// forgets is when an answer that was not asked for ends, which is looked for each
	// pruneEvery.
	forgets    = 10 * time.Minute
	pruneEvery = time.Minute
)

// ErrLater is returned for a credential that is not cached while too many of its namespace were read
// just now.
var ErrLater = errors.New("the Secrets of this namespace are read too often")

// Reader reads Secrets from the API server itself, past every other cache.
type Reader struct {
	Live  client.Reader
	Clock clock.PassiveClock

	// mu guards the fields after it.
	mu         sync.Mutex
	namespaces map[string]*answers
	pruned     time.Time
	tokenBytes int // of all namespaces
}

// answers are those for one namespace.
type answers struct {
	all        map[question]*answer
	tokenBytes int
	// paid is until when the reads of credentials count, each for one spacing.
	paid time.Time
}

// mayRead reports whether a credential may be read now, and counts it.
func (a *answers) mayRead(now time.Time) bool {
	most := now.Add(ahead * spacing)
	if a.paid.Before(now) || a.paid.After(most) { // after most: the clock was set back
		a.paid = now
	}
	if a.paid.Add(spacing).After(most) {
		return false
	}
	a.paid = a.paid.Add(spacing)
	return true
}

// hold is how long an answer is cached.
func (a *answers) hold() time.Duration { return max(holds, time.Duration(len(a.all))*spacing) }

// question is a Secret, and the kind of source that it is read for.
type question struct {
	key  client.ObjectKey
	kind string
}

// questionOf returns the question about the credential for a source.
func questionOf(key client.ObjectKey, source string) question {
	kind := fleet.CredentialKind(source)
	if len(kind) > maxKind {
		sum := sha256.Sum256([]byte(kind))
		kind = string(sum[:])
	}
	return question{key, kind}
}

type answer struct {
	at, asked time.Time
	// refused is since when there is no credential.
	refused time.Time
	// credential has no token if only its UID was asked for.
	credential Credential
	refusal    *fleet.Refusal
}

// Credential is that for a source, with the UID of the Secret that has it.
type Credential struct {
	Token []byte
	UID   types.UID
}

// Read returns the credential for a source, or why there is none. An error means that
// neither is known: ErrLater that it will be.
func (r *Reader) Read(ctx context.Context, key client.ObjectKey, source string) (Credential, *fleet.Refusal, error) {
	return r.read(ctx, key, source, true)
}

// Check is Read for callers that need only the UID of the Secret. Any number of deployments may
// name Secrets, and few of them are copied to Macs: the credentials of the others are not cached.
func (r *Reader) Check(ctx context.Context, key client.ObjectKey, source string) (types.UID, *fleet.Refusal, error) {
	c, refusal, err := r.read(ctx, key, source, false)
	return c.UID, refusal, err
}

func (r *Reader) read(ctx context.Context, key client.ObjectKey, source string, token bool) (Credential, *fleet.Refusal, error) {
	now, asked := r.Clock.Now(), questionOf(key, source)
	a, err := r.cached(asked, token, now)
	if err != nil {
		return Credential{}, nil, err
	}
	if a != nil {
		return a.credential, a.refusal, nil
	}
	a = &answer{at: now, asked: now}
	var s corev1.Secret
	err = r.Live.Get(ctx, key, &s)
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
	got := a.credential
	r.keep(asked, a, token, now)
	return got, a.refusal, nil
}

// keep caches an answer, with its token if that was asked for now or before.
func (r *Reader) keep(asked question, a *answer, token bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prune(now)
	n := r.of(asked.key.Namespace)
	before := n.all[asked]
	if a.refusal != nil && before != nil && before.refusal != nil {
		a.refused = before.refused
	} else if a.refusal != nil {
		a.refused = now
	}
	if before != nil {
		token = token || before.credential.Token != nil
		r.drop(n, before)
	}
	if len(n.all) >= maxAnswers {
		r.remove(n, func(*answer) bool { return true })
	}
	if size := len(a.credential.Token); token && n.tokenBytes+size <= fleet.TokensRoom.Of(r.tokenBytes-n.tokenBytes) {
		n.tokenBytes += size
		r.tokenBytes += size
	} else {
		a.credential.Token = nil
	}
	n.all[asked] = a
}

// of returns the answers for a namespace. The lock is held.
func (r *Reader) of(namespace string) *answers {
	n := r.namespaces[namespace]
	if n == nil {
		n = &answers{all: map[question]*answer{}}
		if r.namespaces == nil {
			r.namespaces = map[string]*answers{}
		}
		r.namespaces[namespace] = n
	}
	return n
}

// drop drops the token of an answer. The lock is held.
func (r *Reader) drop(n *answers, a *answer) {
	n.tokenBytes -= len(a.credential.Token)
	r.tokenBytes -= len(a.credential.Token)
	a.credential.Token = nil
}

// remove removes some answers. The lock is held.
func (r *Reader) remove(n *answers, which func(*answer) bool) {
	maps.DeleteFunc(n.all, func(_ question, a *answer) bool {
		if !which(a) {
			return false
		}
		r.drop(n, a)
		return true
	})
}

// Again returns when to read a credential again: soon if it has been missing for a short time, which
// a person may be about to change, and at last once a minute.
func (r *Reader) Again(key client.ObjectKey, source string) time.Duration {
	now := r.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	var a *answer
	if n := r.namespaces[key.Namespace]; n != nil {
		a = n.all[questionOf(key, source)]
	}
	switch {
	case a == nil:
		return AgainMissing
	case a.refusal == nil:
		return AgainGood
	default:
		return min(max(AgainMissing, now.Sub(a.refused)/4), againMissed)
	}
}

// cached returns an answer that is not too old and has a token if there has to be one; nil if the
// Secret is to be read. If it may not be read for a token now, the answer is an older one, or ErrLater.
func (r *Reader) cached(asked question, token bool, now time.Time) (*answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prune(now)
	n := r.of(asked.key.Namespace)
	a := n.all[asked]
	complete, recent := false, false
	if a != nil {
		a.asked = now
		age := now.Sub(a.at)
		complete, recent = !token || a.refusal != nil || a.credential.Token != nil, age >= 0 && age < n.hold()
	}
	switch {
	case complete && recent:
	case !token || n.mayRead(now):
		return nil, nil
	case !complete:
		return nil, ErrLater
	}
	copied := *a
	return &copied, nil
}

// prune removes, from time to time, the answers that are not asked for any more, and tokens that are
// too old to be used, of all namespaces: one that is gone asks nothing. The lock is held.
func (r *Reader) prune(now time.Time) {
	if now.Sub(r.pruned).Abs() < pruneEvery {
		return
	}
	r.pruned = now
	for namespace, n := range r.namespaces {
		hold := n.hold()
		r.remove(n, func(a *answer) bool {
			if now.Sub(a.at) >= hold {
				r.drop(n, a)
			}
			return now.Sub(a.asked) > forgets
		})
		if len(n.all) == 0 {
			delete(r.namespaces, namespace)
		}
	}
}

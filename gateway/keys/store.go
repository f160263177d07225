package keys

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// Reason why a key was refused; it is a metric label and a field of the audit log.
type Reason string

// Reasons. The empty one means that the key was accepted.
const (
	ReasonMissing      Reason = "key_missing"
	ReasonUnknown      Reason = "key_unknown"
	ReasonExpired      Reason = "key_expired"
	ReasonModel        Reason = "model_outside_key"
	ReasonModelUnknown Reason = "model_unknown"
	ReasonRequests     Reason = "requests_per_minute"
	ReasonTokens       Reason = "tokens_per_minute"
)

// Options configure a store.
type Options struct {
	// Registry receives the metrics.
	Registry prometheus.Registerer
	// Log receives a line for keys that are added, changed, removed or rejected; never
	// their values.
	Log logr.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Store holds the keys. It is safe for concurrent use.
type Store struct {
	Options
	metrics *metrics
	synced  atomic.Bool

	mu      sync.RWMutex // guards the fields after it
	keys    map[string]*Key
	refused map[string]string // the error of each invalid Secret
	labels  int               // number of keys with a label of their own
}

// NewStore returns an empty store that is not synced.
func NewStore(o Options) *Store {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Store{Options: o, metrics: newMetrics(o.Registry), keys: map[string]*Key{}, refused: map[string]string{}}
}

// Synced reports whether all Secrets were read once; before that an unknown key may be
// valid.
func (s *Store) Synced() bool { return s.synced.Load() }

// MarkSynced records that they were.
func (s *Store) MarkSynced() { s.synced.Store(true) }

// Find authenticates the key of a request. On a refusal the key is nil unless the client
// does hold it.
func (s *Store) Find(token string) (*Key, Reason) {
	if token == "" {
		return nil, ReasonMissing
	}
	name, ok := nameIn(token)
	if !ok {
		return nil, ReasonUnknown
	}
	s.mu.RLock()
	k := s.keys[name]
	s.mu.RUnlock()
	if k == nil {
		return nil, ReasonUnknown
	}
	digest := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(digest[:], k.digest[:]) != 1 {
		return nil, ReasonUnknown
	}
	return k, s.expired(k)
}

// Again returns the current version of a key that was found earlier, and why it is refused now. A
// request may have waited for minutes since then.
func (s *Store) Again(k *Key) (*Key, Reason) {
	s.mu.RLock()
	now := s.keys[k.Name]
	s.mu.RUnlock()
	if now == nil || now.digest != k.digest || now.uid != k.uid {
		return nil, ReasonUnknown
	}
	return now, s.expired(now)
}

// expired returns the reason to refuse a key by its time; empty if there is none.
func (s *Store) expired(k *Key) Reason {
	if !k.Expires.IsZero() && !s.Now().Before(k.Expires) {
		return ReasonExpired
	}
	return ""
}

// Set reads a new or changed Secret. One that is being deleted grants nothing any more,
// even if a finalizer keeps it.
func (s *Store) Set(secret *corev1.Secret) {
	if secret.DeletionTimestamp != nil {
		s.Delete(secret.Name)
		return
	}
	log := s.Log.WithValues("Secret", secret.Namespace+"/"+secret.Name)
	k, err := parse(secret)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.count()
	if err != nil {
		s.drop(secret.Name)
		if s.refused[secret.Name] != err.Error() {
			log.Info("Ignoring an invalid API key until its Secret is corrected", "reason", err.Error())
		}
		s.refused[secret.Name] = err.Error()
		return
	}
	delete(s.refused, k.Name)
	old := s.keys[k.Name]
	if old != nil && old.digest == k.digest && old.uid == k.uid && old.same(&k.Grant) {
		return
	}
	s.put(k, old)
	log.Info("API key loaded", "expires", k.end(), "requestsPerMinute", k.RequestsPerMinute, "tokensPerMinute", k.TokensPerMinute)
}

// put stores a key. The usage of its old version is kept, unless the limits have changed.
func (s *Store) put(k, old *Key) {
	if old != nil && old.sameLimits(&k.Grant) {
		k.budget = old.budget
	} else {
		k.budget = newBudget(&k.Grant, s.Now())
	}
	switch {
	case old != nil:
		k.label = old.label
	case s.labels < maxLabels:
		k.label = k.Name
		s.labels++
	default:
		k.label = labelOthers
	}
	s.keys[k.Name] = k
}

// Delete revokes a key.
func (s *Store) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.count()
	delete(s.refused, name)
	if s.keys[name] != nil {
		s.drop(name)
		s.Log.Info("API key revoked", "key", name)
	}
}

// drop removes a key and its metric series.
func (s *Store) drop(name string) {
	k := s.keys[name]
	if k == nil {
		return
	}
	delete(s.keys, name)
	if k.label != labelOthers {
		s.labels--
		s.metrics.forget(k.label)
	}
}

func (s *Store) count() { s.metrics.count(len(s.keys), len(s.refused)) }

// Kind selects the Secrets that Watch reads.
func Kind(namespace string) cache.ByObject {
	return cache.ByObject{Namespaces: map[string]cache.Config{
		namespace: {FieldSelector: fields.OneTermEqualSelector("type", string(Type))},
	}}
}

// Watch puts every change of a Secret into the store, and marks the store as synced once
// all were read. It returns then, or when ctx ends; the watch lives as long as the
// informers.
func Watch(ctx context.Context, informers cache.Informers, s *Store) error {
	informer, err := informers.GetInformer(ctx, &corev1.Secret{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch API keys: %w", err)
	}
	set := func(o any) {
		if secret, ok := o.(*corev1.Secret); ok {
			s.Set(secret)
		}
	}
	drop := func(o any) {
		if late, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = late.Obj
		}
		if secret, ok := o.(*corev1.Secret); ok {
			s.Delete(secret.Name)
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: set, UpdateFunc: func(_, now any) { set(now) }, DeleteFunc: drop})
	if err != nil {
		return fmt.Errorf("watch API keys: %w", err)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return ctx.Err()
	}
	s.MarkSynced()
	return nil
}

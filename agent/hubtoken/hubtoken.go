// Package hubtoken is which hub tokens this Mac was given, and which access keys
// of buckets and logins of registries: all are one line that an order names.
//
// It owns the keys "hub-token.REF" of the Secret "mac-NAME" as the agent sees
// them, in memory alone: they are on no disk, and after a restart the Secret
// brings them again. It refuses what is no token, and says none to anybody but
// who asks by the tokenRef of an order.
//
// Start reading at Tokens.Run.
package hubtoken

import (
	"context"
	"maps"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// maxBytes is far more than any hub's token has, or any bucket's access key.
const maxBytes = 16 << 10

// Tokens are the hub tokens that are known now.
type Tokens struct {
	client  client.WithWatch
	key     types.NamespacedName
	log     logr.Logger
	changed chan struct{}

	// mu guards what follows.
	mu sync.Mutex
	by map[string]download.Bearer
}

// New makes the tokens of the Mac called mac, whose Secret lies in namespace.
func New(c client.WithWatch, namespace, mac string, log logr.Logger) *Tokens {
	key := types.NamespacedName{Namespace: namespace, Name: v1alpha1.AgentObjectName(mac)}
	return &Tokens{client: c, key: key, log: log, changed: make(chan struct{}, 1)}
}

// Run follows the Secret until ctx ends.
func (t *Tokens) Run(ctx context.Context) error {
	return register.Follow(ctx, t.client, &corev1.SecretList{}, t.key, t.log, func(s *corev1.Secret) { t.take(s.Data) })
}

// take makes what a Secret holds the tokens that are known.
func (t *Tokens) take(data map[string][]byte) {
	next := map[string]download.Bearer{}
	for k, v := range data {
		ref, ours := strings.CutPrefix(k, v1alpha1.HubTokenKeyPrefix)
		switch {
		case !ours:
		case !usable(v):
			t.log.Info("Ignoring a hub token in the Secret: it is not one line of printable characters", "tokenRef", ref)
		default:
			next[ref] = download.Bearer(v)
		}
	}
	t.mu.Lock()
	same := maps.Equal(t.by, next)
	t.by = next
	t.mu.Unlock()
	if same {
		return
	}
	t.log.Info("Loaded hub tokens from the Secret", "tokens", len(next))
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// usable refuses what would not fit a header: it is sent in one.
func usable(v []byte) bool {
	odd := func(r rune) bool { return r <= ' ' || r > '~' }
	return len(v) > 0 && len(v) <= maxBytes && !strings.ContainsFunc(string(v), odd)
}

// Of is the token that an order names, if it is here.
func (t *Tokens) Of(ref string) (download.Bearer, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, ok := t.by[ref]
	return b, ok
}

// Changed receives after tokens changed; several changes may be one signal.
func (t *Tokens) Changed() <-chan struct{} { return t.changed }

package macnode

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// maxHolders bounds the replicas that holders remembers; the oldest are forgotten first.
const maxHolders = 20_000

// holders remembers which replicas were bound to which Mac: a Mac reports the end of an
// engine when its replica may be deleted already. The zero value remembers nothing. It is
// safe for concurrent use.
type holders struct {
	mu    sync.Mutex
	of    map[types.UID]heldReplica // guarded by mu
	order []types.UID               // in which they came, guarded by mu
}

// heldReplica is the place of one replica.
type heldReplica struct{ namespace, name, mac string }

// bound records a replica that has a Mac.
func (h *holders) bound(r *v1alpha1.ModelReplica) {
	if r.Spec.NodeName == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = map[types.UID]heldReplica{}
	}
	if _, known := h.of[r.UID]; !known {
		h.order = append(h.order, r.UID)
	}
	h.of[r.UID] = heldReplica{r.Namespace, r.Name, r.Spec.NodeName}
	for len(h.order) > maxHolders {
		delete(h.of, h.order[0])
		h.order = h.order[1:]
	}
}

// held reports whether a reclaim is about a replica that the Mac holds or held.
func (h *holders) held(mac string, r *v1alpha1.Reclaim) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of[types.UID(r.ReplicaUID)] == heldReplica{r.Namespace, r.Name, mac}
}

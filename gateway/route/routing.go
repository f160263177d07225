package route

import (
	"math/bits"
	"slices"
	"time"
)

// Routing names the other deployments of the namespace that serve requests for a
// deployment's bare names.
type Routing struct {
	// Split lists the deployments that get a share of the requests; the rest of 100 percent
	// stays.
	Split []Share
	// SessionAffinity selects the requests that stay with one of them; empty means the
	// conversation.
	SessionAffinity string
	// Fallbacks serve a request, in this order, when the chosen deployment cannot.
	Fallbacks []string
	// Patience is how long a request waits for a busy deployment if there is an
	// alternative.
	Patience time.Duration
}

// Share is a percentage of the requests.
type Share struct {
	Deployment string
	Percent    int
}

// at returns the deployment for a hash value; empty means the deployment itself.
func (r *Routing) at(point uint64) string {
	percent, _ := bits.Mul64(point, 100)
	for _, s := range r.Split {
		if percent < uint64(s.Percent) {
			return s.Deployment
		}
		percent -= uint64(s.Percent)
	}
	return ""
}

// Routing returns how requests for its bare names are routed; nil means that it serves them
// itself.
func (m *Model) Routing() *Routing { return m.routing.Load() }

// Targets returns the deployments that may serve a request for a bare name of m, in order,
// or for such a name with an adapter, which the others must have as well:
// the one that its split assigns to point, then m, then the others of the split, then
// fallbacks, each of them once if it exists. It is only m if m has no routing.
func (t *Table) Targets(m *Model, adapter string, point uint64) []*Model {
	r := m.Routing()
	if r == nil {
		return []*Model{m}
	}
	names := []string{r.at(point), ""}
	for _, s := range r.Split {
		if s.Percent > 0 {
			names = append(names, s.Deployment)
		}
	}
	var out []*Model
	for _, name := range append(names, r.Fallbacks...) {
		next, known := m, true
		if name != "" {
			key := Key{m.Namespace, name}
			// Where there is no such deployment, one of another namespace may serve that name.
			next, known = t.Lookup(key.String())
			known = known && next.Key == key
		}
		if known && !slices.Contains(out, next) && (next == m || adapter == "" || next.HasAdapter(adapter)) {
			out = append(out, next)
		}
	}
	return out
}

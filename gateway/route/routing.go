package route

import (
	"math/bits"
	"slices"
	"time"
)

// Routing is who else answers requests for a deployment's bare names: others of
// its namespace, by name.
type Routing struct {
	// Split is who gets a part; what is left of 100 percent stays.
	Split []Share
	// Sticky is what stays with one of them; empty is each conversation.
	Sticky string
	// Fallbacks answer, in this order, where the one whose turn it is cannot.
	Fallbacks []string
	// Patience is how long a request waits for a busy one while there is another.
	Patience time.Duration
}

// Share is a part of the requests.
type Share struct {
	Deployment string
	Percent    int
}

// at is who gets what lies at a point of all that a hash can be; empty is the
// deployment itself.
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

// Routing of requests for its bare names; nil where it answers them itself.
func (m *Model) Routing() *Routing { return m.routing.Load() }

// Order is who is to answer a request for a bare name of m: the one at a point
// of its split, then m, then the others that have a part of it, then fallbacks;
// each that is there once. It is m alone where m routes nothing.
func (t *Table) Order(m *Model, point uint64) []*Model {
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
			next, known = t.Lookup(Key{m.Namespace, name}.String())
		}
		if known && !slices.Contains(out, next) {
			out = append(out, next)
		}
	}
	return out
}

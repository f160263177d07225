package proxy

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/waiting"
)

// Reasons to ask the next deployment, which are labels too.
const (
	passedNone    = "none_ready" // there is no ready replica
	passedRefused = "refused"    // those that there are refuse, or failed
	passedBusy    = "busy"       // they are busy, and it would wait for too long
)

// errElsewhere says that a deployment cannot answer, and that another may.
var errElsewhere = errors.New("passed on to another deployment")

// routed is a request that several deployments may answer.
type routed struct {
	all      []*route.Model
	patience time.Duration
}

// stages are whom a request is to be sent to, the first first. What was asked by
// NAMESPACE/NAME is for that deployment alone.
func (p *Proxy) stages(m *route.Model, q *query) ([]*route.Model, *routed) {
	r := m.Routing()
	if r == nil || q.name == m.Key.String() {
		return []*route.Model{m}, nil
	}
	all := p.Table.Order(m, point(r.Sticky, m.Key, q))
	return all, &routed{all: all, patience: r.Patience}
}

// point is where a request lies in a split: the same for all that is to stay
// together, at every gateway, and by chance where that cannot be told.
func point(sticky string, of route.Key, q *query) uint64 {
	var together []byte
	switch v1alpha1.RoutingSticky(sticky) {
	case v1alpha1.StickyNone:
	case v1alpha1.StickyAPIKey:
		together = []byte(q.key)
	default:
		if begins := cmp.Or(q.prefix.Own, q.prefix.Shared); begins != 0 {
			together = binary.BigEndian.AppendUint64(nil, begins)
		}
	}
	if len(together) == 0 {
		return rand.Uint64()
	}
	return pick.Hash([]byte(of.String()), together)
}

// begin has the first of several asked.
func (q *query) begin(all []*route.Model, r *routed) {
	q.routed = r
	q.ask(all[0], all[1:])
}

// ask has a deployment asked, of which nothing is known yet.
func (q *query) ask(m *route.Model, rest []*route.Model) {
	q.model, q.rest = m, rest
	q.tries, q.last, q.told = 0, nil, nil
	q.waiter = &waiting.Waiter{Model: m.Key.String(), Key: q.key, Bytes: int64(len(q.body)), Deadline: q.deadline}
	if len(rest) > 0 {
		if end := time.Now().Add(q.routed.patience); q.deadline.IsZero() || end.Before(q.deadline) {
			q.waiter.Deadline = end
		}
	}
}

// answers is who answers, where its client asked for another's name.
func (q *query) answers() string {
	if q.routed == nil {
		return ""
	}
	return q.model.Key.String()
}

// shown is what its answer calls the model.
func (q *query) shown() string {
	if q.routed == nil {
		return q.name
	}
	return q.model.Shown()
}

// nextEndpoint finds where to send a request next: at the deployment that is
// asked now, or at the one after it. Where none has a replica it waits for the
// first, as it would if that were the only one.
func (p *Proxy) nextEndpoint(ctx context.Context, w *reply, q *query) (grant, error) {
	for {
		g, err := p.endpoint(ctx, w, q)
		if !errors.Is(err, errElsewhere) {
			return g, err
		}
		why := passedBusy
		switch {
		case q.last != nil:
			why = passedRefused
		case len(q.model.Endpoints()) == 0:
			why = passedNone
		}
		p.metrics.passed.WithLabelValues(why).Inc()
		logOf(ctx).V(1).Info("Deployment cannot answer; trying the next one", "reason", why, "ModelDeployment", q.model.Key.String())
		q.ask(q.rest[0], q.rest[1:])
		if len(q.rest) == 0 && len(q.model.Endpoints()) == 0 {
			q.ask(waitFor(q.routed.all), nil)
		}
		p.book.asked(q.model.Key)
	}
}

// waitFor is whom a request waits for that nobody can answer now: the first that
// has replicas, or else the first.
func waitFor(all []*route.Model) *route.Model {
	for _, m := range all {
		if len(m.Endpoints()) > 0 {
			return m
		}
	}
	return all[0]
}

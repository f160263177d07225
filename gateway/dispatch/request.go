package dispatch

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
)

const (
	// backoffMin and backoffMax bound how long a request waits at least after every replica
	// refused it; within them the refusal's own Retry-After counts.
	backoffMin = 250 * time.Millisecond
	backoffMax = 2 * time.Second
	// maxEnginesLost is how many engines may crash under a request before it is given up, of
	// all deployments: it may be the cause.
	maxEnginesLost = 2
	// sameEngine is how long further losses at one replica count as one: its Mac may not have
	// noticed yet that the engine ended, and a new engine takes longer to load.
	sameEngine = 2 * time.Second
)

// Reasons of a failed attempt, which are metric labels too.
const (
	ReasonConnection = "connection" // the Mac is unreachable, or the connection was lost
	ReasonStream     = "stream"     // the Mac reset the stream of this request alone
	ReasonRefused    = "refused"    // the agent refused it and allows another Mac
	ReasonTimeout    = "timeout"    // it exceeded the time limit of one attempt
)

// Failure is the reason of an attempt that failed before the client received anything.
type Failure struct {
	Reason string
	Err    error
	// Refusal is the error that the agent sent, if any.
	Refusal *openai.Error
}

// Lease is a slot of one replica, occupied until Release.
type Lease struct {
	route.Endpoint
	// Model is the deployment of the replica.
	Model *route.Model
	// After is the failure of the previous attempt; nil for the first attempt at a
	// deployment.
	After *Failure

	dispatcher *Dispatcher
	request    *Request
	guest      bool // see mostGuests
	began      time.Time
	free       func() // frees the slot; the lock of the queue is held
	release    func()
}

// suspended reports whether nothing serves the request's deployment until a person
// resumes it: waiting does not help.
func (r *Request) suspended() bool { return r.model.Suspended() && !r.served(r.model) }

// served reports whether a deployment has a replica for the request: a ready one with its
// adapter, if it names one.
func (r *Request) served(m *route.Model) bool {
	return slices.ContainsFunc(m.Endpoints(), func(e route.Endpoint) bool { return e.HasAdapter(r.Adapter) })
}

// LeaseOf returns a lease of a Mac without a slot, for requests to the agent itself.
func LeaseOf(mac route.Mac) *Lease {
	return &Lease{Endpoint: route.Endpoint{Mac: mac.Name, MacUID: mac.UID, Address: mac.Address, Reach: mac.Reach}, release: func() {}}
}

// Release frees the slot. Further calls are no-ops.
func (l *Lease) Release() { l.release() }

// Client is notified while its request waits. The methods are called from
// Dispatcher.Acquire.
type Client interface {
	// Queued is called when the request begins to wait.
	Queued(Place)
	// IdleSince returns when the client last received something.
	IdleSince() time.Time
	// KeepAlive is called when the client has received nothing for the keep-alive time. An
	// error means that it disconnected.
	KeepAlive(Place) error
	// Dequeued is called when the wait ended with a lease.
	Dequeued(waited time.Duration)
}

// Request is a request for a model. Route sets the deployments that may serve it.
type Request struct {
	// Name of the model, as the client sent it.
	Name string
	// Adapter that the name selects; empty for the model alone. Replicas without it are
	// never used.
	Adapter string
	// Candidates are the deployments that may serve it, the preferred one first.
	Candidates []*route.Model
	// Routed is true if a routing rule chose the candidates.
	Routed bool
	// Key is the name of its API key; empty if none is required.
	Key string
	// Owner is the tenant of that key. If none is required, it is the address of the client, and another one
	// for what that has in the background.
	Owner string
	// Sequences is how many sequences it runs at once; 0 means one.
	Sequences int
	// Prefix of its prompt, to prefer replicas that have it in their prefix cache.
	Prefix pick.Prefix
	// OnlyMac is the only Mac that can serve it; empty for any.
	OnlyMac string
	// Avoided are the Macs that serve it only if no other one can.
	Avoided map[string]time.Duration
	// Bytes of its body.
	Bytes int64
	// Deadline of its client; zero is none.
	Deadline time.Time
	// Client is notified during a wait.
	Client Client
	// Log of the request.
	Log func() logr.Logger

	patience time.Duration  // longest wait for a candidate while another one is left
	model    *route.Model   // the current candidate
	rest     []*route.Model // the candidates after it
	entry    *fairqueue.Entry

	tries          int             // attempts in this round
	replicas, macs map[string]bool // that failed in this round
	last           *Failure
	refusal        *openai.Error   // the last one that an agent sent
	refusers       map[string]bool // Macs that refused it for good
	enginesLost    int
	lost           *openai.Error // the refusal of the last one
	lostBy         string        // the replica that lost the last engine
	lostAt         time.Time
}

// Route sets the deployments that may serve a request for m. A name of the form
// NAMESPACE/NAME, or NAMESPACE/NAME:ADAPTER, selects that deployment alone.
func (r *Request) Route(t *route.Table, m *route.Model) {
	routing := m.Routing()
	if routing == nil || r.Name == m.Key.String() || r.Name == m.Key.String()+":"+r.Adapter {
		r.Candidates = []*route.Model{m}
		return
	}
	r.Candidates, r.Routed, r.patience = t.Targets(m, r.Adapter, r.point(routing.SessionAffinity, m.Key)), true, routing.Patience
}

// point returns the position of a request in a split: the same for all requests that belong
// together, at every gateway, and random if that is unknown.
func (r *Request) point(affinity string, of route.Key) uint64 {
	var together []byte
	switch v1alpha1.SessionAffinity(affinity) {
	case v1alpha1.SessionAffinityNone:
	case v1alpha1.SessionAffinityAPIKey:
		together = []byte(r.Key)
	default:
		if begins := cmp.Or(r.Prefix.Own, r.Prefix.Shared); begins != 0 {
			together = binary.BigEndian.AppendUint64(nil, begins)
		}
	}
	if len(together) == 0 {
		return rand.Uint64()
	}
	return pick.Hash([]byte(of.String()), together)
}

// begin directs the request to the first candidate.
func (r *Request) begin(now time.Time) { r.sendTo(r.Candidates[0], r.Candidates[1:], now) }

// passOn directs the request to the next candidate. If the last one has no replica either,
// the request waits for the first one that has replicas, or else for the first.
func (r *Request) passOn(now time.Time) {
	r.sendTo(r.rest[0], r.rest[1:], now)
	if len(r.rest) > 0 || r.served(r.model) {
		return
	}
	next := r.Candidates[0]
	for _, m := range r.Candidates {
		if r.served(m) {
			next = m
			break
		}
	}
	r.sendTo(next, nil, now)
}

// sendTo directs the request to a deployment at which nothing failed yet.
func (r *Request) sendTo(m *route.Model, rest []*route.Model, now time.Time) {
	r.model, r.rest = m, rest
	r.tries, r.last, r.refusal, r.replicas, r.refusers = 0, nil, nil, nil, nil
	r.entry = &fairqueue.Entry{Model: m.Key.String(), Tenant: r.Owner, Key: r.Key, Bytes: r.Bytes, Deadline: r.Deadline}
	if len(rest) > 0 {
		if end := now.Add(r.patience); r.Deadline.IsZero() || end.Before(r.Deadline) {
			r.entry.Deadline = end
		}
	}
}

// cannotAnswer returns why the current deployment cannot serve the request, as a label.
func (r *Request) cannotAnswer() string {
	switch {
	case r.last != nil:
		return passedRefused
	case !r.served(r.model):
		return passedNone
	}
	return passedBusy
}

// avoids reports whether others are preferred for the request alone.
func (r *Request) avoids(e route.Endpoint) bool { return r.Avoided[e.Mac] > 0 }

// CanUse reports whether an endpoint may serve the request, as far as that is known before it is sent.
func (r *Request) CanUse(e route.Endpoint) bool {
	return (r.OnlyMac == "" || e.Mac == r.OnlyMac) && e.HasAdapter(r.Adapter)
}

func (r *Request) excluded(e route.Endpoint) bool {
	return r.replicas[e.Replica] || r.macs[e.Mac] || !r.mayServe(e)
}

// mayServe reports whether a replica can still take the request.
func (r *Request) mayServe(e route.Endpoint) bool { return !r.refusers[e.Mac] && r.CanUse(e) }

// failed excludes a failed replica for the rest of this round.
func (r *Request) failed(e route.Endpoint, f *Failure) {
	if r.replicas == nil {
		r.replicas = map[string]bool{}
	}
	if r.macs == nil {
		r.macs = map[string]bool{}
	}
	r.tries++
	r.last, r.refusal = f, moreHelpful(r.refusal, f.Refusal)
	r.replicas[e.Replica] = true
	if f.Refusal != nil && f.Refusal.Code == agentapi.CodeEngineLost {
		r.lost = f.Refusal
		r.engineLost(e.Replica, time.Now())
	}
	if f.Reason == ReasonConnection {
		r.macs[e.Mac] = true
	}
	if f.Refusal != nil && !mayPass(f.Refusal) {
		if r.refusers == nil {
			r.refusers = map[string]bool{}
		}
		r.refusers[e.Mac] = true
	}
}

// engineLost counts an engine that ended with the request.
func (r *Request) engineLost(replica string, now time.Time) {
	if replica != r.lostBy || now.Sub(r.lostAt) >= sameEngine {
		r.enginesLost++
		r.lostBy, r.lostAt = replica, now
	}
}

// mayWait reports whether a replica may still take a request that was refused: one whose refusal may
// pass, or another one while only one Mac refused it for good: a single Mac may be wrong.
func (r *Request) mayWait() bool {
	return r.refusal == nil || mayPass(r.refusal) ||
		len(r.refusers) < 2 && slices.ContainsFunc(r.model.Endpoints(), r.mayServe)
}

// mayPass reports whether a replica may take later what it refused: it sent Retry-After, or its engine
// crashed and is being restarted.
func mayPass(refusal *openai.Error) bool {
	return refusal.RetryAfter > 0 || refusal.Code == agentapi.CodeEngineLost
}

// newRound allows the replicas again whose refusals may pass, after a backoff of at least a duration.
func (r *Request) newRound(now time.Time, after time.Duration) {
	least := backoffMin
	if r.refusal != nil {
		least = min(max(r.refusal.RetryAfter, backoffMin), backoffMax)
	}
	r.entry.NotBefore = now.Add(max(least, after))
	r.tries, r.replicas, r.macs = 0, nil, nil
}

// moreHelpful returns which refusal the client receives: the later one, unless only the
// earlier one can be solved by waiting.
func moreHelpful(earlier, later *openai.Error) *openai.Error {
	if later == nil || earlier != nil && earlier.RetryAfter > 0 && later.RetryAfter == 0 {
		return earlier
	}
	return later
}

// ErrTimeout is the cancellation cause of a request that exceeds its total time limit.
var ErrTimeout = errors.New("the response was not complete within the request timeout")

// Ended returns the error of a request whose context ended.
func Ended(ctx context.Context) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrTimeout):
		return &openai.Error{Status: http.StatusGatewayTimeout, Type: openai.TypeUnavailable, Code: openai.CodeTimeout,
			Message: "The response was not complete within the time limit of the request. Ask for a shorter response, or allow more time.", Cause: ErrTimeout}
	case errors.Is(cause, front.ErrShuttingDown):
		return ShuttingDown(front.ErrShuttingDown)
	default:
		return front.Gone(cause)
	}
}

// ShuttingDown returns the error for a request that another gateway should serve.
func ShuttingDown(cause error) *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Code: "shutting_down",
		RetryAfter: RetryAfter, Message: "The gateway is shutting down. Send the request again.", Cause: cause}
}

// Package dispatch chooses a replica for each request: it queues requests while no replica
// can take them, and limits how many each replica gets.
//
// The life cycle of a request: the caller fills in a Request, including the deployments
// that may serve it (Request.Route), and calls Dispatcher.Acquire. Acquire takes a slot of
// a replica at once, queues the request until it is served, or passes it on to the next
// deployment. It returns a Lease: a slot of one replica, occupied until Lease.Release. If
// an attempt fails before the client received anything, the caller reports it with
// Lease.Failed and acquires again; the next lease is for another replica.
//
// It owns the counts of running requests, the queue, the retry budgets, and the set of Macs
// and replicas that are avoided because they failed. It refuses a request for which no
// replica is found in time, with the error for its client. It sends nothing: forwarding,
// responses and API keys belong to the caller.
//
// Read the files in the order of the calls: dispatch.go, wait.go, queue.go, openings.go,
// slots.go, judge.go, outcomes.go, request.go.
package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
)

const (
	// maxTries bounds how many replicas one request is sent to per round.
	maxTries = 5
	// RetryAfter is the default Retry-After of requests that could not be served.
	RetryAfter = 2 * time.Second
)

// errElsewhere means that a deployment cannot serve a request, but another one may.
var errElsewhere = errors.New("passed on to another deployment")

// Config configures a dispatcher.
type Config struct {
	// Queue limits the requests that wait; with a zero Count no request waits.
	Queue fairqueue.Limits
	// Pick chooses among replicas; nil means pick.Choose.
	Pick pick.Policy
	// CanReach reports whether requests can be sent to an endpoint; nil means always.
	CanReach func(route.Endpoint) bool
	// KeepAlive is the longest time without output to the client of a waiting request.
	KeepAlive time.Duration
	// Registry receives the metrics.
	Registry prometheus.Registerer
}

// Dispatcher assigns requests to replicas. It is safe for concurrent use.
type Dispatcher struct {
	queue     *queue
	keepAlive time.Duration
	queues    bool // requests may wait
	metrics   *metrics
}

// New returns a dispatcher.
func New(c Config) *Dispatcher {
	d := &Dispatcher{queue: newQueue(c), keepAlive: c.KeepAlive, queues: c.Queue.Count > 0, metrics: newMetrics(c.Registry)}
	c.Registry.MustRegister(&census{d.queue})
	return d
}

// Acquire returns a slot of a replica for a request, at once or after a wait. The caller
// must release the lease. An error is meant for the client. If no deployment has a ready
// replica, the request waits for the first one, as if it were the only one.
func (d *Dispatcher) Acquire(ctx context.Context, r *Request) (*Lease, error) {
	if r.model == nil {
		r.begin(time.Now())
		d.queue.began(r)
	}
	for {
		lease, err := d.acquire(ctx, r)
		if err == nil {
			lease.dispatcher, lease.request, lease.After = d, r, r.last
			return lease, nil
		}
		if !errors.Is(err, errElsewhere) {
			return nil, err
		}
		why := r.cannotAnswer()
		d.metrics.passed.WithLabelValues(why).Inc()
		r.Log().V(1).Info("Deployment cannot answer; trying the next one", "reason", why, "ModelDeployment", r.model.Key.String())
		r.passOn(time.Now())
		d.queue.began(r)
	}
}

// acquire returns a slot at the current deployment of a request, at once or after a wait,
// while request and deployment may be tried.
func (d *Dispatcher) acquire(ctx context.Context, r *Request) (*Lease, error) {
	if r.enginesLost >= maxEnginesLost {
		return nil, r.lost
	}
	if r.last == nil || r.tries < maxTries && d.queue.mayRetry(r) {
		if lease, ok := d.queue.take(r); ok {
			return lease, nil
		}
	}
	switch {
	case len(r.rest) > 0 && (!r.served(r.model) || r.last != nil || !d.queues || r.patience == 0):
		return nil, errElsewhere
	case r.suspended():
		return nil, openai.Suspended(r.Name)
	case r.refusal != nil && (!d.queues || !r.mayWait()): // waiting does not help
		return nil, r.refusal
	case !d.queues:
		return nil, openai.NoEndpoint(r.Name, RetryAfter)
	case r.tries > 0:
		now := time.Now()
		r.newRound(now, d.queue.resend(r, now))
	}
	return d.wait(ctx, r)
}

// Observe ends a lease, and records how its request ended at the replica. Replicas with many failures are avoided for
// a while, and those that reject far more requests of a client than others do by that client.
func (l *Lease) Observe(how Outcome) {
	d := l.dispatcher
	if d.queue.ended(l, l.request, how) {
		d.metrics.ejected.Inc()
		l.request.Log().Info("Requests to a replica are failing; preferring others for a while", "MacNode", l.Mac, "replicaUID", l.Replica)
	}
}

// Failed records an attempt that failed before the client received anything. The next lease
// for the request is for another replica.
func (l *Lease) Failed(f *Failure) {
	l.request.failed(l.Endpoint, f)
	if f.Reason == ReasonConnection {
		l.dispatcher.Avoid(l.request.Log(), l.Mac, f.Err)
	}
	l.request.Log().V(1).Info("Replica did not respond", "reason", f.Reason, "MacNode", l.Mac, "replicaUID", l.Replica)
}

// Avoid avoids a Mac for a while, because a connection to it failed.
func (d *Dispatcher) Avoid(log logr.Logger, mac string, cause error) {
	if d.queue.avoid(mac) {
		d.metrics.suspected.Inc()
		log.Info("Connection to a Mac failed; preferring others for a while", "MacNode", mac, "reason", cause.Error())
	}
}

// Trust ends the avoidance of a Mac that has responded.
func (d *Dispatcher) Trust(mac string) { d.queue.trust(mac) }

// Notify retries queued requests, because Macs have become reachable.
func (d *Dispatcher) Notify() { d.queue.notifyAll() }

// Demand fills in a report for the operator: a consistent snapshot of running and waiting
// requests.
func (d *Dispatcher) Demand(r *demand.Report) { d.queue.demand(r) }

// Arrivals receives a value when a request begins to wait.
func (d *Dispatcher) Arrivals() <-chan struct{} { return d.queue.arrivals }

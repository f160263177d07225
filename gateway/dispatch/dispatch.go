// Package dispatch decides where requests for models go: it chooses a replica, has
// requests wait while none can take them, and bounds how many each one gets.
//
// A request flows through it like this. The caller fills in a Request, with the
// deployments that may answer it (Request.Route), and calls Dispatcher.Acquire. That
// takes a slot of a replica at once, or queues the request until its turn comes, or
// passes it on to the next deployment. It returns a Lease: a slot of one replica,
// which counts until Lease.Release. A caller whose try failed before the client
// received anything reports that with Lease.Failed and acquires again; the next lease
// is for another replica.
//
// It owns the counts of running requests, the queue, the retry budgets, and which
// Macs and replicas are avoided because they failed. It refuses a request for which
// no replica can be found in time, with the error that its client receives. It sends
// nothing: forwarding, responses and API keys are its caller's.
//
// Files are in the order of the calls: dispatch.go, wait.go, queue.go, slots.go,
// request.go.
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
	// maxTries bounds how many replicas one request is sent to in one round.
	maxTries = 5
	// RetryAfter is the time after which clients may try again that could not be
	// served, if nothing more is known.
	RetryAfter = 2 * time.Second
)

// errElsewhere means that a deployment cannot answer, and that another may.
var errElsewhere = errors.New("passed on to another deployment")

// Config of a dispatcher.
type Config struct {
	// Queue bounds the requests that wait; without a count none waits.
	Queue fairqueue.Limits
	// Pick chooses among replicas; nil means pick.Choose.
	Pick pick.Policy
	// CanReach reports whether requests can be sent to an endpoint; nil means always.
	CanReach func(route.Endpoint) bool
	// KeepAlive is the longest time that the client of a waiting request receives
	// nothing.
	KeepAlive time.Duration
	// Registry takes the metrics.
	Registry prometheus.Registerer
}

// Dispatcher gives requests to replicas. It is safe for concurrent use.
type Dispatcher struct {
	queue     *queue
	keepAlive time.Duration
	queues    bool // requests may wait
	metrics   *metrics
}

// New makes a dispatcher without requests.
func New(c Config) *Dispatcher {
	d := &Dispatcher{queue: newQueue(c), keepAlive: c.KeepAlive, queues: c.Queue.Count > 0, metrics: newMetrics(c.Registry)}
	c.Registry.MustRegister(&census{d.queue})
	return d
}

// Acquire returns a slot of a replica for a request: at once, or after a wait. The
// caller releases the lease. An error is meant for the client. If no deployment has a
// ready replica, the request waits for the first one, as it would if that were the
// only one.
func (d *Dispatcher) Acquire(ctx context.Context, r *Request) (*Lease, error) {
	if r.model == nil {
		r.begin(time.Now())
		d.queue.began(r.model.Key)
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
		d.queue.began(r.model.Key)
	}
}

// acquire returns a slot at the current deployment of a request: at once, while the
// request and its deployment may be tried, or after a wait.
func (d *Dispatcher) acquire(ctx context.Context, r *Request) (*Lease, error) {
	if r.last == nil || r.tries < maxTries && d.queue.mayRetry(r.model.Key) {
		if lease, ok := d.queue.take(r); ok {
			return lease, nil
		}
	}
	switch {
	case len(r.rest) > 0 && (len(r.model.Endpoints()) == 0 || r.last != nil || !d.queues || r.patience == 0):
		return nil, errElsewhere
	case r.refusal != nil && (!d.queues || !r.mayWait()): // waiting does not help
		return nil, r.refusal
	case !d.queues:
		return nil, openai.NoEndpoint(r.Name, RetryAfter)
	case r.tries > 0:
		r.newRound(time.Now())
	}
	return d.wait(ctx, r)
}

// Observe notes whether a request at a replica ended well. Replicas at which many
// requests fail are avoided for a while.
func (l *Lease) Observe(failed bool) {
	d := l.dispatcher
	if d.queue.ended(l.Replica, failed) {
		d.metrics.ejected.Inc()
		l.request.Log().Info("Requests to a replica are failing; preferring others for a while", "MacNode", l.Mac, "replicaUID", l.Replica)
	}
}

// Failed notes that a try failed of which the client received nothing. The next lease
// for the request is for another replica.
func (l *Lease) Failed(f *Failure) {
	l.request.failed(l.Endpoint, f)
	if f.Reason == ReasonConnection {
		l.dispatcher.Avoid(l.request.Log(), l.Mac, f.Err)
	}
	l.request.Log().V(1).Info("Replica did not respond", "reason", f.Reason, "MacNode", l.Mac, "replicaUID", l.Replica)
}

// Avoid has a Mac avoided for a while, because a connection to it failed.
func (d *Dispatcher) Avoid(log logr.Logger, mac string, cause error) {
	if d.queue.avoid(mac) {
		d.metrics.suspected.Inc()
		log.Info("Connection to a Mac failed; preferring others for a while", "MacNode", mac, "reason", cause.Error())
	}
}

// Trust ends the avoidance of a Mac that answered.
func (d *Dispatcher) Trust(mac string) { d.queue.trust(mac) }

// Wake has queued requests tried again, because Macs can be reached that could not.
func (d *Dispatcher) Wake() { d.queue.wakeAll() }

// Demand fills in a report for the operator: what runs and waits, counted at one time.
func (d *Dispatcher) Demand(r *demand.Report) { d.queue.demand(r) }

// Arrivals receives a value when a request begins to wait.
func (d *Dispatcher) Arrivals() <-chan struct{} { return d.queue.arrivals }

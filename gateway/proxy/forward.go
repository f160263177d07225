package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/waiting"
)

// query is a request for a model on its way to a replica.
type query struct {
	name string
	// model is the one that is asked now, rest those that come after it (stages.go).
	model  *route.Model
	rest   []*route.Model
	routed *routed
	body   []byte
	// key is whose it is, deadline when its client wants to know; zero is none.
	key      string
	deadline time.Time
	// strict has the agent refuse fields without effect.
	strict bool
	// background has the agent send a stream, which is read to its end.
	background bool
	// attribution has the agent keep the attribution block.
	attribution bool
	// prefix of its prompt, by which replicas that remember it are found.
	prefix pick.Prefix
	// only this Mac keeps what the request goes on from; empty where any will do.
	only string
	// waiter is its place in the waiting room, should it need one.
	waiter *waiting.Waiter

	tries          int             // of this round
	replicas, macs map[string]bool // that failed in it
	last           *failure
	told           *openai.Error // by an agent that refused
	lost           int           // engines that ended under it
}

func (q *query) excluded(e route.Endpoint) bool {
	return q.replicas[e.Replica] || q.macs[e.Mac] || q.only != "" && e.Mac != q.only
}

// failed leaves out what failed.
func (q *query) failed(e route.Endpoint, f *failure) {
	if q.replicas == nil {
		q.replicas, q.macs = map[string]bool{}, map[string]bool{}
	}
	q.tries++
	q.last, q.told = f, better(q.told, f.refusal)
	q.replicas[e.Replica] = true
	if f.refusal != nil && f.refusal.Code == agentapi.CodeEngineLost {
		q.lost++
	}
	if f.reason == reasonConnection {
		q.macs[e.Mac] = true
	}
}

// mostLost is how many engines may end under a request that waits for another
// try: it may be what ends them.
const mostLost = 2

// mayWait says that a replica may yet answer what all refused: one that says when,
// or whose engine ended and is started again.
func (q *query) mayWait() bool {
	return q.told == nil || q.told.RetryAfter > 0 || q.told.Code == agentapi.CodeEngineLost && q.lost < mostLost
}

// again begins a new round, after a while.
func (q *query) again(now time.Time) {
	after := againMin
	if q.told != nil {
		after = min(max(q.told.RetryAfter, againMin), againMax)
	}
	q.waiter.NotBefore = now.Add(after)
	q.tries, q.replicas, q.macs = 0, nil, nil
}

// forward tries replicas until one answers. In one round each is tried once, and
// none after the first byte went to the client.
func (p *Proxy) forward(ctx context.Context, w *reply, r *http.Request, q *query) error {
	p.book.asked(q.model.Key)
	for {
		g, err := p.nextEndpoint(ctx, w, q)
		if err != nil {
			return err
		}
		if q.last != nil {
			p.metrics.retries.WithLabelValues(q.last.reason).Inc()
		}
		failed, err := p.attempt(ctx, w, r, g, q)
		p.judge(ctx, g.Endpoint, w.status, failed, err)
		if failed == nil {
			return err
		}
		q.failed(g.Endpoint, failed)
		w.keepAlives.displace()
		if failed.reason == reasonConnection {
			p.distrust(logOf(ctx), g.Mac, failed.err)
		}
		logOf(ctx).V(1).Info("Replica did not respond", "reason", failed.reason, "MacNode", g.Mac, "replicaUID", g.Replica)
	}
}

// endpoint finds where to send a request next: at once, as long as it and its
// model may be tried, or after a wait.
func (p *Proxy) endpoint(ctx context.Context, w *reply, q *query) (grant, error) {
	if q.last == nil || q.tries < maxTries && p.book.mayRetry(q.model.Key) {
		if g, ok := p.book.take(q); ok {
			return g, nil
		}
	}
	switch {
	case len(q.rest) > 0 && (len(q.model.Endpoints()) == 0 || q.last != nil || p.Waiting.Count == 0 || q.routed.patience == 0):
		return grant{}, errElsewhere
	case q.told != nil && (p.Waiting.Count == 0 || !q.mayWait()): // waiting does not help
		return grant{}, q.told
	case p.Waiting.Count == 0:
		return grant{}, openai.NoEndpoint(q.name, noEndpointRetry)
	case q.tries > 0:
		q.again(time.Now())
	}
	return p.wait(ctx, w, q)
}

// judge notes how a request ended at a replica. What a client did wrong, an agent
// refused before it did anything, or found no memory for, says nothing of it.
func (p *Proxy) judge(ctx context.Context, e route.Endpoint, status int, failed *failure, err error) {
	bad := failed != nil && (failed.reason != reasonRefused || failed.refusal.Code == agentapi.CodeEngineLost) ||
		failed == nil && (err == nil && (status == http.StatusInternalServerError || status == http.StatusBadGateway) || broken(err))
	if !bad && (failed != nil || err != nil) {
		return
	}
	if p.book.ended(e.Replica, bad) {
		p.metrics.ejected.Inc()
		logOf(ctx).Info("Requests to a replica are failing; preferring others for a while", "MacNode", e.Mac, "replicaUID", e.Replica)
	}
}

// broken says that an answer had begun and was lost.
func broken(err error) bool {
	var e *openai.Error
	return errors.As(err, &e) && e.Code == agentapi.CodeEngineLost
}

// better is what the client is told of two refusals: the later one, save that a
// Mac where waiting helps says more than one where it does not.
func better(a, b *openai.Error) *openai.Error {
	if b == nil || a != nil && a.RetryAfter > 0 && b.RetryAfter == 0 {
		return a
	}
	return b
}

// distrust leaves a Mac alone for a while.
func (p *Proxy) distrust(log logr.Logger, mac string, cause error) {
	if p.book.suspect(mac) {
		p.metrics.suspected.Inc()
		log.Info("Connection to a Mac failed; preferring others for a while", "MacNode", mac, "reason", cause.Error())
	}
}

// request is what the agent gets: the client's bytes, and headers of our own
// making. A client's credentials stay here.
func request(ctx context.Context, r *http.Request, e route.Endpoint, id string, q *query) *http.Request {
	body := q.body
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet // the server leaves out the body
	}
	out := &http.Request{Method: method, URL: &url.URL{Scheme: "https", Host: e.Address, Path: r.URL.Path}, Host: e.Address,
		Body: bodyReader(body), ContentLength: int64(len(body)),
		GetBody: func() (bodyCloser, error) { return bodyReader(body), nil },
		Header: http.Header{
			"Content-Type":           {"application/json"},
			"User-Agent":             {"metalfleet-gateway"},
			agentapi.HeaderReplica:   {e.Replica},
			agentapi.HeaderEpoch:     {strconv.FormatInt(e.Epoch, 10)},
			agentapi.HeaderRequestID: {id},
		}}
	if e.Replica == "" { // the Mac itself is meant
		out.Header.Del(agentapi.HeaderReplica)
		out.Header.Del(agentapi.HeaderEpoch)
		out.URL.RawQuery = plainQuery(r.URL.Query())
	}
	if tenant := tenantOf(ctx); tenant != "" {
		out.Header.Set(agentapi.HeaderTenant, tenant)
	}
	for _, name := range []string{"Accept", anthropic.HeaderVersion, agentapi.HeaderPriority, agentapi.HeaderProgress} {
		if values := r.Header.Values(name); len(values) > 0 {
			out.Header[name] = values
		}
	}
	if q.strict {
		out.Header.Set(agentapi.HeaderStrictFields, "true")
	}
	if q.background {
		out.Header.Set(agentapi.HeaderBackground, "true")
	}
	if q.attribution {
		out.Header.Set(agentapi.HeaderAttribution, agentapi.AttributionKeep)
	}
	if q.routed != nil {
		out.Header.Set(agentapi.HeaderModel, q.model.Shown())
	}
	return out.WithContext(ctx)
}

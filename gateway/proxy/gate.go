package proxy

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/route"
)

// bytesPerToken estimates the tokens of a prompt from the body size before a Mac has
// counted them: roughly that of English in JSON.
const bytesPerToken = 4

// caller is the client of a request: its API key and its address.
type caller struct {
	key     *keys.Key // nil if no keys are required: every client may use every model
	address string
}

// may reports whether the caller may use a model under a name.
func (c caller) may(name string, m *route.Model) bool {
	return c.key == nil || c.key.Allows(name, m.Key)
}

// name returns the name of the key; empty if none is required.
func (c caller) name() string {
	if c.key == nil {
		return ""
	}
	return c.key.Name
}

// tenant returns the tenant of the key; empty if none is required.
func (c caller) tenant() string {
	if c.key == nil {
		return ""
	}
	return c.key.TenantID()
}

// share returns the owner of the request's memory for bodies: the tenant, or the address if
// no keys are required.
func (c caller) share() string {
	if t := c.tenant(); t != "" {
		return t
	}
	return intake.AddressOf(c.address)
}

// strict reports whether the caller's key rejects fields that have no effect.
func (c caller) strict() bool { return c.key != nil && c.key.StrictFields }

// setPriority sends the agent the highest priority that the caller may use: 0 without a key, so
// that no client is served before all others. A value from the client is overwritten.
func (c caller) setPriority(h http.Header) {
	most := int64(0)
	if c.key != nil {
		most = c.key.Priority
	}
	h.Set(agentapi.HeaderPriority, strconv.FormatInt(most, 10))
}

// gate decides which requests are admitted, and which models their callers may use.
type gate struct {
	keys     *keys.Store // nil if no keys are required
	table    *route.Table
	identity func() *identity.Identity
	audit    auditor
}

// ready refuses requests until table and identity were read once: before that an unknown
// name may exist.
func (g *gate) ready() error {
	if g.table.Synced() && g.identity() != nil {
		return nil
	}
	return notYet()
}

// healthy refuses requests until the keys were read too.
func (g *gate) healthy() error {
	if g.keys != nil && !g.keys.Synced() {
		return notYet()
	}
	return g.ready()
}

func notYet() error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Code: openai.CodeNoEndpoint,
		RetryAfter: dispatch.RetryAfter, Message: "The gateway has just started and has not loaded its models yet. Try again."}
}

// admit authenticates the caller of a request, and takes one request from its key's rate
// limit. It reads only headers: the body of an unauthenticated client is not read.
func (g *gate) admit(ctx context.Context, w *reply, r *http.Request) (caller, error) {
	c := caller{address: r.RemoteAddr}
	if g.keys == nil {
		return c, nil
	}
	if !g.keys.Synced() {
		return c, notYet()
	}
	key, why := g.keys.Find(keys.Bearer(r.Header))
	c.key = key
	if why != "" { // the holder of an expired key has no share of its tenant
		return caller{address: c.address}, g.unauthorized(ctx, c, w, why)
	}
	v := key.TakeRequest(g.keys.Now())
	setRateHeaders(w.Header(), "Requests", v)
	if !v.OK {
		g.denied(ctx, c, keys.ReasonRequests, "")
		e := openai.RateLimited(v.Wait)
		e.Message = fmt.Sprintf("The API key '%s' may send %d requests per minute. Try again in %s.", key.Name, v.Limit, dispatch.InSeconds(v.Wait))
		return c, e
	}
	g.keys.CountRequest(key)
	return c, nil
}

// unauthorized is the refusal of a client whose key, if it has one, is not accepted.
func (g *gate) unauthorized(ctx context.Context, c caller, w *reply, why keys.Reason) error {
	g.denied(ctx, c, why, "")
	w.Header().Set("WWW-Authenticate", "Bearer")
	if why == keys.ReasonExpired {
		return openai.ExpiredKey(c.key.Name, c.key.Expires)
	}
	return openai.Unauthorized()
}

// readmit refuses a request that has waited if its key was revoked or has expired meanwhile, or may
// not use the model any more.
func (g *gate) readmit(ctx context.Context, c caller, w *reply, name string, m *route.Model) error {
	if c.key == nil {
		return nil
	}
	key, why := g.keys.Again(c.key)
	c.key = key
	switch {
	case why != "":
		return g.unauthorized(ctx, c, w, why)
	case !c.may(name, m):
		g.denied(ctx, c, keys.ReasonModel, name)
		return openai.ModelNotFound(name)
	}
	return nil
}

// lookup finds a model, and the adapter of it, by a name of clients. A model that the caller may not use is reported as
// nonexistent: names are not revealed to other tenants.
func (g *gate) lookup(ctx context.Context, c caller, name string) (route.Name, error) {
	if err := g.ready(); err != nil {
		return route.Name{}, err
	}
	n, known := g.table.Find(name)
	if known && c.may(name, n.Model) {
		scopeOf(ctx).model = n.Model.Key.String()
		return n, nil
	}
	why := keys.ReasonModelUnknown
	if known {
		why = keys.ReasonModel
	}
	g.denied(ctx, c, why, name)
	return route.Name{}, openai.ModelNotFound(name)
}

// models returns the names that the caller may use.
func (g *gate) models(c caller) (iter.Seq[route.Name], error) {
	if err := g.ready(); err != nil {
		return nil, err
	}
	return func(yield func(route.Name) bool) {
		for n := range g.table.Names() {
			if c.may(n.Name, n.Model) && !yield(n) {
				return
			}
		}
	}, nil
}

// meter takes the estimated tokens of the prompt from the rate limit of the caller's key.
func (g *gate) meter(ctx context.Context, c caller, w *reply, read outline, body []byte) (*meter, error) {
	if c.key == nil {
		return nil, nil
	}
	estimate := estimateOf(read, body)
	v := c.key.TakeTokens(estimate, g.keys.Now())
	setRateHeaders(w.Header(), "Tokens", v)
	if v.OK {
		return &meter{keys: g.keys, key: c.key, counted: estimate, soFar: new(atomic.Int64)}, nil
	}
	g.denied(ctx, c, keys.ReasonTokens, read.Model)
	if v.Never {
		w.Header().Set("X-Should-Retry", "false") // OpenAI's clients respect it
		e := openai.RateLimited(0)
		e.Message = fmt.Sprintf("The request has about %d tokens, but the API key '%s' may use %d per minute. Send a shorter one.", estimate, c.key.Name, v.Limit)
		return nil, e
	}
	e := openai.RateLimited(v.Wait)
	e.Message = fmt.Sprintf("The API key '%s' may use %d tokens per minute and has %d left; the request has about %d. Try again in %s.",
		c.key.Name, v.Limit, v.Remaining, estimate, dispatch.InSeconds(v.Wait))
	return nil, e
}

// avoid makes a request avoid the Macs that reported more tokens of its key than it may use, and refuses
// it if no other one can serve it.
func (g *gate) avoid(ctx context.Context, c caller, r *dispatch.Request) error {
	if c.key == nil {
		return nil
	}
	if r.Avoided = c.key.Exhausted(g.keys.Now()); r.Avoided == nil {
		return nil
	}
	soonest := time.Duration(0)
	for _, m := range r.Candidates {
		for _, e := range m.Endpoints() {
			switch wait := r.Avoided[e.Mac]; {
			case !r.CanUse(e):
			case wait == 0:
				return nil
			case soonest == 0 || wait < soonest:
				soonest = wait
			}
		}
	}
	if soonest == 0 {
		return nil // nothing serves it yet
	}
	g.denied(ctx, c, keys.ReasonTokens, r.Name)
	e := openai.RateLimited(soonest)
	e.Message = fmt.Sprintf("Each Mac that can serve the request has used the %d tokens per minute of the API key '%s'. Try again in %s.",
		c.key.TokensPerMinute, c.key.Name, dispatch.InSeconds(soonest))
	return e
}

// setRateHeaders sets OpenAI's rate limit headers.
func setRateHeaders(h http.Header, of string, v keys.Verdict) {
	if v.Limit == 0 {
		return
	}
	h.Set("X-Ratelimit-Limit-"+of, strconv.FormatInt(v.Limit, 10))
	h.Set("X-Ratelimit-Remaining-"+of, strconv.FormatInt(v.Remaining, 10))
	h.Set("X-Ratelimit-Reset-"+of, v.Reset.Round(time.Millisecond).String())
}

package proxy

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/intake"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/route"
)

// caller is whose request it is, and where it came from.
type caller struct {
	key     *keys.Key // nil where no keys are asked: everybody may ask everything
	address string
}

// may says whether the caller may ask a model by that name.
func (c caller) may(name string, m *route.Model) bool {
	return c.key == nil || c.key.Allows(name, m.Key)
}

// name of the key; empty where none is asked.
func (c caller) name() string {
	if c.key == nil {
		return ""
	}
	return c.key.Name
}

// tenant whose request it is; empty where no keys are asked.
func (c caller) tenant() string {
	if c.key == nil {
		return ""
	}
	return c.key.TenantID()
}

// share names whose share of the room for bodies a request counts against: its tenant,
// or where no keys are asked its address.
func (c caller) share() string {
	if t := c.tenant(); t != "" {
		return t
	}
	return intake.AddressOf(c.address)
}

// strict reports whether the caller's key refuses fields without effect.
func (c caller) strict() bool { return c.key != nil && c.key.StrictFields }

// rank says for the agent how urgent the caller's requests may be. What a client
// says of that itself is not passed on.
func (c caller) rank(h http.Header) {
	h.Del(agentapi.HeaderPriority)
	if c.key != nil {
		h.Set(agentapi.HeaderPriority, strconv.FormatInt(c.key.Priority, 10))
	}
}

// admit finds whose request this is, and claims one of what its key may ask in
// a minute. It reads headers alone: a stranger's body stays unread.
func (p *Proxy) admit(ctx context.Context, w *reply, r *http.Request) (caller, error) {
	c := caller{address: r.RemoteAddr}
	if p.Keys == nil {
		return c, nil
	}
	if !p.Keys.Synced() {
		return c, notYet()
	}
	key, why := p.Keys.Find(keys.Bearer(r.Header))
	c.key = key
	if why != "" {
		p.denied(ctx, c, why, "")
		w.Header().Set("WWW-Authenticate", "Bearer")
		if why == keys.ReasonExpired {
			return c, openai.ExpiredKey(key.Name, key.Expires)
		}
		return c, openai.Unauthorized()
	}
	v := key.TakeRequest(p.Keys.Now())
	tellRate(w.Header(), "Requests", v)
	if !v.OK {
		p.denied(ctx, c, keys.ReasonRequests, "")
		e := openai.RateLimited(v.Wait)
		e.Message = fmt.Sprintf("The API key '%s' may send %d requests per minute. Try again in %s.", key.Name, v.Limit, inSeconds(v.Wait))
		return c, e
	}
	p.Keys.CountRequest(key)
	return c, nil
}

// denied writes the audit line of a request that was refused for its key.
func (p *Proxy) denied(ctx context.Context, c caller, why keys.Reason, model string) {
	if p.Keys == nil {
		return
	}
	name := ""
	if c.key != nil {
		name = c.key.Name
	}
	p.Keys.CountRefusal(c.key, why)
	logOf(ctx).WithName("audit").Info("Request refused", "key", name, "client", c.address, "reason", why,
		"model", openai.Shorten(model))
}

// tellRate sets the headers by which OpenAI's clients see their limits.
func tellRate(h http.Header, of string, v keys.Verdict) {
	if v.Limit == 0 {
		return
	}
	h.Set("X-Ratelimit-Limit-"+of, strconv.FormatInt(v.Limit, 10))
	h.Set("X-Ratelimit-Remaining-"+of, strconv.FormatInt(v.Remaining, 10))
	h.Set("X-Ratelimit-Reset-"+of, v.Reset.Round(time.Millisecond).String())
}

// inSeconds is a time to wait as a client is told it, rounded up.
func inSeconds(d time.Duration) string { return (d + time.Second - 1).Truncate(time.Second).String() }

package proxy

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/route"
)

// keeper is the Mac that a request has to go to, because it keeps what the
// request goes on from, and of those that may answer it the ones that it serves.
// The id says which Mac; nothing of it is known here, so a gateway's restart
// forgets nothing.
func (p *Proxy) keeper(ctx context.Context, asked openai.Envelope, all []*route.Model) (mac string, there []*route.Model, err error) {
	id := cmp.Or(asked.Previous, asked.Reference)
	if id == "" {
		return "", all, nil
	}
	mac, ok := responses.MacOf(id)
	if responses.IsAnywhere(id) {
		mac, ok, err = p.find(ctx, id)
	}
	if err != nil {
		return "", nil, err
	}
	if ok {
		for _, m := range all {
			if slices.ContainsFunc(m.Endpoints(), func(e route.Endpoint) bool { return e.Mac == mac }) {
				there = append(there, m)
			}
		}
		if len(there) > 0 {
			return mac, there, nil
		}
	}
	if asked.Previous == "" {
		return "", nil, responses.ItemNotFound("input", id)
	}
	return "", nil, responses.PreviousNotFound(id)
}

// plainQuery is a query without the values that are nobody's business behind the
// gateway, such as a key. Their names go on: the agent refuses them by these.
func plainQuery(query url.Values) string {
	for name := range query {
		if !slices.Contains(responses.ItemsQuery, name) {
			query[name] = []string{""}
		}
	}
	return query.Encode()
}

// kept asks the Mac that keeps a response. The agent knows whose it is. No other
// Mac has it, so reading it is tried twice where the connection fails.
func (p *Proxy) kept(ctx context.Context, _ caller, w *reply, r *http.Request) error {
	if err := p.ready(); err != nil {
		return err
	}
	if _, err := responses.ParseQuery(r.URL.RawQuery); err != nil {
		return err // the agent is sent what could be read of it
	}
	id := responses.IDOf(r.URL.Path)
	if id == responses.CompactID {
		return responses.NoCompaction()
	}
	ctx, cancel, _, err := p.bound(ctx, r)
	if err != nil {
		return err
	}
	defer cancel()
	name, ok := responses.MacOf(id)
	if responses.IsAnywhere(id) {
		if name, ok, err = p.find(ctx, id); err != nil {
			return err
		}
	}
	if !ok {
		return responses.NotFound(id)
	}
	mac, ok := p.Table.Mac(name)
	if !ok {
		return responses.NotFound(id)
	}
	to := grant{route.Endpoint{Mac: mac.Name, MacUID: mac.UID, Address: mac.Address, Reach: mac.Reach}, func() {}}
	failed, err := p.attempt(ctx, w, r, to, &query{})
	if failed.mayReread(r.Method) {
		p.metrics.retries.WithLabelValues(failed.reason).Inc()
		if err := pauseToReread(ctx); err != nil {
			return err
		}
		failed, err = p.attempt(ctx, w, r, to, &query{})
	}
	if failed == nil {
		return err
	}
	if failed.refusal != nil {
		return failed.refusal
	}
	p.distrust(logOf(ctx), mac.Name, failed.err)
	return unreached(id, failed.err)
}

// rereadAfter is the pause before a stored response is read again from the only
// Mac that has it. A connection that was lost because a machine is busy works
// again by then.
const rereadAfter = 250 * time.Millisecond

// mayReread reports whether a request that failed may be sent to the same Mac
// again: it changes nothing there, and neither the agent refused it nor did it
// take as long as a try may.
func (f *failure) mayReread(method string) bool {
	reads := method == http.MethodGet || method == http.MethodHead
	return f != nil && reads && (f.reason == reasonConnection || f.reason == reasonStream)
}

// pauseToReread returns nil after rereadAfter, or why the request ended earlier.
func pauseToReread(ctx context.Context) error {
	pause := time.NewTimer(rereadAfter)
	defer pause.Stop()
	select {
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

func unreached(id string, cause error) error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Code: openai.CodeNoEndpoint, RetryAfter: noEndpointRetry,
		Message: fmt.Sprintf("The Mac that stores the response '%s' cannot be reached. Try again later.", openai.Shorten(id)), Cause: cause}
}

const (
	// maxFinds is how many searches run at once: each asks every Mac.
	maxFinds = 2
	// findAtOnce is how many Macs one search asks at the same time, and findTime
	// how long it may take.
	findAtOnce = 16
	findTime   = 3 * time.Second
)

// find asks all Macs which one keeps a response whose id names none: its client was
// given the id while the request waited for a replica.
func (p *Proxy) find(ctx context.Context, id string) (mac string, found bool, err error) {
	end, err := p.finding.begin(ctx, tenantOf(ctx))
	if err != nil {
		return "", false, ended(ctx)
	}
	defer end()
	asking, stop := context.WithTimeout(ctx, findTime)
	defer stop()
	var all errgroup.Group
	all.SetLimit(findAtOnce)
	var keeper atomic.Pointer[string]
	for _, m := range p.Table.Macs() {
		all.Go(func() error {
			has, err := p.keeps(asking, m, id)
			if err != nil && pauseToReread(asking) == nil {
				has, err = p.keeps(asking, m, id)
			}
			if has && keeper.CompareAndSwap(nil, &m.Name) {
				stop() // no other Mac has it
			}
			return err
		})
	}
	err = all.Wait()
	switch name := keeper.Load(); {
	case name != nil:
		return *name, true, nil
	case ctx.Err() != nil:
		return "", false, ended(ctx)
	case err != nil:
		return "", false, unreached(id, err)
	}
	return "", false, nil
}

// keeps asks one Mac whether it keeps a response.
func (p *Proxy) keeps(ctx context.Context, m route.Mac, id string) (bool, error) {
	ask := &http.Request{Method: http.MethodHead, URL: &url.URL{Scheme: "https", Host: m.Address, Path: dialect.PathResponses + "/" + id}, Host: m.Address,
		Header: http.Header{"User-Agent": {"metalfleet-gateway"}}}
	if tenant := tenantOf(ctx); tenant != "" {
		ask.Header.Set(agentapi.HeaderTenant, tenant)
	}
	resp, err := p.macs.way(route.Endpoint{Mac: m.Name, MacUID: m.UID, Address: m.Address, Reach: m.Reach}).RoundTrip(ask.WithContext(ctx))
	if err != nil {
		return false, fmt.Errorf("ask %s for a response: %w", m.Name, err)
	}
	return resp.StatusCode == http.StatusOK, resp.Body.Close()
}

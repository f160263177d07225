package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/route"
)

// keeper is the Mac that a request has to go to, because it keeps what the
// request goes on from, and of those that may answer it the ones that it serves.
// The id says which Mac; nothing of it is known here, so a gateway's restart
// forgets nothing.
func keeper(asked openai.Envelope, all []*route.Model) (mac string, there []*route.Model, err error) {
	if asked.Previous == "" {
		return "", all, nil
	}
	if mac, ok := responses.MacOf(asked.Previous); ok {
		for _, m := range all {
			if slices.ContainsFunc(m.Endpoints(), func(e route.Endpoint) bool { return e.Mac == mac }) {
				there = append(there, m)
			}
		}
		if len(there) > 0 {
			return mac, there, nil
		}
	}
	return "", nil, responses.PreviousNotFound(asked.Previous)
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

// kept asks the Mac that keeps a response. The agent knows whose it is; it is
// tried once, for no other Mac has it.
func (p *Proxy) kept(ctx context.Context, _ caller, w *reply, r *http.Request) error {
	if err := p.ready(); err != nil {
		return err
	}
	if _, err := responses.ParseQuery(r.URL.RawQuery); err != nil {
		return err // the agent is sent what could be read of it
	}
	id := responses.IDOf(r.URL.Path)
	name, ok := responses.MacOf(id)
	if !ok {
		return responses.NotFound(id)
	}
	mac, ok := p.Table.Mac(name)
	if !ok {
		return responses.NotFound(id)
	}
	ctx, cancel, _, err := p.bound(ctx, r)
	if err != nil {
		return err
	}
	defer cancel()
	failed, err := p.attempt(ctx, w, r, grant{route.Endpoint{Mac: mac.Name, Address: mac.Address, Reach: mac.Reach}, func() {}}, &query{})
	if failed == nil {
		return err
	}
	if failed.refusal != nil {
		return failed.refusal
	}
	p.distrust(logOf(ctx), mac.Name, failed.err)
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Code: openai.CodeNoEndpoint, RetryAfter: noEndpointRetry,
		Message: fmt.Sprintf("The Mac that stores the response '%s' cannot be reached. Try again later.", openai.Shorten(id)), Cause: failed.err}
}

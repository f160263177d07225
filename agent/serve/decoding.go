package serve

import (
	"context"
	"net/http"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/metal/share"
)

// smallBody is the size up to which a body is decoded without a place: that takes less than a
// millisecond.
const smallBody = 4 << 10

// mediumBody is the size up to which a body has a place of its own kind: larger ones take up to 64
// times as long, and most requests would wait for them.
const mediumBody = 256 << 10

// place is one in which a body is decoded. Tenants take turns at them, so that the requests of
// one hold up neither those of others nor the answers that are being sent.
type place struct {
	turns  *share.Turns    // by the size of the body
	large  *share.Turns    // for large ones
	ctx    context.Context // of the request
	tenant string          // whose stored responses the body may name
	owner  string          // whose turn it takes
	taken  bool
}

// placeFor waits for a place to decode a body; a small one needs none.
func (h *handler) placeFor(r *http.Request, body []byte) (*place, error) {
	p := h.largePlace(r.Context(), r.Header)
	switch n := len(body); {
	case n <= smallBody:
		return p, nil
	case n <= mediumBody:
		p.turns = h.decodingMedium
	}
	return p, p.take()
}

// largePlace is one for large bodies, which is not taken yet.
func (h *handler) largePlace(ctx context.Context, head http.Header) *place {
	return &place{turns: h.decoding, large: h.decoding, ctx: ctx, tenant: head.Get(agentapi.HeaderTenant), owner: ownerOf(head)}
}

// takeLarge waits for a place for large bodies. What a body makes the agent read, such as stored
// items, may be large.
func (p *place) takeLarge() error {
	if p.turns != p.large {
		p.give()
		p.turns = p.large
	}
	return p.take()
}

// take waits for a place; with one it is a no-op.
func (p *place) take() error {
	if p.taken {
		return nil
	}
	if err := p.turns.Take(p.ctx, p.owner); err != nil {
		return ended(p.ctx, err)
	}
	p.taken = true
	return nil
}

// give gives the place back; without one it is a no-op.
func (p *place) give() {
	if p.taken {
		p.taken = false
		p.turns.Give(p.owner)
	}
}

// without returns fetch without a place while it runs: it waits for a server. What it fetched may
// be large, so the rest of the body is decoded with a place. nil stays nil.
func (p *place) without(fetch func(string) ([]byte, error)) func(string) ([]byte, error) {
	if fetch == nil {
		return nil
	}
	return func(url string) ([]byte, error) {
		p.give()
		data, err := fetch(url)
		if err != nil {
			return nil, err
		}
		return data, p.takeLarge()
	}
}

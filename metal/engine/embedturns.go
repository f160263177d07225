package engine

import "metalfleet.dev/metalfleet/metal/batch"

// shortPasses is how many passes of a decoder count as much as one that is full of tokens: each has
// only as many inputs as sequences were promised, but reads all weights.
const shortPasses = 8

// tinyTexts of a tenant come at most before the next part of its text under way that others wait for: each takes
// an encoder, too, more time than its tokens.
const tinyTexts = 32

// embedTurns decides whose inputs a pass computes: those of the tenant for which the fewest
// tokens were computed, and of its requests the one with the fewest. A token with a long context counts as
// several. One that comes later
// begins with the share of each, so that it neither waits for the others nor they for it: if it began
// with the fewest, tenants that come and go would always have these, and lists would never end.
// A text that is under way while others wait for its memory has half of the tokens of its tenant.
// The zero value is ready to use; it belongs to the loop.
type embedTurns struct {
	// least is how many tokens an input counts as at least.
	least int
	// growth of what a token costs per token of its context, as a part of what it costs without any.
	growth float64
	// requests that have not ended, in order of arrival.
	requests []*embedding
	tenants  map[string]*embedTenant
	// share is what each tenant would have had of all computed tokens if it had been there.
	share float64
	// awaited: a text waits for memory of those under way.
	awaited bool
}

// embedTenant is a tenant with requests.
type embedTenant struct {
	all      *embedTurns
	requests int
	// share is what each of its requests would have had of its tokens.
	share float64
	// part is how many tokens the last part of its text under way had. Its other requests have that many, of
	// which others are left, before the next part if that is awaited.
	part, others int
	turn
}

// turn counts tokens that were computed, and those of the pass that is put together.
type turn struct{ computed, picked int }

func (t turn) tokens() int { return t.computed + t.picked }

// enter adds a request.
func (e *embedTurns) enter(r *embedding) {
	t := e.tenants[r.tenant]
	if t == nil {
		t = &embedTenant{all: e, turn: turn{computed: int(e.share)}}
		if e.tenants == nil {
			e.tenants = map[string]*embedTenant{}
		}
		e.tenants[r.tenant] = t
	}
	r.of, r.turn = t, turn{computed: int(t.share)}
	t.requests++
	e.requests = append(e.requests, r)
}

// leave removes the request of an index.
func (e *embedTurns) leave(at int) {
	r := e.requests[at]
	e.requests = append(e.requests[:at:at], e.requests[at+1:]...)
	if r.of.requests--; r.of.requests == 0 {
		delete(e.tenants, r.tenant)
	}
}

// begin begins a pass.
func (e *embedTurns) begin() {
	for _, r := range e.requests {
		r.taken, r.picked, r.of.picked = 0, 0, 0
	}
}

// next returns the request whose next input is due; nil if all inputs are taken or wait.
func (e *embedTurns) next() (due *embedding) {
	for _, r := range e.requests {
		if r.begun+r.taken < len(r.inputs) && !r.waits && (due == nil || r.before(due)) {
			due = r
		}
	}
	return due
}

func (e *embedding) before(other *embedding) bool {
	if a, b := e.of.tokens(), other.of.tokens(); a != b {
		return a < b
	}
	if under := e.walk != nil; e.of == other.of && e.of.all.awaited && under != (other.walk != nil) {
		return under == (e.of.others <= 0)
	}
	return e.of == other.of && e.turn.tokens() < other.turn.tokens()
}

// take adds the next input of a request to the pass.
func (e *embedding) take() passInput {
	in := passInput{e, e.begun + e.taken}
	e.taken++
	e.picked += in.cost()
	e.of.picked += in.cost()
	return in
}

// done notes that an input was computed.
func (p passInput) done() {
	p.of.begun++
	p.of.count(p.cost())
}

// count counts tokens that were computed.
func (e *embedding) count(tokens int) {
	t := e.of
	e.computed += tokens
	t.computed += tokens
	t.share += float64(tokens) / float64(t.requests)
	if len(t.all.tenants) > 1 {
		t.all.share += float64(tokens) / float64(len(t.all.tenants))
	} else { // what it missed before it has now, and one that comes is next
		t.all.share = max(t.all.share, float64(t.computed-tokens))
	}
	if e.walk != nil {
		t.part, t.others = tokens, tokens
	} else {
		t.others -= max(tokens, t.part/tinyTexts)
	}
}

// cost is how many tokens an input counts as.
func (p passInput) cost() int {
	all, n := p.of.of.all, p.tokens()
	return max(all.weigh(n, n/2), all.least)
}

// weigh is how many tokens without context cost as much as some with an average context.
func (e *embedTurns) weigh(tokens, depth int) int {
	return int(float64(tokens) * batch.Dearer(e.growth, depth))
}

func (p passInput) tokens() int { return p.of.inputs[p.at].Len() }

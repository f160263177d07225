package engine

import (
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
)

// textSlice is how long a pass takes while several tenants have texts. A query of few tokens would take some
// milliseconds alone.
const textSlice = 50 * time.Millisecond

// embedPace decides how many tokens a pass of texts takes, from the durations of past ones, as prefill-only steps do.
// While several tenants have requests, or had lately, passes are short. It belongs to the loop.
type embedPace struct {
	batch.Pace
	// room is how many tokens the next pass takes, and shared is true while several tenants have requests.
	room   int
	shared bool
}

// look sets the room of the next pass. It returns the growth of what a token costs, up to the deepest context.
func (p *embedPace) look(shared bool, deepest, limit int) (growth float64) {
	p.shared = shared
	p.room = p.part(0, limit)
	return p.Growth(batch.Work{Prompts: []batch.Span{{From: deepest}}})
}

// part is how many tokens of a text a pass takes after some of it.
func (p *embedPace) part(after, limit int) int {
	return p.Tokens(batch.Work{Prompts: []batch.Span{{From: after, To: after + limit}}, Shared: p.shared}, limit)
}

// took records the duration of a pass of whole texts.
func (p *embedPace) took(d time.Duration, pass []passInput) {
	var l batch.Load
	for _, in := range pass {
		n := in.tokens()
		l.PrefillTokens += n
		l.PrefillContext += n * n / 2
	}
	p.Took(l, d)
}

// tookPart records the duration of a pass of tokens with an average context.
func (p *embedPace) tookPart(d time.Duration, tokens, depth int) {
	p.Took(batch.Load{PrefillTokens: tokens, PrefillContext: tokens * depth}, d)
}

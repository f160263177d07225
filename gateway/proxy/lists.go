package proxy

import (
	"context"
	"encoding/json"
	"iter"
	"math"
	"net/http"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/route"
)

const (
	// maxLists is how many lists of models are encoded concurrently: a short request asks for
	// a long list, and its client need not read it.
	maxLists = 2
	// listStep is how many models of a list are encoded in one turn.
	listStep = 32
)

// newListTurns returns the turns of lists. None is refused: all wait for at most one step of
// each other tenant.
func newListTurns() *turns { return newTurns(maxLists, math.MaxInt) }

// encoded yields the descriptions of models as JSON. It has a turn while it looks for models
// and encodes them, and none while the client reads. If the request ends before the list, the
// response is aborted, so that no client takes it for complete.
func encoded(ctx context.Context, t *turns, tenant string, names iter.Seq[route.Name], describe func(route.Name) any) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		end := t.mustBegin(ctx, tenant)
		defer func() { end() }()
		step := make([]json.RawMessage, 0, listStep)
		send := func() bool {
			end()
			end = func() {}
			for i, one := range step {
				if step[i] = nil; !yield(one) {
					return false
				}
			}
			step = step[:0]
			return true
		}
		for n := range names {
			one, err := openai.Marshal(describe(n))
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			if step = append(step, one); len(step) < listStep {
				continue
			}
			if !send() {
				return
			}
			end = t.mustBegin(ctx, tenant)
		}
		send()
	}
}

// mustBegin is begin for a response that may have begun: it aborts one that has to end.
func (s *turns) mustBegin(ctx context.Context, tenant string) (end func()) {
	end, err := s.begin(ctx, tenant)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return end
}

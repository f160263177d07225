package engine

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/sample"
)

// mostHands draw the tokens of a step at once, where the host has as many
// processors: each row is a pass or two over a vocabulary.
const mostHands = 8

// hand draws tokens for one goroutine.
type hand struct {
	sampler *sample.Sampler
	// allowed are the logits of one row that is held to a form.
	allowed []float32
}

func newHands(vocabulary int) []*hand {
	hands := make([]*hand, min(mostHands, runtime.GOMAXPROCS(0)))
	for i := range hands {
		hands[i] = &hand{sampler: sample.New(vocabulary)}
	}
	return hands
}

// drawn is what became of a row.
type drawn struct {
	picked
	err error
}

func (d *drawn) pick(h *hand, a *active, logits []float32) {
	if d.picked, d.err = h.pick(a, logits); errors.Is(d.err, errLate) {
		d.logits = logits
	}
}

// draw chooses a token for every row of a step that samples and whose request
// goes on. What a request draws depends on its own row, seed and counts alone, so
// rows are drawn side by side.
func (l *looping) draw(f *flight, logits func(row int) []float32) picker {
	var wanted []int
	var of []*active
	for _, id := range f.sampled {
		if a := l.active[id]; a != nil && !a.echo.only {
			wanted = append(wanted, len(of))
		}
		of = append(of, l.active[id])
	}
	all := make([]drawn, len(of))
	l.share(len(wanted), func(h *hand, i int) {
		row := wanted[i]
		all[row].pick(h, of[row], logits(f.last[row]))
	})
	// Those whose masks are late are waited for together.
	wanted = slices.DeleteFunc(wanted, func(row int) bool { return !errors.Is(all[row].err, errLate) })
	until := time.Now().Add(maxLate)
	for _, row := range wanted {
		of[row].constraint.await(until)
	}
	l.share(len(wanted), func(h *hand, i int) {
		row := wanted[i]
		all[row].pick(h, of[row], logits(f.last[row]))
	})
	return func(row int) (picked, error) { return all[row].picked, all[row].err }
}

// share has as many hands as are of use do n things, and waits for them.
func (l *looping) share(n int, do func(h *hand, i int)) {
	var next atomic.Int64
	work := func(h *hand) {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			do(h, i)
		}
	}
	var others sync.WaitGroup
	for _, h := range l.hands[1:max(1, min(n, len(l.hands)))] {
		others.Go(func() { work(h) })
	}
	work(l.hands[0])
	others.Wait()
}

// again marks the number of a token that is drawn a second time.
const again = 1 << 62

// pick chooses a token from logits on the host.
func (h *hand) pick(a *active, logits []float32) (picked, error) {
	token, err := h.token(a, logits)
	if err != nil || a.logprobs == nil {
		return picked{token: token}, err
	}
	ranked, err := sample.Rank(logits, token, *a.logprobs)
	return picked{token: token, ranked: &ranked}, err
}

func (h *hand) token(a *active, logits []float32) (int32, error) {
	c, n := a.constraint, uint64(a.generated())
	if c == nil || !c.free {
		allowed, err := h.allow(a, logits)
		if err != nil {
			return 0, err
		}
		return h.sampler.Token(a.params, allowed, n, &a.counts)
	}
	likely := logits
	if !a.ending.free(a.generated()) {
		h.allowed = append(h.allowed[:0], logits...)
		a.ending.forbid(h.allowed)
		likely = h.allowed
	}
	token, err := h.sampler.Token(a.params, likely, n, &a.counts)
	if err != nil {
		return token, err
	}
	fits, err := c.fits(token)
	if fits || c.loses(err) {
		return token, nil
	}
	if err != nil {
		return 0, err
	}
	allowed, err := h.allow(a, logits)
	if c.loses(err) {
		return token, nil
	}
	if err != nil {
		return 0, err
	}
	return h.sampler.Token(a.params, allowed, n|again, &a.counts)
}

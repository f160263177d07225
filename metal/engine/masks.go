package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/grammar"
)

// maxLate is how long the other rows of a step wait for a request's masks, in all: one that
// is later makes only its own row wait.
const maxLate = 20 * time.Millisecond

var (
	// errLate is returned for a token that cannot be drawn yet: its mask is not there.
	errLate = errors.New("the mask of the next token is not ready")
	// errWhole is returned for a token that must not come: the form is complete.
	errWhole = errors.New("the output is complete")
)

// masking makes what the next token of a request needs while its step is computed. The other
// fields are good once done is closed.
type masking struct {
	done    chan struct{}
	matcher grammar.Matcher
	// bits are the mask, nil where only the token before was followed.
	bits []uint64
	// marks are the control tokens that may come.
	marks []int32
	err   error
}

// prepare begins to make the mask of the next token.
func (c *constrained) prepare() {
	if c == nil || c.free || c.thought.underWay {
		return
	}
	c.begin(true)
}

// begin starts to follow the token that Try could not, if there is one, and to make a mask if
// one is wanted.
func (c *constrained) begin(mask bool) {
	if c.masking != nil {
		return
	}
	m := &masking{done: make(chan struct{}), matcher: c.matcher}
	c.masking = m
	late := c.late
	c.holders.Add(1)
	c.maskings.Go(func() {
		defer c.letGo()
		m.err = m.make(c.ctx, late, mask, c.marks)
		close(m.done)
		c.notify()
	})
}

func (m *masking) make(ctx context.Context, late []byte, mask bool, marks map[int32]string) error {
	if late != nil {
		if ok, err := m.matcher.Follow(ctx, late); err != nil {
			return err
		} else if !ok {
			return errNoFit
		}
	}
	if !mask {
		return nil
	}
	if late != nil && m.matcher.Ended() {
		return errWhole
	}
	var err error
	if m.bits, err = m.matcher.Mask(ctx); err != nil {
		return err
	}
	for id, mark := range marks {
		ok, err := m.matcher.Takes(ctx, []byte(mark))
		if err != nil {
			return err
		}
		if ok {
			m.marks = append(m.marks, id)
		}
	}
	return nil
}

// ready reports whether what was begun is there.
func (m *masking) ready() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// caughtUp reports whether all tokens were followed; it begins to where one was not.
func (c *constrained) caughtUp() error {
	if c.late == nil {
		return nil
	}
	c.begin(!c.free)
	if !c.masking.ready() {
		return errLate
	}
	m := c.masking
	if m.err != nil {
		return m.err
	}
	c.matcher, c.late = m.matcher, nil
	if m.bits == nil {
		c.masking = nil
	}
	return nil
}

// mask is what may come next, once it is there; it is begun where it was not.
func (c *constrained) mask() (*masking, error) {
	if err := c.caughtUp(); err != nil {
		return nil, err
	}
	c.begin(true)
	if !c.masking.ready() {
		return nil, errLate
	}
	return c.masking, c.masking.err
}

// await waits for what was begun, not beyond a time, and not longer than the others wait for
// this request in all.
func (c *constrained) await(until time.Time) {
	if c == nil || c.masking == nil {
		return
	}
	began := time.Now()
	limit := time.NewTimer(min(time.Until(until), c.patience))
	defer limit.Stop()
	select {
	case <-c.masking.done:
	case <-limit.C:
	}
	c.patience = max(0, c.patience-time.Since(began))
}

// finish ends what was begun, and lets go of the constraint.
func (c *constrained) finish() {
	if c == nil {
		return
	}
	c.cancel()
	c.letGo()
}

// letGo is called by the request and by each masking at its end; the last one releases.
func (c *constrained) letGo() {
	if c.holders.Add(-1) == 0 {
		c.release()
	}
}

// park has a row leave the step: its logits wait for the mask, and the others do not.
func (l *looping) park(a *active, logits []float32) {
	a.parked = slices.Clone(logits)
	if !slices.Contains(l.parked, a) {
		l.parked = append(l.parked, a)
	}
}

// drawParked draws the tokens of rows that left their step and whose masks are there now.
func (l *looping) drawParked() {
	parked := l.parked
	l.parked = l.parked[:0:0]
	for _, a := range parked {
		// A row that is computed again is drawn then.
		if l.active[a.id] != a || a.parked == nil || l.sched.InKV(a.id) != len(a.tokens) {
			a.parked = nil
			continue
		}
		if m := a.constraint.masking; m != nil && !m.ready() {
			l.parked = append(l.parked, a)
			continue
		}
		p, err := l.hands[0].pick(a, a.parked)
		if errors.Is(err, errLate) {
			l.parked = append(l.parked, a)
			continue
		}
		l.give(a, p, err, false)
	}
}

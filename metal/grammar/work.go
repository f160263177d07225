package grammar

import (
	"context"
	"errors"
	"runtime"
)

// Work is counted in the smallest things that are done for a constraint: a node, an edge, a
// range of characters or a token of the vocabulary that is looked at. One takes 10 to 50 ns.
// Counts, unlike clocks, give the same verdict on a busy machine and on an idle one.
const (
	// compileWork is what a constraint may take to compile.
	compileWork = 12_000_000
	// answerWork is what the masks of an answer may take beyond those of its tokens, each of
	// which may look at the whole vocabulary tokenWalks times and do tokenWork in addition.
	answerWork            = 12_000_000
	tokenWork, tokenWalks = 100_000, 2
	// quickWork of a compilation, and of an answer beyond quickTokenWork for each token, is done
	// at once. What takes more goes through the lane.
	quickWork, quickTokenWork = 400_000, 20_000
	// tryWork is what Matcher.Try does at most.
	tryWork = 20_000
	// sliceWork is done between two looks at the context and the lane, some 0.2 ms. What
	// computes a step on the same processors waits no longer for one than that.
	sliceWork = 5_000
	// textBytes of text take one unit of work to read or write.
	textBytes = 8
)

var (
	// ErrWork is that of a constraint that exceeds its budget of work.
	ErrWork = errors.New("the constraint takes too much work to follow; make it smaller or less ambiguous")
	// ErrLate is returned where Matcher.Try would have taken too long.
	ErrLate = errors.New("the constraint is not ready yet")
)

// meter counts the work of one compilation or one mask, and ends it with its context or its
// budget. It is for one goroutine.
type meter struct {
	ctx context.Context
	// left of the budget, down to floor; exceeded is the error beyond that.
	left, floor int64
	exceeded    error
	// next is what is left at the next look, and quick what is left where quick work ends.
	next, quick int64
	lane        *lane
	// heavy has a place for each of those that may be in the lane together; nil is no bound.
	heavy           *lane
	inLane, isHeavy bool
	err             error
}

// spend counts work, and reports whether there may be more.
func (m *meter) spend(n int) bool {
	if m.left -= int64(n); m.left < m.next {
		m.look()
	}
	return m.err == nil
}

func (m *meter) look() {
	if m.err != nil {
		return
	}
	switch {
	case m.left < m.floor:
		m.err = m.exceeded
	case m.ctx.Err() != nil:
		m.err = m.ctx.Err()
	case m.lane != nil && m.left < m.quick:
		m.err = m.pass()
	}
	m.next = max(m.floor, m.left-sliceWork)
	if m.err == nil {
		runtime.Gosched()
	}
}

// within has work done with half of what is left of the budget, and reports whether that was
// enough. What was spent counts.
func (m *meter) within(work func()) bool {
	floor := m.floor
	m.floor += max(0, m.left-floor) / 2
	m.next = max(m.next, m.floor)
	work()
	m.floor = floor
	if m.err == nil || m.err != m.exceeded {
		return m.err == nil
	}
	m.err = nil
	return false
}

// pass gives the place in the lane to the operation whose turn it is, and waits for the
// next place.
func (m *meter) pass() error {
	if m.heavy != nil && !m.isHeavy {
		if err := m.heavy.take(m.ctx); err != nil {
			return err
		}
		m.isHeavy = true
	}
	if m.inLane {
		m.lane.give()
		m.inLane = false
	}
	if err := m.lane.take(m.ctx); err != nil {
		return err
	}
	m.inLane = true
	return nil
}

// done gives back what the meter holds.
func (m *meter) done() {
	if m.inLane {
		m.lane.give()
	}
	if m.isHeavy {
		m.heavy.give()
	}
	m.inLane, m.isHeavy = false, false
}

// account is the work that an answer may still cause, what of it is done at once, and what a
// token brings.
type account struct{ left, quick, token int64 }

func newAccount(v *Vocabulary) *account {
	return &account{left: answerWork, quick: quickWork, token: tokenWork + tokenWalks*v.nodes()}
}

func (a *account) credit() {
	a.left, a.quick = min(a.left+a.token, answerWork), min(a.quick+quickTokenWork, quickWork)
}

// meter counts against an account; settle takes note of what was spent.
func (a *account) meter(ctx context.Context, l *lane) *meter {
	return &meter{ctx: ctx, left: a.left, quick: a.left - a.quick, next: max(0, a.left-sliceWork), lane: l, exceeded: ErrWork}
}

func (a *account) settle(m *meter) {
	m.done()
	spent := a.left - m.left
	a.left, a.quick = max(0, m.left), max(0, a.quick-spent)
}

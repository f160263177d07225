package grammar

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
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
	// quickWork of an answer beyond quickTokenWork for each token is done at once. What takes
	// more goes through the lane. A quick compilation takes no more, see cache.go.
	quickWork, quickTokenWork = 400_000, 20_000
	// tryWork is what Matcher.Try does at most.
	tryWork = 20_000
	// sliceWork is done between two looks at the context and the lane, some 0.2 ms. What
	// computes a step on the same processors waits no longer for one than that.
	sliceWork = 5_000
	// textBytes of text take one unit of work to read or write.
	textBytes = 8
	// readWork is that of reading a value of JSON, or the name of a member, in addition.
	readWork = 16
)

// Memory is counted in the bytes of what a compilation makes and still holds, before it makes
// it, with the room that lists and maps have to grow, but without garbage.
const (
	// quickBytes are what a quick compilation holds at most, and heavyBytes what any other does.
	quickBytes, heavyBytes = 2 << 20, 24 << 20
	// nodeSize and edgeSize are those of a grammar: with what finish needs for each.
	nodeSize, edgeSize = 64, 28
	// entryBytes of a map without its key, symbolBytes of a part of an expression, placeBytes
	// of a schema in a list, caseBytes of one in a case.
	entryBytes, symbolBytes, placeBytes, caseBytes = 80, 64, 48, 24
	// textStateBytes of a text in which marks are looked for.
	textStateBytes = 240
	// looseBytes, stateBytes and wayBytes are of automata over characters; treeBytes are of the
	// tree of each byte of an expression, and classBytes of a class of Unicode.
	looseBytes, stateBytes, wayBytes, treeBytes, classBytes = 192, 80, 32, 160, 13 << 10
)

var (
	// ErrWork is that of a constraint that exceeds its budget of work.
	ErrWork = errors.New("the constraint takes too much work to follow; make it smaller or less ambiguous")
	// ErrLate is returned where Matcher.Try would have taken too long.
	ErrLate = errors.New("the constraint is not ready yet")
	// errHeavy ends a quick compilation that is none.
	errHeavy = errors.New("the constraint takes long to compile")
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
	inLane      bool
	err         error
	// held are the bytes of what a compilation has made, of at most most; full is the error
	// beyond that.
	held, most int64
	full       error
	// isQuick: the compilation ends with errHeavy where it takes more than a quick one may.
	isQuick bool
	// all counts the bytes of all compilations, this one's counted ones included; nil for none.
	all     *atomic.Int64
	counted int64
}

// hold counts bytes before they are made, or gives some back where n is negative, and reports
// whether there may be more.
func (m *meter) hold(n int) bool {
	m.held += int64(n)
	switch {
	case m.err != nil || n <= 0:
	case m.held > m.most:
		m.err = m.full
	case m.isQuick && m.held > quickBytes:
		m.err = errHeavy
	}
	return m.err == nil
}

// count has all compilations' bytes include what the meter holds.
func (m *meter) count(held int64) {
	if m.all != nil {
		m.all.Add(held - m.counted)
		m.counted = held
	}
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
	case m.isQuick && m.left < m.quick:
		m.err = errHeavy
	case m.lane != nil && m.left < m.quick:
		m.err = m.pass()
	}
	m.count(m.held)
	m.next = max(m.floor, m.left-sliceWork)
	if m.err == nil {
		runtime.Gosched()
	}
}

// within has work done with half of what is left of the budgets, and reports whether that was
// enough. What was spent counts.
func (m *meter) within(work func()) bool {
	floor, most := m.floor, m.most
	m.floor += max(0, m.left-floor) / 2
	m.next = max(m.next, m.floor)
	m.most -= max(0, most-m.held) / 2
	work()
	m.floor, m.most = floor, most
	if m.err == nil || m.err != m.exceeded && m.err != m.full {
		return m.err == nil
	}
	m.err = nil
	return false
}

// pass gives the place in the lane to the operation whose turn it is, and waits for the
// next place.
func (m *meter) pass() error {
	m.leaveLane()
	if err := m.lane.take(m.ctx); err != nil {
		return err
	}
	m.inLane = true
	return nil
}

// leaveLane gives the place back, if the meter has one. The next work waits for another.
func (m *meter) leaveLane() {
	if m.inLane {
		m.lane.give()
		m.inLane, m.next = false, m.left
	}
}

// done gives back what the meter holds.
func (m *meter) done() {
	m.leaveLane()
	m.count(0)
}

// account is the work that an answer may still cause, what of it is done at once, and what a
// token brings. held are the bytes that its states hold by themselves.
type account struct{ left, quick, token, held int64 }

// hold has the tenant's bytes include those of the states of an answer.
func (a *account) hold(t *Table, bytes int64) {
	if h := t.peers.Load(); h != nil {
		h.add(bytes - a.held)
		h.use(bytes - a.held)
		a.held = bytes
	}
}

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

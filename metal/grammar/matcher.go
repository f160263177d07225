package grammar

import (
	"context"
	"errors"
	"time"
)

// Matcher follows one answer. Copies continue from its state, and share its
// budget of work and what is counted for it until Release. A Matcher and its copies
// must not be used concurrently.
type Matcher struct {
	t       *Table
	s       *state
	account *account
}

// Match begins an answer; afterReasoning allows blank lines first, which models
// write after reasoning.
func (t *Table) Match(afterReasoning bool) Matcher {
	start := t.starts[0]
	if afterReasoning {
		start = t.starts[1]
	}
	return Matcher{t, start, newAccount(t.vocab)}
}

// AfterReasoning restarts the answer after reasoning.
func (m *Matcher) AfterReasoning() Matcher { return Matcher{m.t, m.t.starts[1], m.account} }

// Advance accepts the bytes of a token, within the budget of the answer. It
// returns false and leaves the matcher unchanged if they are not allowed or the
// budget is exhausted.
func (m *Matcher) Advance(text []byte) bool {
	ok, err := m.Follow(context.Background(), text)
	return ok && err == nil
}

// Follow accepts the bytes of a token; it returns false if they are not
// allowed. An error ends the answer, unless it is that of ctx.
func (m *Matcher) Follow(ctx context.Context, text []byte) (bool, error) {
	m.account.credit()
	return m.follow(ctx, m.account.meter(ctx, m.t.lane), text)
}

func (m *Matcher) follow(ctx context.Context, meter *meter, text []byte) (bool, error) {
	var to *state
	err := m.do(ctx, meter, func() error {
		to = m.t.own(m.t.follow(m.s, text))
		return m.t.failed
	})
	if err != nil || to == m.t.dead {
		return false, err
	}
	m.account.hold(m.t, m.s.own+to.own)
	m.s = to
	return true, nil
}

// Release ends the answer: its states, and those of its copies, count no more.
func (m *Matcher) Release() { m.account.hold(m.t, 0) }

// Takes reports whether text may come next, without changing the matcher.
func (m *Matcher) Takes(ctx context.Context, text []byte) (bool, error) {
	at := *m
	return at.follow(ctx, m.account.meter(ctx, m.t.lane), text)
}

// tryPatience is how long Try waits for another operation on the table.
const tryPatience = time.Millisecond

// Try is Follow for callers that cannot wait: it returns ErrLate if the table
// is in use or more than a little work is needed. The work done is kept for
// Follow.
func (m *Matcher) Try(text []byte) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tryPatience)
	defer cancel()
	m.account.credit()
	meter := m.account.meter(context.Background(), nil)
	meter.floor = max(0, meter.left-tryWork)
	meter.exceeded = ErrLate
	ok, err := m.follow(ctx, meter, text)
	if errors.Is(err, context.DeadlineExceeded) {
		err = ErrLate
	}
	return ok, err
}

// Accepting reports whether the answer may end here.
func (m *Matcher) Accepting() bool { return m.s.accepting }

// Ended reports whether nothing may follow.
func (m *Matcher) Ended() bool { return len(m.s.items) == 0 }

// Mask has a bit for each token of the vocabulary that may come next, except
// for tokens that end the answer. It must not be modified and never changes. An
// error ends the answer, unless it is that of ctx.
func (m *Matcher) Mask(ctx context.Context) (mask []uint64, err error) {
	m.account.credit()
	err = m.do(ctx, m.account.meter(ctx, m.t.lane), func() (err error) {
		mask, err = m.t.mask(m.s)
		return err
	})
	return mask, err
}

// do has an operation work on the table once it is free.
func (m *Matcher) do(ctx context.Context, meter *meter, work func() error) error {
	select {
	case m.t.held <- struct{}{}:
	default:
		select {
		case m.t.held <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { <-m.t.held }()
	defer m.account.settle(meter)
	err := m.once(meter, work)
	if !errors.Is(err, errRoom) {
		return err
	}
	if meter.exceeded == ErrLate {
		return ErrLate // it must not wait
	}
	meter.leaveLane() // what has the heavy place waits for processors
	if err := m.t.heavy.take(ctx); err != nil {
		return err
	}
	defer m.t.heavy.give()
	m.t.inHeavy = true
	defer func() { m.t.inHeavy = false }()
	return m.once(meter, work)
}

// once has an operation work on the table.
func (m *Matcher) once(meter *meter, work func() error) error {
	m.t.makeRoom(m.s)
	m.t.meter = meter
	done := false
	defer func() {
		if !done { // a panic left states that are not whole
			m.t.failed = nil
			m.t.forget()
		}
	}()
	err := work()
	done = true
	if m.t.failed != nil && meter.err == nil {
		m.t.forget() // it was too large, not too slow
	}
	m.t.failed = nil
	m.t.tidy()
	return err
}

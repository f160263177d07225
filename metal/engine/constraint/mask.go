package constraint

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"metalfleet.dev/metalfleet/metal/grammar"
)

// quickTry is how long following a token may take without counting as a wait of other requests:
// usual ones take some microseconds.
const quickTry = 100 * time.Microsecond

var (
	// ErrPending is returned for a token that cannot be sampled yet: its mask is not ready.
	ErrPending = errors.New("the mask of the next token is not ready")
	// ErrComplete is returned for a token that must not come: the form is complete.
	ErrComplete = errors.New("the output is complete")
)

// mask is what the next token of a request needs. Its fields other than done may be read
// once done is closed.
type mask struct {
	done    chan struct{}
	matcher grammar.Matcher
	// bits are the allowed tokens; nil if only the token before was followed.
	bits []uint64
	// marks are the control tokens that may come.
	marks []int32
	err   error
}

// Prepare begins to compute the mask of the next token.
func (s *State) Prepare() {
	if s == nil || s.free || s.thinking.Underway {
		return
	}
	s.begin(true)
}

// begin starts to follow the token that Advance could not, if there is one, and to compute
// a mask if one is wanted.
func (s *State) begin(wanted bool) {
	if s.mask != nil {
		return
	}
	m := &mask{done: make(chan struct{}), matcher: s.matcher}
	s.mask = m
	late := s.late
	s.holders.Add(1)
	s.compiler.masks.Go(func() {
		defer s.unref()
		m.err = s.compiler.contained(func() error { return m.compute(s.ctx, late, wanted, s.marks) })
		close(m.done)
		s.notify()
	})
}

var errPanic = errors.New("the engine failed while it computed the mask of the next token; its log has the cause")

// contained computes a mask, from state that only its request and its tenant's form have.
func (c *Compiler) contained(compute func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if c.panicked != nil {
				c.panicked(p, debug.Stack())
			}
			err = errPanic
		}
	}()
	return compute()
}

func (m *mask) compute(ctx context.Context, late []byte, wanted bool, marks map[int32]string) error {
	if late != nil {
		if ok, err := m.matcher.Follow(ctx, late); err != nil {
			return err
		} else if !ok {
			return errMismatch
		}
	}
	if !wanted {
		return nil
	}
	if late != nil && m.matcher.Ended() {
		return ErrComplete
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

// ready reports whether the computation is over.
func (m *mask) ready() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// Pending reports whether a mask is being computed.
func (s *State) Pending() bool { return s != nil && s.mask != nil && !s.mask.ready() }

// catchUp returns ErrPending until all tokens are followed. It begins to follow the last
// one if necessary.
func (s *State) catchUp() error {
	if s.late == nil {
		return nil
	}
	s.begin(!s.free)
	if !s.mask.ready() {
		return ErrPending
	}
	m := s.mask
	if m.err != nil {
		return m.err
	}
	s.matcher, s.late = m.matcher, nil
	if m.bits == nil {
		s.mask = nil
	}
	return nil
}

// nextMask is the mask of the next token, or ErrPending; it is begun if necessary.
func (s *State) nextMask() (*mask, error) {
	if err := s.catchUp(); err != nil {
		return nil, err
	}
	s.begin(true)
	if !s.mask.ready() {
		return nil, ErrPending
	}
	return s.mask, s.mask.err
}

// Await waits for the mask until a deadline, and no longer than other requests may wait for
// those of its tenant.
func (s *State) Await(until time.Time) {
	if s == nil || s.mask == nil {
		return
	}
	began := time.Now()
	limit := time.NewTimer(min(time.Until(until), s.compiler.patience.left(s.tenant)))
	defer limit.Stop()
	select {
	case <-s.mask.done:
	case <-limit.C:
	}
	s.compiler.patience.spend(s.tenant, time.Since(began))
}

// try has a matcher follow a token while other requests wait, of which the time counts as in Await.
// Once none is left the error is grammar.ErrLate, and a goroutine follows the token.
func (s *State) try(m *grammar.Matcher, token int32) (bool, error) {
	if s.compiler.patience.left(s.tenant) == 0 {
		return false, grammar.ErrLate
	}
	began := time.Now()
	ok, err := m.Try(s.spell(token))
	s.compiler.patience.spend(s.tenant, time.Since(began)-quickTry)
	return ok, err
}

// unref is called by the request and by each computation at its end; the last one releases
// the grammar.
func (s *State) unref() {
	if s.holders.Add(-1) == 0 {
		s.release()
	}
}

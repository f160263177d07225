// Package constraint restricts the output of a request to a form: a regular expression,
// a grammar, a JSON schema or the tool calls of a format.
//
// A Compiler belongs to a model. It compiles a form to a State, which follows one
// request: Apply removes the logits of tokens that cannot come next, and Advance takes
// the token that was sampled. Reasoning before the answer is free, and so is text around
// tool calls that may be omitted: there a token is sampled first, and Fits checks it.
//
// The mask of the next token is computed by a goroutine while the step is computed.
// A State whose mask is late returns ErrPending, and the caller tries again later: other
// requests do not wait for it. Nothing here blocks except Await, which has a limit.
//
// Start reading at Compiler.Compile; mask.go computes masks.
package constraint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// errMismatch: a token was sampled that the form does not allow.
var errMismatch = errors.New("the token does not satisfy the output constraint")

// ErrSpelling is returned for a form that the tokens of the model cannot write.
var ErrSpelling = errors.New("no token of the vocabulary can continue the output as the constraint requires")

// Compiler compiles constraints for the vocabulary of one model. Any goroutine may use it.
type Compiler struct {
	tok      *tokenizer.Tokenizer
	size     int // of the vocabulary
	ends     map[int32]bool
	grammars *grammar.Cache
	// shownDifferently are the tokens that must not begin an answer.
	shownDifferently func() []int32
	// masks are the computations under way; they end with their requests.
	masks sync.WaitGroup
	// patience is how long requests wait for the masks of others.
	patience patience
	// panicked is called after a panic over the mask of one request; nil for none.
	panicked func(value any, stack []byte)
}

// NewCompiler returns a Compiler for the first size tokens. ends are the tokens that end the model's turn. Grammars
// that are not in use are kept within a limit of bytes, including their masks.
func NewCompiler(tok *tokenizer.Tokenizer, size int, ends map[int32]bool, limit int64) *Compiler {
	c := &Compiler{tok: tok, size: size, ends: ends}
	c.grammars = grammar.NewCache(size, c.spell, limit)
	c.shownDifferently = sync.OnceValue(c.findShownDifferently)
	return c
}

// OnPanic sets the function that is called after a panic over the mask of one request, which
// alone fails. It is set before the first Compile.
func (c *Compiler) OnPanic(do func(value any, stack []byte)) { c.panicked = do }

// CountIn has the grammars in use count in another account as well. It is called before the first
// Compile.
func (c *Compiler) CountIn(all *share.Bytes) { c.grammars.CountIn(all) }

// Bytes of compiled grammars.
func (c *Compiler) Bytes() int64 { return c.grammars.Bytes() }

// Wait returns when no mask is computed any more. All States have to be released before.
func (c *Compiler) Wait() { c.masks.Wait() }

// Table compiles a form of a tenant by itself; release lets go of it.
func (c *Compiler) Table(ctx context.Context, tenant string, spec grammar.Spec) (t *grammar.Table, release func(), err error) {
	return c.grammars.Table(ctx, tenant, spec)
}

// Compile returns the State of one request of a tenant, to be released with Release.
func (c *Compiler) Compile(ctx context.Context, tenant string, spec grammar.Spec, thinking text.Thinking) (*State, error) {
	table, release, err := c.grammars.Table(ctx, tenant, spec)
	if err != nil {
		return nil, err
	}
	s := &State{compiler: c, tenant: tenant, notify: func() {}, thinking: thinking}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.holders.Store(1)
	if calls := spec.Calls; calls != nil {
		s.free, s.begun = calls.Free, calls.Free // free text may begin with any token
	} else {
		s.thinking.Interrupts = nil
	}
	s.matcher = table.Match(thinking.Underway)
	answer := s.matcher // what it counts is shared
	s.release = func() {
		answer.Release()
		release()
	}
	return s, nil
}

// spell is the text that a token shows; one that shows nothing has no bytes.
func (c *Compiler) spell(id int32) []byte {
	if c.silent(id) {
		return nil
	}
	return c.tok.Bytes(id)
}

// silent reports whether a token shows nothing.
func (c *Compiler) silent(id int32) bool { return c.ends[id] || c.tok.IsControl(id) }

// findShownDifferently finds the tokens that are shown differently at the start of a text:
// decoders that write blanks before words omit the first. Only tokens that begin with a
// blank can be such.
func (c *Compiler) findShownDifferently() (ids []int32) {
	for id := range int32(c.size) {
		spelt := c.tok.Bytes(id)
		if len(spelt) == 0 || spelt[0] != ' ' {
			continue
		}
		if shown, err := c.tok.Decode([]int32{id}, true); err != nil || shown != string(spelt) {
			ids = append(ids, id)
		}
	}
	return ids
}

// State is the constraint on the output of one request. It is for one goroutine; a nil
// State allows everything.
type State struct {
	compiler *Compiler
	tenant   string
	matcher  grammar.Matcher
	release  func()
	// thinking is the position in the reasoning before the answer.
	thinking text.Thinking
	// marks are control tokens and the text that stands for them in the form.
	marks map[int32]string
	// begun is true once the answer has a token.
	begun bool
	// free is true if free text is part of the form: a token is sampled as if there was
	// no constraint, and under a mask only if it does not fit. masked is set once that
	// happened to a token that the device sampled: the host samples the next ones. lost
	// is set if the form cannot be followed any more.
	free, masked, lost bool

	// mask is what is computed for the next token; nil if nothing was begun. late is the
	// last token if following it takes long: matcher is before it then.
	mask *mask
	late []byte
	// ctx ends with the request. holders are the request and the computations for it.
	// notify is called when a mask is ready.
	ctx     context.Context
	cancel  context.CancelFunc
	holders atomic.Int32
	notify  func()
}

// SetMarks sets the control tokens of the format, and the text that represents
// each.
func (s *State) SetMarks(marks map[int32]string) { s.marks = marks }

// OnReady sets the function that is called when a mask is ready.
func (s *State) OnReady(notify func()) {
	if s != nil {
		s.notify = notify
	}
}

// Continue has the answer begin in the middle of a text, where all tokens are shown as they are.
func (s *State) Continue() { s.begun = true }

// Check computes the first mask, so that a form that takes too much work can still be
// refused.
func (s *State) Check(ctx context.Context) error {
	if s.free {
		return nil
	}
	if _, err := s.matcher.Mask(ctx); err != nil {
		return err
	}
	s.compiler.shownDifferently()
	return nil
}

// Free reports whether free text is part of the form.
func (s *State) Free() bool { return s != nil && s.free }

// OnDevice reports whether the device may sample the tokens of the answer.
func (s *State) OnDevice() bool { return s == nil || s.free && !s.masked }

// LeaveDevice makes the host sample all further tokens.
func (s *State) LeaveDevice() { s.masked = true }

// Fits reports whether a form with free text allows a token. The error is ErrPending if
// that is not known yet.
func (s *State) Fits(token int32) (bool, error) {
	if s == nil || !s.free || s.lost || s.thinking.Underway || s.thinking.MayBegin && token == s.thinking.Opens {
		return true, nil
	}
	if err := s.catchUp(); err != nil {
		return false, err
	}
	m := s.matcher // a copy, which try may advance
	if s.compiler.ends[token] && s.marks[token] == "" {
		return m.Accepting(), nil
	}
	if s.mask == nil {
		if ok, err := s.try(&m, token); !errors.Is(err, grammar.ErrLate) {
			return ok, err
		}
	}
	next, err := s.nextMask()
	if err != nil {
		return false, err
	}
	return grammar.Allows(next.bits, token) || slices.Contains(next.marks, token) || len(s.spell(token)) == 0, nil
}

// spell is what a token adds to the answer.
func (s *State) spell(token int32) []byte {
	if mark := s.marks[token]; mark != "" {
		return []byte(mark)
	}
	return s.compiler.spell(token)
}

// GiveUp reports whether an error ends only the form, because text is free, and the answer
// continues without it.
func (s *State) GiveUp(err error) bool {
	if s == nil || !s.free || err == nil || errors.Is(err, ErrPending) {
		return false
	}
	s.lost = true
	return true
}

// Apply writes the logits of the tokens that may come next; all others are minus infinity.
// Reasoning may begin only if the model prefers that to every other token. Among the few
// tokens that a form allows, models that do not reason in this conversation would sample its
// mark, and the form would not hold what follows.
func (s *State) Apply(logits, out []float32) error {
	never := float32(math.Inf(-1))
	if s.thinking.Underway {
		copy(out, logits)
		for id := range s.compiler.ends {
			if int(id) < len(out) {
				out[id] = never
			}
		}
		return nil
	}
	next, err := s.nextMask()
	if err != nil {
		return err
	}
	for i := range out {
		out[i] = never
	}
	applyBits(next.bits, logits, out)
	if !s.begun {
		for _, id := range s.compiler.shownDifferently() {
			if int(id) < len(out) {
				out[id] = never
			}
		}
	}
	s.allowControl(next, func(id int32) {
		if id >= 0 && int(id) < len(out) {
			out[id] = logits[id]
		}
	})
	if opens := s.thinking.Opens; s.thinking.MayBegin && int(opens) < len(out) && logits[opens] >= slices.Max(logits) {
		out[opens] = logits[opens]
	}
	if !slices.ContainsFunc(out, func(v float32) bool { return v > never }) {
		return ErrSpelling
	}
	return nil
}

// applyBits copies the logits of the tokens of a mask.
func applyBits(bits []uint64, logits, out []float32) {
	for w, word := range bits {
		if word == 0 {
			continue
		}
		from := w * 64
		if word == math.MaxUint64 && from+64 <= len(out) {
			copy(out[from:from+64], logits[from:])
			continue
		}
		for b := range min(64, len(out)-from) {
			if word&(1<<b) != 0 {
				out[from+b] = logits[from+b]
			}
		}
	}
}

// allowControl allows the tokens that show nothing and may come: the end of the answer and
// marks.
func (s *State) allowControl(m *mask, allow func(id int32)) {
	if s.matcher.Accepting() {
		for id := range s.compiler.ends {
			allow(id)
		}
	}
	for _, id := range m.marks {
		allow(id)
	}
}

// Advance accepts a token that does not end the answer. done is true if nothing
// may follow it.
func (s *State) Advance(id int32) (done bool, err error) {
	if s == nil {
		return false, nil
	}
	t := &s.thinking
	switch {
	case t.Underway && slices.Contains(t.Interrupts, id):
		t.Underway = false
	case t.Underway:
		t.Underway = !t.Ends(id, string(s.spell(id)))
		s.begun = true
		return false, nil
	case t.MayBegin && id == t.Opens:
		t.MayBegin, t.Underway, s.begun = false, true, true
		s.matcher, s.mask = s.matcher.AfterReasoning(), nil
		return false, nil
	}
	t.MayBegin, s.begun = false, true
	if s.lost {
		return false, nil
	}
	s.mask = nil
	ok, err := s.try(&s.matcher, id)
	switch {
	case errors.Is(err, grammar.ErrLate):
		s.late = s.spell(id)
		if s.late == nil {
			s.late = []byte{}
		}
		return false, nil
	case err == nil && !ok:
		err = fmt.Errorf("token %d: %w", id, errMismatch)
	}
	if s.GiveUp(err) {
		return false, nil
	}
	return s.matcher.Ended(), err
}

// Release cancels the computation of masks for the request. The grammar may
// leave the cache once that has ended.
func (s *State) Release() {
	if s == nil {
		return
	}
	s.cancel()
	s.unref()
}

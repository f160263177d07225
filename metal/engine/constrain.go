package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// Constraint is the form that an answer has to have, behind whatever the model
// thinks first.
type Constraint struct {
	grammar.Spec
	// Param names the field of the request that it came in.
	Param string
}

// grammarBytes are kept of constraints that were compiled, their masks included.
const grammarBytes = 64 << 20

// constrained is an answer under a constraint.
type constrained struct {
	matcher grammar.Matcher
	release func()
	tok     *tokenizer.Tokenizer
	ends    map[int32]bool
	// thought is where the model's reasoning has got to.
	thought thought
	// marks are control tokens and what stands for them where calls are read; silent reports
	// whether a token shows nothing.
	marks  map[int32]string
	silent func(id int32) bool
	// begun says that a token of the answer came.
	begun bool
	// free text is part of the form: a token is drawn as if there was none, and under a mask
	// only where it does not fit. masked is set once that happened to a token that the device
	// drew: the host draws those that follow. lost is set where the form can be followed no
	// more.
	free, masked, lost bool
	// param is the field of the request.
	param string
	// shownOtherwise are the tokens that must not begin an answer.
	shownOtherwise func() []int32

	// masking is what is made for the next token; nil where nothing was begun. late is the
	// last token where following it takes long: matcher is the one before it then.
	masking *masking
	late    []byte
	// patience is how long others may still wait for this request.
	patience time.Duration
	// ctx ends with the request, and what is made for it; holders are the request and those
	// that make it. notify is called when something is ready.
	ctx      context.Context
	cancel   context.CancelFunc
	holders  atomic.Int32
	maskings *sync.WaitGroup
	notify   func()
}

// thought is reasoning before an answer; it is free.
type thought struct {
	// may says that reasoning may begin now, with the token opens; under way says
	// that it goes on until the tokens of closes came.
	may, underWay bool
	opens         int32
	closes        []int32
	last          []int32 // as many tokens as closes has
	// channels is set where headers of messages end a thought instead of closes.
	channels *channels
}

// ends reports whether a thought that is under way ends with a token, which shows
// a text. A header of the answer can contain more than its channel: GPT-OSS writes
// the format of structured answers there.
func (t *thought) ends(id int32, shown string) bool {
	if t.channels != nil {
		t.channels.see(id, shown)
		return id == t.channels.message && t.channels.answers()
	}
	t.last = append(t.last, id)
	t.last = t.last[max(0, len(t.last)-len(t.closes)):]
	return slices.Equal(t.last, t.closes)
}

// constrain compiles the constraint of a request; nil where it has none.
func (s *serving) constrain(ctx context.Context, r Request, prompt []int32) (*constrained, *Refusal) {
	if r.Constraint == nil {
		return nil, nil
	}
	if len(s.ends) == 0 {
		return nil, invalid(r.Constraint.Param, "this model has no end-of-sequence token, so its output cannot be constrained")
	}
	t, release, err := s.grammars.Table(ctx, r.Tenant, r.Constraint.Spec)
	if err != nil {
		return nil, invalid(s.atFault(ctx, r.Tenant, r.Constraint), "%v", err)
	}
	c := &constrained{
		release: release, tok: s.tok, ends: s.ends, silent: s.silent, param: r.Constraint.Param, shownOtherwise: s.shownOtherwise,
		patience: maxLate, maskings: &s.maskings, notify: func() {},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.holders.Store(1)
	calls := r.Constraint.Calls
	if calls != nil {
		c.free, c.begun = calls.Free, calls.Free // any text may begin so, shown or not
	}
	if r.Chat != nil && (calls == nil || !reasonsIn(s.text)) {
		c.thought = thoughtOf(s.tok, s.text.Reasoning(), prompt)
	}
	c.matcher = t.Match(c.thought.underWay)
	if c.free {
		return c, nil
	}
	// A form that takes too much work is refused here, where the request still can be.
	if _, err := c.matcher.Mask(ctx); err != nil {
		c.finish()
		return nil, invalid(r.Constraint.Param, "%v", err)
	}
	s.shownOtherwise()
	return c, nil
}

// atFault is the field of a constraint that cannot be compiled: where it has two parts,
// the one that cannot be compiled by itself.
func (s *serving) atFault(ctx context.Context, tenant string, c *Constraint) string {
	if c.Else == nil {
		return c.Param
	}
	_, release, err := s.grammars.Table(ctx, tenant, *c.Else)
	if err != nil {
		return c.Param
	}
	release()
	return toolsParam
}

// thoughtOf says whether the model thinks before it answers this prompt.
func thoughtOf(tok *tokenizer.Tokenizer, r text.Reasoning, prompt []int32) thought {
	switch {
	case r.Closes == "":
		return thought{}
	case r.Always:
		return thought{underWay: true, channels: channelsOf(tok)}
	}
	closes, err := tok.Encode(r.Closes, tokenizer.EncodeOptions{ParseSpecial: true})
	if err != nil || len(closes) == 0 {
		return thought{}
	}
	opens, known := tok.ID(r.Opens)
	if !known || len(closes) != 1 {
		return thought{}
	}
	open, closed := lastIndex(prompt, opens), lastIndex(prompt, closes[0])
	switch {
	case open > closed:
		return thought{underWay: true, closes: closes}
	case closed >= 0 && len(prompt)-closed <= turnTail:
		return thought{} // the template closed it: the model is not to think
	}
	return thought{may: true, opens: opens, closes: closes}
}

// turnTail is how many tokens stand behind reasoning that a template closed at
// once: line ends.
const turnTail = 3

func lastIndex(ids []int32, id int32) int {
	for i := len(ids) - 1; i >= 0; i-- {
		if ids[i] == id {
			return i
		}
	}
	return -1
}

// allow are the logits of a request's next token: those of the model, or of them
// what its form and its least length allow, until the next call.
func (h *hand) allow(a *active, logits []float32) ([]float32, error) {
	free := a.ending.free(a.generated())
	if a.constraint == nil && free {
		return logits, nil
	}
	h.allowed = slices.Grow(h.allowed[:0], len(logits))[:len(logits)]
	if a.constraint == nil {
		copy(h.allowed, logits)
	} else if err := a.constraint.apply(logits, h.allowed); err != nil {
		return nil, err
	}
	if !free {
		a.ending.forbid(h.allowed)
	}
	return h.allowed, nil
}

// onDevice reports whether the device may draw the tokens of an answer.
func (c *constrained) onDevice() bool { return c == nil || c.free && !c.masked }

// fits reports whether a form that has free text allows a token; the error is errLate where
// that is not known yet.
func (c *constrained) fits(token int32) (bool, error) {
	if c == nil || !c.free || c.lost || c.thought.underWay || c.thought.may && token == c.thought.opens {
		return true, nil
	}
	if err := c.caughtUp(); err != nil {
		return false, err
	}
	m := c.matcher
	if c.ends[token] && c.marks[token] == "" {
		return m.Accepting(), nil
	}
	if c.masking == nil {
		if ok, err := m.Try(c.spelt(token)); !errors.Is(err, grammar.ErrLate) {
			return ok, err
		}
	}
	next, err := c.mask()
	if err != nil {
		return false, err
	}
	return grammar.Allows(next.bits, token) || slices.Contains(next.marks, token) || len(c.spelt(token)) == 0, nil
}

// spelt is what a token adds to an answer.
func (c *constrained) spelt(token int32) []byte {
	switch mark := c.marks[token]; {
	case mark != "":
		return []byte(mark)
	case c.silent != nil && c.silent(token):
		return nil
	}
	return c.tok.Bytes(token)
}

// loses reports whether an error ends a form with free text, and not its answer.
func (c *constrained) loses(err error) bool {
	if c == nil || !c.free || err == nil || errors.Is(err, errLate) {
		return false
	}
	c.lost = true
	return true
}

// apply writes the logits of what may come next, all others are minus infinity. A
// thought may begin only where the model prefers that to every other token. Among the
// few that a form leaves, its mark would be drawn by models that do not reason here, and
// the form would not hold what follows.
func (c *constrained) apply(logits, out []float32) error {
	never := float32(math.Inf(-1))
	if c.thought.underWay {
		copy(out, logits)
		for id := range c.ends {
			if int(id) < len(out) {
				out[id] = never
			}
		}
		return nil
	}
	next, err := c.mask()
	if err != nil {
		return err
	}
	for i := range out {
		out[i] = never
	}
	allow := func(id int32) {
		if id >= 0 && int(id) < len(out) {
			out[id] = logits[id]
		}
	}
	for w, word := range next.bits {
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
	if !c.begun {
		c.forbidOtherwiseShown(out)
	}
	c.control(next, allow)
	if c.thought.may && c.thought.opens < int32(len(out)) && logits[c.thought.opens] >= slices.Max(logits) {
		allow(c.thought.opens)
	}
	if !slices.ContainsFunc(out, func(v float32) bool { return v > never }) {
		return errors.New("no token of the vocabulary can continue the output as the constraint requires")
	}
	return nil
}

// control allows what shows nothing and may come: the end of the answer, a mark.
func (c *constrained) control(m *masking, allow func(id int32)) {
	if c.matcher.Accepting() {
		for id := range c.ends {
			allow(id)
		}
	}
	for _, id := range m.marks {
		allow(id)
	}
}

// forbidOtherwiseShown leaves out what would be shown otherwise at the start of a
// text than later.
func (c *constrained) forbidOtherwiseShown(out []float32) {
	for _, id := range c.shownOtherwise() {
		if int(id) < len(out) {
			out[id] = float32(math.Inf(-1))
		}
	}
}

// findShownOtherwise are the tokens that are shown otherwise at the start of a text: decoders
// that write blanks in front of words leave out the first. Only tokens that begin with a blank
// can be such.
func (s *serving) findShownOtherwise() (ids []int32) {
	for id := range int32(s.tok.Size()) {
		spelt := s.tok.Bytes(id)
		if len(spelt) == 0 || spelt[0] != ' ' {
			continue
		}
		if shown, err := s.tok.Decode([]int32{id}, true); err != nil || shown != string(spelt) {
			ids = append(ids, id)
		}
	}
	return ids
}

// errNoFit: a token that was drawn is not one that the form allows.
var errNoFit = errors.New("the token does not satisfy the output constraint")

// took goes on behind a token that does not end the answer. done says that
// nothing may follow it.
func (c *constrained) took(id int32) (done bool, err error) {
	if c == nil {
		return false, nil
	}
	t := &c.thought
	if t.underWay {
		t.underWay = !t.ends(id, string(c.spelt(id)))
		c.begun = true
		return false, nil
	}
	if t.may && id == t.opens {
		t.may, t.underWay, c.begun = false, true, true
		c.matcher, c.masking = c.matcher.Behind(), nil
		return false, nil
	}
	t.may, c.begun = false, true
	if c.lost {
		return false, nil
	}
	c.masking = nil
	ok, err := c.matcher.Try(c.spelt(id))
	switch {
	case errors.Is(err, grammar.ErrLate):
		c.late = c.spelt(id)
		if c.late == nil {
			c.late = []byte{}
		}
		return false, nil
	case err == nil && !ok:
		err = fmt.Errorf("token %d: %w", id, errNoFit)
	}
	if c.loses(err) {
		return false, nil
	}
	return c.matcher.Ended(), err
}

package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

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
	// coming is the mask of the next token while it is made beside the step.
	coming chan masked
}

type masked struct {
	bits []uint64
	err  error
}

// thought is reasoning before an answer; it is free.
type thought struct {
	// may says that reasoning may begin now, with the token opens; under way says
	// that it goes on until the tokens of closes came.
	may, underWay bool
	opens         int32
	closes        []int32
	last          []int32 // as many tokens as closes has
}

// constrain compiles the constraint of a request; nil where it has none.
func (s *serving) constrain(ctx context.Context, r Request, prompt []int32) (*constrained, *Refusal) {
	if r.Constraint == nil {
		return nil, nil
	}
	if len(s.ends) == 0 {
		return nil, invalid(r.Constraint.Param, "this model has no end-of-sequence token, so its output cannot be constrained")
	}
	t, release, err := s.grammars.Table(ctx, r.Constraint.Spec)
	if err != nil {
		return nil, invalid(s.atFault(ctx, r.Constraint), "%v", err)
	}
	c := &constrained{release: release, tok: s.tok, ends: s.ends, silent: s.silent}
	calls := r.Constraint.Calls
	if calls != nil {
		c.free, c.begun = calls.Free, calls.Free // any text may begin so, shown or not
	}
	if r.Chat != nil && (calls == nil || !reasonsIn(s.text)) {
		c.thought = thoughtOf(s.tok, s.text.Reasoning(), prompt)
	}
	c.matcher = t.Match(c.thought.underWay)
	return c, nil
}

// atFault is the field of a constraint that cannot be compiled: where it has two parts,
// the one that cannot be compiled by itself.
func (s *serving) atFault(ctx context.Context, c *Constraint) string {
	if c.Else == nil {
		return c.Param
	}
	_, release, err := s.grammars.Table(ctx, *c.Else)
	if err != nil {
		return c.Param
	}
	release()
	return toolsParam
}

// thoughtOf says whether the model thinks before it answers this prompt.
func thoughtOf(tok *tokenizer.Tokenizer, r text.Reasoning, prompt []int32) thought {
	if r.Closes == "" {
		return thought{}
	}
	closes, err := tok.Encode(r.Closes, tokenizer.EncodeOptions{ParseSpecial: true})
	if err != nil || len(closes) == 0 {
		return thought{}
	}
	if r.Always {
		return thought{underWay: true, closes: closes}
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

// prepare begins to make the mask of the next token; it is made while the step is
// computed.
func (c *constrained) prepare() {
	if c == nil || c.free || c.coming != nil || c.thought.underWay {
		return
	}
	coming, m := make(chan masked, 1), c.matcher
	c.coming = coming
	go func() {
		bits, err := m.Mask(context.Background())
		coming <- masked{bits, err}
	}()
}

// finish waits for what was begun, and lets go of the constraint.
func (c *constrained) finish() {
	if c == nil {
		return
	}
	if c.coming != nil {
		<-c.coming
		c.coming = nil
	}
	c.release()
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

// fits reports whether a form that has free text allows a token.
func (c *constrained) fits(token int32) bool {
	if c == nil || !c.free || c.lost || c.thought.underWay || c.thought.may && token == c.thought.opens {
		return true
	}
	m := c.matcher
	if c.ends[token] && c.marks[token] == "" {
		return m.Accepting()
	}
	return m.Advance(c.spelt(token))
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
	if c == nil || !c.free || err == nil {
		return false
	}
	c.lost = true
	return true
}

// apply writes the logits of what may come next, all others are minus infinity.
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
	bits, err := c.mask()
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
	if !c.begun {
		c.forbidOtherwiseShown(bits, out)
	}
	c.control(allow)
	if !slices.ContainsFunc(out, func(v float32) bool { return v > never }) {
		return errors.New("no token of the vocabulary can continue the output as the constraint requires")
	}
	return nil
}

// mask is that of the next token.
func (c *constrained) mask() ([]uint64, error) {
	if c.free {
		return c.matcher.Mask(context.Background())
	}
	c.prepare()
	m := <-c.coming
	c.coming = nil
	return m.bits, m.err
}

// control allows what shows nothing and may come: the end of the answer, a mark, the
// beginning of a thought.
func (c *constrained) control(allow func(id int32)) {
	if c.matcher.Accepting() {
		for id := range c.ends {
			allow(id)
		}
	}
	for id, mark := range c.marks {
		if m := c.matcher; m.Advance([]byte(mark)) {
			allow(id)
		}
	}
	if c.thought.may {
		allow(c.thought.opens)
	}
}

// forbidOtherwiseShown leaves out what would be shown otherwise at the start of a
// text than behind one: decoders that write blanks in front of words leave out
// the first. Only tokens that begin with a blank can be such.
func (c *constrained) forbidOtherwiseShown(bits []uint64, out []float32) {
	for id := range int32(len(out)) {
		if !grammar.Allows(bits, id) {
			continue
		}
		spelt := c.tok.Bytes(id)
		if len(spelt) == 0 || spelt[0] != ' ' {
			continue
		}
		if shown, err := c.tok.Decode([]int32{id}, true); err != nil || shown != string(spelt) {
			out[id] = float32(math.Inf(-1))
		}
	}
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
		t.last = append(t.last, id)
		t.last = t.last[max(0, len(t.last)-len(t.closes)):]
		if slices.Equal(t.last, t.closes) {
			t.underWay = false
		}
		c.begun = true
		return false, nil
	}
	if t.may && id == t.opens {
		t.may, t.underWay, c.begun = false, true, true
		c.matcher = c.matcher.Behind()
		return false, nil
	}
	t.may, c.begun = false, true
	if c.lost {
		return false, nil
	}
	if !c.matcher.Advance(c.spelt(id)) {
		if c.loses(errNoFit) {
			return false, nil
		}
		return false, fmt.Errorf("token %d does not satisfy the output constraint", id)
	}
	return c.matcher.Ended(), nil
}

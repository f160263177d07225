// Package output assembles the output of one request: it turns the tokens that a model
// generates into text, reasoning, tool calls and log-probabilities, and finds where the
// answer ends.
//
// A token passes through an Assembler in this order: the decoder completes characters,
// the Reasoner separates reasoning from the answer, Calls parses tool calls, stop
// strings end the text, and log-probabilities wait until the text of their token is
// shown. The result is a list of Deltas.
//
// It knows no engine, scheduler or stream, and nothing in it blocks. The length of an
// answer is limited by its caller.
//
// Start reading at Assembler.Push.
package output

import (
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// Delta is the output of one step for an answer. Its fields are in the order in
// which a client reads them; a Delta with Calls has no text.
type Delta struct {
	// Tokens generated, without the one that ends the turn.
	Tokens          []int32
	Reasoning, Text string
	// Logprobs of the tokens whose text is shown.
	Logprobs []sample.Ranked
	Calls    []Call
}

// Options of an Assembler.
type Options struct {
	Tokenizer *tokenizer.Tokenizer
	// Continues is true if the answer begins in the middle of the text of its prompt.
	Continues bool
	// Stop strings end the text; they are not shown.
	Stop []string
	// Ends are tokens that end the answer. Stop strings end it only after MinTokens.
	Ends      map[int32]bool
	MinTokens int
	// Reasoner counts reasoning tokens; with SplitReasoning it also separates the
	// reasoning from the answer. If Calls separates it, SplitReasoning is false.
	Reasoner       *Reasoner
	SplitReasoning bool
	Calls          *Calls
}

// symbolBytes is what the parser of calls keeps for a byte of text.
const symbolBytes = 2

// Assembler assembles the output of one request. It is for one goroutine.
type Assembler struct {
	decoder   *tokenizer.Decoder
	stops     *sample.StopMatcher
	ends      map[int32]bool
	minTokens int
	generated int
	// counter counts reasoning tokens. reasoner is the same one, or nil if the
	// reasoning is not separated here.
	counter, reasoner *Reasoner
	calls             *Calls
	pending           pendingLogprobs
	deltas            []Delta
}

// New returns an Assembler.
func New(o Options) *Assembler {
	a := &Assembler{
		decoder: o.Tokenizer.NewDecoder(true), stops: sample.NewStopMatcher(o.Stop), ends: o.Ends, minTokens: o.MinTokens,
		counter: o.Reasoner, calls: o.Calls,
	}
	if o.Continues {
		a.decoder.Continue()
	}
	if o.Calls == nil && o.Reasoner != nil {
		o.Reasoner.Interrupts = nil // nothing that begins a call means one
	}
	if o.SplitReasoning {
		a.reasoner = o.Reasoner
	}
	return a
}

// Push takes the next token, and its log-probability if that is wanted. stopped is true
// if the answer ends with it. The deltas are valid until the next call.
func (a *Assembler) Push(token int32, ranked *sample.Ranked) (deltas []Delta, stopped bool, err error) {
	a.generated++
	if a.ends[token] {
		return a.Flush(false), true, nil
	}
	text, err := a.decoder.Push(token)
	if err != nil {
		return nil, false, err
	}
	a.restart()
	if a.reasoner == nil {
		a.counter.push(token, text)
	}
	reasoning, text, counts := a.reasoner.push(token, a.calls.shown(text))
	if !a.reasoner.thinking() {
		text += a.calls.mark(token, a.decoder)
	}
	if !counts {
		ranked = nil
	}
	a.pending.add(ranked, 0)
	a.emit(Delta{Tokens: []int32{token}, Reasoning: reasoning})
	stopped = a.show(a.calls.push(text))
	return a.deltas, stopped, nil
}

// Flush returns what decoder, parser and stop strings hold back. cut is true if a limit
// ended the answer.
func (a *Assembler) Flush(cut bool) []Delta {
	a.restart()
	reasoning, text := a.reasoner.flush(a.calls.shown(a.decoder.Flush()))
	a.emit(Delta{Reasoning: reasoning})
	if a.show(append(a.calls.push(text), a.calls.flush(cut)...)) {
		return a.deltas
	}
	held := a.stops.Flush()
	last := a.pending.show(len(held))
	if !a.calls.called() {
		last = append(last, a.pending.flush()...)
	}
	a.emit(Delta{Text: held, Logprobs: last})
	return a.deltas
}

// Stop is the stop string that ended the answer; empty if none did.
func (a *Assembler) Stop() string { return a.stops.Matched() }

// Held is how many bytes the assembler keeps of text and log-probabilities that are not shown.
func (a *Assembler) Held() int64 {
	n := a.pending.bytes
	if a.calls != nil {
		n += symbolBytes * int64(a.calls.held)
	}
	return n
}

// ReasoningTokens is the number of tokens generated while the model was thinking.
func (a *Assembler) ReasoningTokens() int { return a.counter.count() }

// BrokenCalls is the number of tool calls that were returned as text.
func (a *Assembler) BrokenCalls() int { return a.calls.broken() }

// show emits parts of the answer. stopped is true if a stop string or the only call
// ended it.
func (a *Assembler) show(segments []segment) (stopped bool) {
	for _, s := range segments {
		if s.calls != nil {
			a.pending.drop()
			a.emit(Delta{Text: a.stops.Break()})
			a.emit(Delta{Calls: s.calls})
			continue
		}
		shown, stopped := s.text, false
		if a.minTokens == 0 || a.generated > a.minTokens {
			shown, stopped = a.stops.Push(s.text)
		}
		a.pending.decode(len(s.text))
		a.emit(Delta{Text: shown, Reasoning: s.reasoning, Logprobs: a.pending.show(len(shown))})
		if stopped {
			return true
		}
	}
	if a.calls.closed(segments) {
		a.pending.drop()
	}
	return a.calls.done()
}

// restart forgets the deltas of the last call.
func (a *Assembler) restart() {
	clear(a.deltas)
	a.deltas = a.deltas[:0]
}

func (a *Assembler) emit(d Delta) {
	if len(d.Tokens) > 0 || d.Reasoning != "" || d.Text != "" || len(d.Logprobs) > 0 || len(d.Calls) > 0 {
		a.deltas = append(a.deltas, d)
	}
}

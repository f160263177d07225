package engine

import (
	"context"
	"io"
	"slices"
	"sync"

	"metalfleet.dev/metalfleet/metal/engine/output"
	"metalfleet.dev/metalfleet/metal/sample"
)

// FinishReason says why an answer ended.
type FinishReason string

// The reasons an answer ends.
const (
	// Stop: the model ended its turn, or a stop string came.
	Stop FinishReason = "stop"
	// Length: the limit of the request, or the context, is used up.
	Length FinishReason = "length"
	// Error: Finished.Err is the cause.
	Error FinishReason = "error"
)

// Usage counts tokens. Generated includes the token that ended the turn, and those of
// Reasoning. Cached tokens of the prompt were restored and not computed.
type Usage struct{ Prompt, Generated, Cached, Reasoning int }

// Finished is the last event of every stream.
type Finished struct {
	Reason FinishReason
	// Stop is the stop string that ended the text, if one did.
	Stop string
	// Full is true if the answer has Length because the context was used up before
	// the limit of the request.
	Full  bool
	Usage Usage
	// TextCalls is the number of tool calls that were returned as text because they were
	// malformed.
	TextCalls int
	// Err is set if the answer is incomplete.
	Err *Refusal
}

// Event is a piece of an answer, or its end.
type Event struct {
	// Text is whole characters; it may be empty.
	Text string
	// Reasoning is whole characters of the model's reasoning, if it is separated.
	Reasoning string
	// Calls are pieces of tool calls, after Text and Reasoning.
	Calls []output.Call
	// Prompt is the text of the prompt, if it is echoed. It comes first.
	Prompt string
	// PromptLogprobs of the tokens of the prompt, if they are wanted, in order and before
	// all others. The first token has no log-probability: it has only its id.
	PromptLogprobs []sample.Ranked
	// Tokens are those of all this and of text that is still held back, without the token
	// that ends a turn.
	Tokens []int32
	// Logprobs of the tokens that Text shows, if they are wanted: of each once the first
	// of its text is shown. A token that only belongs to a stop string, or ends a turn,
	// has none.
	Logprobs []sample.Ranked
	// Progress of the prompt, if it is wanted. It comes before all text.
	Progress *Progress
	// Finished is set on the last event.
	Finished *Finished
}

// Progress is how much of a prompt has been computed: Processed tokens, including
// the Cached ones, which were restored. The first report has no others.
type Progress struct{ Processed, Cached int }

// Stream is the output of an admitted request. Its producer never waits for its reader:
// events that are not read yet are joined, and the length of an answer is bounded.
type Stream struct {
	// PromptTokens after template and tokenizer.
	PromptTokens int

	spell  func(token int32) []byte
	ready  chan struct{}
	cancel func()

	// forget is called when it is closed, and aborted is closed when its output is dropped.
	forget  func()
	aborted chan struct{}

	mu sync.Mutex
	// mu guards the fields after it.
	prompt    []int32 // until Next is called
	text      []byte
	thoughts  []byte
	tokens    []int32
	ranked    []sample.Ranked
	calls     []output.Call
	arguments []byte // of the last of calls, after those that it has
	progress  *Progress
	echoed    string
	prompts   []sample.Ranked // of the prompt's tokens
	rest      *Event          // of one that was read in part, which is read first
	before    []Event         // whole ones, which are read next
	finished  *Finished
	delivered bool
	closed    bool // output is dropped
	dropped   bool // aborted is closed
	after     func()
	unread    unread
}

func newStream(prompt []int32, spell func(token int32) []byte, u unread) *Stream {
	return &Stream{PromptTokens: len(prompt), prompt: prompt, spell: spell, ready: make(chan struct{}, 1), aborted: make(chan struct{}), unread: u}
}

// Prompt returns the ids of the prompt. It must be called before Next.
func (s *Stream) Prompt() []int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.prompt)
}

// Spell returns the bytes that a token adds to a text, which need not be whole characters.
// The caller must not change them.
func (s *Stream) Spell(token int32) []byte { return s.spell(token) }

// Next waits for the next piece. After the event with Finished set it returns
// io.EOF.
func (s *Stream) Next(ctx context.Context) (Event, error) {
	for {
		ev, ok, over := s.take()
		if over {
			return Event{}, io.EOF
		}
		if ok {
			return ev, nil
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// Cancel ends the request; its stream still gets a Finished.
func (s *Stream) Cancel() { s.cancel() }

// Close ends the request, if it runs, and drops what was not read. Each stream that the engine
// returned must be closed: what was read last counts as output that is being sent until then.
func (s *Stream) Close() {
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Lock()
	s.closed, s.unread.taken = true, 0
	s.drop()
	s.mu.Unlock()
	if s.forget != nil {
		s.forget()
	}
}

// Aborted is closed when the engine drops what the client has not read. Next then returns the
// end of the stream, if it has not before.
func (s *Stream) Aborted() <-chan struct{} { return s.aborted }

// abort drops the output of a stream that has ended, which then ends with a refusal.
func (s *Stream) abort(r *Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished == nil || s.dropped {
		return
	}
	s.closed, s.dropped = true, true
	s.drop()
	s.finished = &Finished{Reason: Error, Err: r, Usage: s.finished.Usage}
	close(s.aborted)
}

// drop forgets what was not read; it is called with mu held.
func (s *Stream) drop() {
	s.cut()
	s.rest, s.before, s.progress = nil, nil, nil
	s.unread.held, s.unread.waiting, s.unread.kept = 0, 0, 0
	s.unread.settle()
}

func (s *Stream) take() (ev Event, ok, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.unread.settle()
	s.unread.taken, s.prompt = 0, nil
	switch {
	case s.delivered:
		return Event{}, false, true
	case s.rest != nil:
		ev, s.rest = *s.rest, nil
	case len(s.before) > 0:
		ev, s.before[0] = s.before[0], Event{} // freed before the rest
		s.before = s.before[1:]
		s.unread.waiting -= eventBytes
	case s.progress != nil:
		ev = Event{Progress: s.progress}
		s.progress = nil
	case s.empty() && s.finished == nil:
		return Event{}, false, false
	case s.empty():
		s.delivered = true
		return Event{Finished: s.finished}, true, false
	default:
		ev = s.cut()
	}
	if ev, s.rest = ev.split(); s.rest == nil {
		s.unread.kept = 0
	} else {
		s.unread.kept += int64(len(ev.Prompt)) + bytesOf(ev.Text, ev.Reasoning, nil, nil, ev.Calls)
	}
	s.unread.waiting -= ev.bytes()
	s.unread.taken = ev.sentBytes()
	if s.finished != nil && s.rest == nil && len(s.before) == 0 && s.progress == nil && s.empty() {
		ev.Finished, s.delivered = s.finished, true
	}
	return ev, true, false
}

// empty reports whether nothing came since the last cut; it is called with mu held.
func (s *Stream) empty() bool {
	return s.echoed == "" && len(s.prompts) == 0 && len(s.calls) == 0 && len(s.text) == 0 && len(s.thoughts) == 0 && len(s.tokens) == 0 && len(s.ranked) == 0
}

// cut returns what came since the last cut; it is called with mu held.
func (s *Stream) cut() Event {
	s.joinArguments()
	ev := Event{Text: string(s.text), Reasoning: string(s.thoughts), Calls: s.calls, Tokens: s.tokens, Logprobs: s.ranked, Prompt: s.echoed, PromptLogprobs: s.prompts}
	s.echoed, s.prompts = "", nil
	s.text, s.thoughts, s.calls, s.tokens, s.ranked = nil, nil, nil, nil, nil
	return ev
}

// pushProgress notes how much of the prompt has been computed. It replaces progress that
// was not read, except the first, before anything is computed.
func (s *Stream) pushProgress(p Progress) {
	s.mu.Lock()
	if old := s.progress; old != nil && old.Processed == old.Cached && !s.closed {
		s.before = append(s.before, Event{Progress: old})
		s.unread.waiting += eventBytes
	}
	s.progress = &p
	s.mu.Unlock()
	s.notify()
}

// push adds to the answer, of which held bytes wait for what comes next. within is false if the
// output that waits exceeds the share of its tenant.
func (s *Stream) push(deltas []output.Delta, held int64) (within bool) {
	s.mu.Lock()
	s.unread.held = held
	for _, d := range deltas {
		if s.closed {
			break
		}
		if (d.Text != "" || d.Reasoning != "") && len(s.calls) > 0 { // text after a call stays after it
			s.before = append(s.before, s.cut())
			s.unread.waiting += eventBytes
		}
		s.tokens = append(s.tokens, d.Tokens...)
		s.text, s.thoughts = append(s.text, d.Text...), append(s.thoughts, d.Reasoning...)
		s.ranked = append(s.ranked, d.Logprobs...)
		s.pushCalls(d.Calls)
		s.unread.waiting += bytesOf(d.Text, d.Reasoning, d.Tokens, d.Logprobs, d.Calls)
	}
	within = s.unread.settle()
	s.mu.Unlock()
	s.notify()
	return within
}

// pushCalls joins pieces of calls; it is called with mu held.
func (s *Stream) pushCalls(calls []output.Call) {
	for _, c := range calls {
		last := len(s.calls) - 1
		if last >= 0 && c.Name == "" && !s.calls[last].Ended {
			s.arguments = append(s.arguments, c.Arguments...)
			s.calls[last].Ended, s.calls[last].Written = c.Ended, c.Written
			continue
		}
		s.joinArguments()
		s.calls = append(s.calls, c)
	}
}

// joinArguments gives the last call its arguments; it is called with mu held.
func (s *Stream) joinArguments() {
	if len(s.arguments) > 0 {
		s.calls[len(s.calls)-1].Arguments += string(s.arguments)
		s.arguments = nil
	}
}

// expectPrompt counts n bytes of the prompt that pushPrompt adds next. It counts none if they
// exceed the share of the tenant: within is false then.
func (s *Stream) expectPrompt(n int64) (within bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread.held = n
	if within = s.unread.settle(); !within {
		s.unread.held = 0
		s.unread.settle()
	}
	return within
}

// pushPrompt adds text of the prompt, and the log-probabilities of more of its tokens. within is
// false if the output that waits exceeds the share of its tenant.
func (s *Stream) pushPrompt(text string, ranked []sample.Ranked) (within bool) {
	s.mu.Lock()
	s.unread.held = 0
	if !s.closed {
		s.echoed += text
		s.prompts = append(s.prompts, ranked...)
		s.unread.waiting += int64(len(text)) + rankedBytes(ranked)
	}
	within = s.unread.settle()
	s.mu.Unlock()
	s.notify()
	return within
}

// finish ends the stream; only the first call counts.
func (s *Stream) finish(f Finished) {
	s.mu.Lock()
	if s.finished == nil {
		if f.Err != nil {
			f.Reason = Error
		}
		f.Usage.Prompt = s.PromptTokens
		s.finished = &f
		s.unread.held = 0
		s.unread.settle()
		if s.after != nil {
			s.after()
		}
	}
	s.mu.Unlock()
	s.notify()
}

// onFinish calls f once the stream is finished, at once if it is.
func (s *Stream) onFinish(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished != nil {
		f()
		return
	}
	s.after = f
}

func (s *Stream) notify() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

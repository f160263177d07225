package engine

import (
	"context"
	"io"
	"slices"
	"sync"

	"metalfleet.dev/metalfleet/metal/sample"
)

// FinishReason says why an answer ended.
type FinishReason string

// The reasons an answer ends.
const (
	// Stop: the model ended its turn, or a stop string came.
	Stop FinishReason = "stop"
	// Length: the wanted or the possible number of tokens is used up.
	Length FinishReason = "length"
	// Error: Finished.Err holds why.
	Error FinishReason = "error"
)

// Usage counts tokens. Generated includes the token that ended the turn, and those
// of Reasoning; Cached ones of the prompt were restored and not computed.
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
	// TextCalls began as calls of tools and were returned as text.
	TextCalls int
	// Err is set when the answer did not come to its end.
	Err *Refusal
}

// Event is a piece of an answer, or its end.
type Event struct {
	// Text is whole characters; it may be empty.
	Text string
	// Reasoning is whole characters of what the model thinks, where it was asked to
	// be split off.
	Reasoning string
	// Calls are pieces of calls of tools, behind Text and Reasoning.
	Calls []Call
	// Prompt is the text of the prompt, where it is to be echoed. It comes first.
	Prompt string
	// PromptLogprobs, where they are wanted, of the tokens of the prompt, in order
	// and before all others. The first token has none: it is named alone.
	PromptLogprobs []sample.Ranked
	// Tokens are those behind all that and any text still held back. The token
	// that ends a turn is not among them.
	Tokens []int32
	// Logprobs, where they are wanted, of the tokens that Text shows: of each once
	// the first of its text is shown. What belongs to a stop string alone, or ends
	// a turn, has none.
	Logprobs []sample.Ranked
	// Progress of the prompt, where it is wanted. It comes before all text.
	Progress *Progress
	// Finished is set on the last event.
	Finished *Finished
}

// Progress is how much of a prompt has been computed: Processed tokens, including
// the Cached ones, which were restored.
type Progress struct{ Processed, Cached int }

// Stream is an admitted request. Its producer never waits for its reader:
// pieces that are not read yet are joined, and an answer is bounded.
type Stream struct {
	// PromptTokens after template and tokenizer.
	PromptTokens int

	prompt []int32
	spell  func(token int32) []byte
	ready  chan struct{}
	cancel func()

	mu sync.Mutex
	// All below are guarded by mu.
	text      []byte
	thoughts  []byte
	tokens    []int32
	ranked    []sample.Ranked
	unread    int64 // bytes of ranked and prompts
	calls     []Call
	progress  *Progress
	echoed    string
	prompts   []sample.Ranked // of the prompt's tokens
	before    []Event         // whole ones, that are read first
	finished  *Finished
	delivered bool
	after     func()
}

func newStream(prompt []int32, spell func(token int32) []byte) *Stream {
	return &Stream{PromptTokens: len(prompt), prompt: prompt, spell: spell, ready: make(chan struct{}, 1)}
}

// Prompt returns the ids of the prompt.
func (s *Stream) Prompt() []int32 { return slices.Clone(s.prompt) }

// Spell returns the bytes that a token stands for behind others, which need not
// be whole characters. The caller must not change them.
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

func (s *Stream) take() (ev Event, ok, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.delivered {
		return Event{}, false, true
	}
	if len(s.before) > 0 {
		ev, s.before = s.before[0], s.before[1:]
		return ev, true, false
	}
	if s.progress != nil {
		ev = Event{Progress: s.progress}
		s.progress = nil
		return ev, true, false
	}
	if s.echoed == "" && len(s.prompts) == 0 && len(s.calls) == 0 && len(s.text) == 0 && len(s.thoughts) == 0 && len(s.tokens) == 0 && len(s.ranked) == 0 && s.finished == nil {
		return Event{}, false, false
	}
	ev = s.cut()
	s.unread = 0
	ev.Finished = s.finished
	s.delivered = s.finished != nil
	return ev, true, false
}

// cut is what came since the last cut; it is called with mu held.
func (s *Stream) cut() Event {
	ev := Event{Text: string(s.text), Reasoning: string(s.thoughts), Calls: s.calls, Tokens: s.tokens, Logprobs: s.ranked, Prompt: s.echoed, PromptLogprobs: s.prompts}
	s.echoed, s.prompts = "", nil
	s.text, s.thoughts, s.calls, s.tokens, s.ranked = nil, nil, nil, nil, nil
	return ev
}

// progressed notes how much of the prompt has been computed. What was not read of
// it before is replaced.
func (s *Stream) progressed(p Progress) {
	s.mu.Lock()
	s.progress = &p
	s.mu.Unlock()
	s.notify()
}

// push adds a token and what it adds to the thoughts; the reader is told of it by
// notify.
func (s *Stream) push(token int32, thoughts string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order(thoughts != "")
	s.thoughts = append(s.thoughts, thoughts...)
	s.tokens = append(s.tokens, token)
}

// pushPrompt adds text of the prompt, and how likely more of its tokens were.
func (s *Stream) pushPrompt(text string, ranked []sample.Ranked) {
	s.mu.Lock()
	s.echoed += text
	s.prompts = append(s.prompts, ranked...)
	for _, r := range ranked {
		s.unread += r.Bytes()
	}
	s.mu.Unlock()
	s.notify()
}

// order keeps what comes behind a call behind it; it is called with mu held.
func (s *Stream) order(behind bool) {
	if behind && len(s.calls) > 0 {
		s.before = append(s.before, s.cut())
	}
}

// pushCalls adds pieces of calls.
func (s *Stream) pushCalls(calls []Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range calls {
		last := len(s.calls) - 1
		if last >= 0 && c.Name == "" && !s.calls[last].Ended {
			s.calls[last].Arguments += c.Arguments
			s.calls[last].Ended, s.calls[last].Written = c.Ended, c.Written
			continue
		}
		s.calls = append(s.calls, c)
	}
}

// unreadBytes are what the log-probabilities take that nobody read yet: of all
// that waits for a reader they alone are as much as a prompt's keys and values.
func (s *Stream) unreadBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unread
}

// pushText adds text, and thoughts before it.
func (s *Stream) pushText(text, thoughts string, ranked []sample.Ranked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order(text != "" || thoughts != "")
	s.text, s.thoughts = append(s.text, text...), append(s.thoughts, thoughts...)
	s.ranked = append(s.ranked, ranked...)
	for _, r := range ranked {
		s.unread += r.Bytes()
	}
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

package engine

import (
	"fmt"
	"slices"
	"sync"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/metal/engine/output"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/share"
)

const (
	// maxUnread bounds the output of all requests that was not sent, in bytes. A tenant has
	// at most half of it, so that those of others continue.
	maxUnread = 32 << 20
	// maxRanked is how many tokens of the answer, and of the prompt, have log-probabilities in
	// one event: a message has no more, and what is not in one waits in its short form.
	maxRanked = 16
	// maxPrompt is how many bytes of an echoed prompt one event has. An event that was sent may lie
	// in the transport until the client reads, when the next one is being sent.
	maxPrompt = 64 << 10
	// maxText is how many bytes of text, of reasoning, and of calls one event has, maxCalls how many
	// calls, and maxTokens how many tokens: with the parts of a prompt all are less than an agent takes in one message, of which
	// it may get one of each request at once.
	maxText, maxCalls, maxTokens = 64 << 10, 256, 16 << 10
	// eventBytes is what an event takes by itself, and sentLogprob a log-probability in the
	// form in which it is sent.
	eventBytes, sentLogprob = 320, 140
)

// unread counts the output of one request in the share of its tenant, from when it is made
// until it is sent.
type unread struct {
	share  *share.Bytes // nil counts nothing
	tenant string
	// held bytes wait for the text after them, waiting ones for the client to read them, and
	// taken ones were read last and are being sent. kept ones were sent, and are in memory until the rest of
	// their text was. counted of all these are in the share.
	held, waiting, taken, kept, counted int64
}

// settle counts what changed. within is false if that exceeds the share of the tenant; it is
// counted all the same.
func (u *unread) settle() (within bool) {
	more := u.held + u.waiting + u.taken + u.kept - u.counted
	if u.share == nil || more == 0 {
		return true
	}
	u.counted += more
	if more < 0 {
		u.share.Give(u.tenant, -more)
		return true
	}
	if u.share.Take(u.tenant, more) {
		return true
	}
	u.share.Add(u.tenant, more)
	return false
}

// overflow drops the output of an answer that exceeds the share of its tenant, and returns the
// refusal with which it ends.
func (s *Stream) overflow() *Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &s.unread
	refusal := &Refusal{Kind: Aborted, RetryAfter: abortRetry, Message: fmt.Sprintf(
		"the answer was ended because its client and others of the same tenant have not read %d bytes of output, and at most %d may wait; read answers as they come, or ask for fewer log-probabilities",
		u.share.Of(u.tenant), u.share.Limit(u.tenant))}
	s.closed = true
	s.drop()
	return refusal
}

// bytesOf output that waits.
func bytesOf(text, reasoning string, tokens []int32, ranked []sample.Ranked, calls []output.Call) int64 {
	n := len(text) + len(reasoning) + 4*len(tokens)
	for _, c := range calls {
		n += len(c.Name) + len(c.Arguments) + len(c.Written)
	}
	return int64(n) + rankedBytes(ranked)
}

func rankedBytes(ranked []sample.Ranked) (n int64) {
	for _, r := range ranked {
		n += r.Bytes()
	}
	return n
}

// bytes of an event that waits.
func (ev *Event) bytes() int64 {
	return int64(len(ev.Prompt)) + rankedBytes(ev.PromptLogprobs) + bytesOf(ev.Text, ev.Reasoning, ev.Tokens, ev.Logprobs, ev.Calls)
}

// sentBytes of an event, while it is sent.
func (ev *Event) sentBytes() (n int64) {
	n = int64(len(ev.Prompt)) + bytesOf(ev.Text, ev.Reasoning, ev.Tokens, nil, ev.Calls)
	for _, all := range [][]sample.Ranked{ev.PromptLogprobs, ev.Logprobs} {
		for _, r := range all {
			n += int64(1+len(r.Top)) * sentLogprob
		}
	}
	return n
}

// split divides an event with more of the prompt, of the text or of the tokens, or with more
// log-probabilities, than one has.
func (ev *Event) split() (first Event, rest *Event) {
	switch {
	case len(ev.Prompt) > maxPrompt:
		rest = new(*ev)
		first.Prompt, rest.Prompt = cutText(ev.Prompt, maxPrompt)
	case len(ev.PromptLogprobs) > maxRanked:
		first = Event{Prompt: ev.Prompt}
		rest = new(*ev)
		rest.Prompt = ""
		first.PromptLogprobs, rest.PromptLogprobs = cutRanked(ev.PromptLogprobs)
	case len(ev.Text) > maxText: // without the prompt, which comes before it
		first, rest = Event{Prompt: ev.Prompt, PromptLogprobs: ev.PromptLogprobs}, new(*ev)
		rest.Prompt, rest.PromptLogprobs = "", nil
		first.Text, rest.Text = cutText(ev.Text, maxText)
	case len(ev.Reasoning) > maxText:
		first, rest = Event{Prompt: ev.Prompt, PromptLogprobs: ev.PromptLogprobs, Text: ev.Text}, new(*ev)
		rest.Prompt, rest.PromptLogprobs, rest.Text = "", nil, ""
		first.Reasoning, rest.Reasoning = cutText(ev.Reasoning, maxText)
	case bytesOf("", "", nil, nil, ev.Calls) > maxText || len(ev.Calls) > maxCalls:
		first = Event{Prompt: ev.Prompt, PromptLogprobs: ev.PromptLogprobs, Text: ev.Text, Reasoning: ev.Reasoning}
		rest = &Event{Tokens: ev.Tokens, Logprobs: ev.Logprobs}
		first.Calls, rest.Calls = cutCalls(ev.Calls)
	case len(ev.Tokens) > maxTokens:
		first, rest = *ev, new(Event)
		first.Tokens, rest.Tokens = ev.Tokens[:maxTokens:maxTokens], ev.Tokens[maxTokens:]
		first.Logprobs, rest.Logprobs = nil, ev.Logprobs
	case len(ev.Logprobs) > maxRanked:
		first, rest = *ev, new(Event)
		first.Logprobs, rest.Logprobs = cutRanked(ev.Logprobs)
	default:
		return *ev, nil
	}
	return first, rest
}

// cutText divides a text after most bytes, or up to three before, between two characters.
func cutText(text string, most int) (first, rest string) {
	n := most
	for n > most-utf8.UTFMax && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n], text[n:]
}

// cutCalls divides calls, or the first of them if it has more than maxText bytes.
func cutCalls(calls []output.Call) (first, rest []output.Call) {
	c := calls[0]
	if bytesOf("", "", nil, nil, calls[:1]) <= maxText {
		n := 1
		for n < len(calls) && n < maxCalls && bytesOf("", "", nil, nil, calls[:n+1]) <= maxText {
			n++
		}
		return calls[:n:n], calls[n:]
	}
	head, tail := output.Call{Name: c.Name}, c
	tail.Name = ""
	switch {
	case len(c.Arguments) > maxText:
		head.Arguments, tail.Arguments = cutText(c.Arguments, maxText)
	case c.Name != "" || c.Arguments != "":
		head.Arguments, tail.Arguments = c.Arguments, ""
	default:
		head.Written, tail.Written = cutText(c.Written, maxText)
	}
	return []output.Call{head}, append([]output.Call{tail}, calls[1:]...)
}

// cutRanked moves the first out, so that they are freed before the rest.
func cutRanked(all []sample.Ranked) (first, rest []sample.Ranked) {
	first = slices.Clone(all[:maxRanked])
	clear(all[:maxRanked])
	return first, all[maxRanked:]
}

// openStreams are the streams that were not closed yet.
type openStreams struct {
	mu  sync.Mutex
	all map[*Stream]struct{} // guarded by mu
}

func (o *openStreams) add(s *Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[*Stream]struct{}{}
	}
	o.all[s] = struct{}{}
	s.forget = func() { o.remove(s) }
}

func (o *openStreams) remove(s *Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, s)
}

// abort drops the output of streams that have ended.
func (o *openStreams) abort(r *Refusal) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for s := range o.all {
		s.abort(r)
	}
}

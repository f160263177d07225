package engine

import (
	"fmt"
	"sync"
)

const (
	// receivedBytes are what the input of all requests takes until it is turned into tokens. They
	// are part of the slack of footprint.EngineLimit. The half of them that one tenant gets is more
	// than a request body has.
	receivedBytes = 40 << 20
	// receivedTextBytes are those of an embedding model or reranker, where tokens wait as well.
	receivedTextBytes = 20 << 20
	// promptBytes are the tokens of the prompts of all requests, and their stop strings, until these
	// have ended: most of them wait. With a limit they are a part of what inputs have of its slack.
	promptBytes = 256 << 20
	// stopBytes is what a byte of a stop string takes, with its entry in a table of
	// sample.StopMatcher.
	stopBytes = 1 + 8
	// messageBytes is what a message, or a part of one, takes besides its texts.
	messageBytes = 256
)

// receive counts n bytes of input until release is called. A request is counted before it waits
// for a turn, so that those that wait take no more memory than there is.
func (p *inputProcessor) receive(tenant, param string, n int64) (release func(), refusal *Refusal) {
	if most := p.received.Limit(tenant); n > most {
		return nil, &Refusal{Kind: ContextLength, Param: param, Message: fmt.Sprintf("the input takes %d bytes of memory, want at most %d; shorten it", n, most)}
	}
	if !p.received.Take(tenant, n) {
		return nil, &Refusal{Kind: QueueFull, Param: param, Message: "long inputs of other requests wait to be read; try again", RetryAfter: retryAfter}
	}
	return sync.OnceFunc(func() { p.received.Give(tenant, n) }), nil
}

// holdPrompt counts the tokens and stop strings of a request until it ends: those of long prompts
// that wait are more than the requests that run.
func (p *inputProcessor) holdPrompt(s *sequence, stops []string) *Refusal {
	n := tokenBytes * int64(cap(s.tokens))
	for _, stop := range stops {
		n += stopBytes * int64(len(stop))
	}
	if most := p.prompts.Limit(s.owner); n > most {
		return p.tooLong(fmt.Sprintf("the prompt has %d tokens, which take %d bytes of memory with the stop strings, want at most %d", s.prompt, n, most))
	}
	if !p.prompts.Take(s.owner, n) {
		return &Refusal{Kind: QueueFull, Message: "the prompts of requests that wait take too much memory; try again", RetryAfter: retryAfter}
	}
	s.held = &heldBytes{account: p.prompts, tenant: s.owner, bytes: n}
	return nil
}

// inputParam is the field of a request that has its input.
func (r Request) inputParam() string {
	if r.Chat != nil {
		return "messages"
	}
	return "prompt"
}

// messages counts the messages of a conversation and their parts.
func (r Request) messages() int {
	n := len(r.Chat.Messages)
	for _, m := range r.Chat.Messages {
		n += len(m.Parts)
	}
	return n
}

// inputBytes are what the input of a request takes, the form of its answer and its stop strings.
// Images are counted by themselves.
func (r Request) inputBytes() int64 {
	n := int64(tokenBytes * len(r.Tokens))
	if r.Chat != nil {
		n += int64(r.Chat.Bytes() + messageBytes*r.messages())
	}
	if r.Prompt != nil {
		n += int64(len(*r.Prompt))
	}
	if r.Constraint != nil {
		n += int64(len(r.Constraint.Source))
		for _, c := range r.Constraint.Choices {
			n += textBytes + int64(len(c))
		}
	}
	for _, stop := range r.Stop {
		n += stopBytes * int64(len(stop))
	}
	return n
}

// checkInput refuses what is no input, and what is too long in any tokens.
func (p *inputProcessor) checkInput(r Request) *Refusal {
	inputs := 0
	for _, is := range []bool{r.Chat != nil, r.Prompt != nil, r.Tokens != nil} {
		if is {
			inputs++
		}
	}
	if inputs != 1 {
		return invalid("prompt", "want exactly one of messages, prompt and tokens")
	}
	switch {
	case r.Chat != nil:
		if n := r.Chat.Bytes(); n > p.context*chatBytesPerToken {
			return p.tooLong(fmt.Sprintf("the messages have %d bytes", n))
		}
	case r.Prompt != nil:
		return p.checkWritten(*r.Prompt)
	case len(r.Tokens) > p.context:
		return p.tooLong(fmt.Sprintf("the prompt has %d tokens", len(r.Tokens)))
	}
	return nil
}

// checkWritten refuses a prompt that has more bytes than the tokens of a context.
func (p *inputProcessor) checkWritten(prompt string) *Refusal {
	if len(prompt) > p.context*bytesPerToken {
		return p.tooLong(fmt.Sprintf("the prompt has %d bytes", len(prompt)))
	}
	return nil
}

package engine

import (
	"context"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/text"
)

// chain returns the keys under which a request finds and saves blocks. Every key is
// salted with the request's tenant, except those of the beginning that the deployment
// shares. A request with a salt of its own shares nothing.
func (p *prefixes) chain(a *active) *kv.Chain {
	c := kv.NewChain(p.shape, kv.Root(p.origin, a.salt))
	if a.salt.Extra != "" {
		return c
	}
	if n := p.sharedTokens(a.tokens); n > 0 {
		c.Share(p.common, n)
	}
	return c
}

// sharedTokens is how many tokens a prompt has in common with one of the shared
// prompts. All of them are stated by the deployment, so that finding them in the
// cache reveals no other request.
func (p *prefixes) sharedTokens(tokens []int32) int {
	longest := 0
	for _, s := range p.shared {
		n := 0
		for n < min(len(s), len(tokens)) && s[n] == tokens[n] {
			n++
		}
		longest = max(longest, n)
	}
	return longest
}

// sharedPrompts are the tokens of the shared prefixes, each as the beginning of a
// prompt and as the system message of a chat.
func (e *Engine) sharedPrompts(s *serving) (out [][]int32) {
	for i, prefix := range e.opts.SharedPrefixes {
		asChat := &text.Chat{Messages: []chat.Message{{Role: "system", Content: prefix}, {Role: "user", Content: "x"}}}
		for _, r := range []Request{{Prompt: &prefix}, {Chat: asChat}} {
			tokens, refusal := s.tokens(context.Background(), r)
			if refusal != nil {
				e.log.Warn("a shared prefix cannot be used", "index", i, "chat", r.Chat != nil, "reason", refusal.Message)
				continue
			}
			out = append(out, tokens)
		}
	}
	return out
}

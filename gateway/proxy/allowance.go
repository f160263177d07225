package proxy

import (
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/route"
)

const (
	// templateTokens are those that a chat template or a prompt of the model may add.
	templateTokens = 8 << 10
	// tokensPerByte of a body: normalization makes some characters longer.
	tokensPerByte = 4
	// unknownContext is the context length of a model whose length is unknown.
	unknownContext = 1 << 20
)

// allowanceOf returns how many tokens a request can use at most. A Mac may have been stolen:
// its counts are believed up to here only.
func allowanceOf(path string, e openai.Envelope, body []byte, candidates []*route.Model) agentapi.TokenCount {
	context := int64(0)
	for _, m := range candidates {
		context = max(context, m.Facts().Context)
	}
	if context == 0 {
		context = unknownContext
	}
	prompt, generated := context, context
	if e.Previous == "" && e.Reference == "" { // stored items are in the prompt, but not in the body
		prompt = min(prompt, tokensPerByte*int64(len(body))+templateTokens)
	}
	if e.MaxTokens > 0 {
		generated = min(generated, e.MaxTokens)
	}
	answers := int64(max(1, e.Choices))
	switch path {
	case dialect.PathEmbeddings, dialect.PathRerank, dialect.PathRerankV2, dialect.PathScore:
		return agentapi.TokenCount{Prompt: prompt * int64(max(1, e.Inputs))}
	}
	return agentapi.TokenCount{Prompt: prompt * answers, Generated: generated * answers}
}

// atMost returns the counts that are not above those of another.
func atMost(c, most agentapi.TokenCount) agentapi.TokenCount {
	return agentapi.TokenCount{Prompt: min(c.Prompt, most.Prompt), Generated: min(c.Generated, most.Generated)}
}

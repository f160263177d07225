package engine

import (
	"cmp"

	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/text"
)

// Request describes what to generate. Exactly one of Chat, Prompt and Tokens is
// set.
type Request struct {
	Chat   *text.Chat
	Prompt *string
	Tokens []int32
	// Adapter that answers; empty means the model alone.
	Adapter string
	// Images are the encoded images of the Chat, in the order of its parts.
	Images [][]byte
	// Sampling parameters; nil means Neutral with a random seed.
	Sampling *sample.Params
	// MaxTokens to generate, within the room that the context leaves; 0 means all of
	// that room.
	MaxTokens int
	// PromptOnly computes the prompt and generates nothing.
	PromptOnly bool
	// MinTokens come before an end of turn, a token of StopTokens or a string of Stop
	// can end the answer. A Constraint that nothing can follow ends it earlier.
	MinTokens int
	// IgnoreEnd continues after the tokens that end the model's turn; an answer with a
	// Constraint ends there all the same.
	IgnoreEnd bool
	// StopTokens end the text like the end of the model's turn.
	StopTokens []int32
	// Stop strings end the text; they are not shown.
	Stop []string
	// Priority: higher ones are admitted first. The default is 0.
	Priority int
	// Tenant of the request: cached prefixes are found only by requests of the same
	// tenant. Empty if there is one tenant.
	Tenant string
	// Client whose request it is if there is one tenant: clients share sequences, memory and
	// turns as tenants do.
	Client string
	// CacheSalt is the client's own: requests with a different one do not find the cached
	// prefixes of this one either.
	CacheSalt string
	// Constraint is the form of the answer; nil allows any.
	Constraint *Constraint
	// SplitReasoning separates the reasoning before the answer to a Chat from the answer.
	// Stop strings then apply to the answer only.
	SplitReasoning bool
	// Calls parses calls of the Chat's tools; nil leaves them in the text.
	Calls *Calls
	// Logprobs is the number of alternatives to return with the log-probability
	// of each token, as in sample.Rank; nil means no log-probabilities.
	Logprobs *int
	// Progress asks for events that report how much of the prompt is computed.
	Progress bool
	// Echo returns the text of a Prompt or of Tokens before the answer and, with
	// Logprobs, the log-probability of each of its tokens.
	Echo bool
}

// owner shares sequences, memory and turns with others.
func (r *Request) owner() string { return cmp.Or(r.Tenant, r.Client) }

// Constraint is the form that an answer must have, after the model's reasoning.
type Constraint struct {
	grammar.Spec
	// Param is the field of the client's request that has it.
	Param string
}

// Calls controls the use of the tools of a Chat.
type Calls struct {
	// Required: the answer is calls and nothing else. If Name is set, it is one call of
	// that function.
	Required bool
	Name     string
	// Single ends the answer after its first call.
	Single bool
	// Strict enforces as much as possible of the schemas of arguments. Without it, calls
	// in an answer that may have others are held to the names of functions and to the
	// types and members that schemas declare.
	Strict bool
}

// EmbedRequest asks for a vector of each text or, if there are no texts, of each list of
// tokens.
type EmbedRequest struct {
	// Tenant whose request it is, or client where there is one tenant.
	Tenant  string
	Texts   []string
	Tokens  [][]int32
	Options embed.Options
}

// Embedded is the answer; vectors are in the order of the texts.
type Embedded struct {
	Vectors      [][]float32
	PromptTokens int
}

// RerankRequest asks for a score of each document.
type RerankRequest struct {
	// Tenant whose request it is, or client where there is one tenant.
	Tenant    string
	Query     string
	Documents []string
	Options   embed.Options
}

// Reranked is the answer; scores are in the order of the documents.
type Reranked struct {
	Scores       []float32
	PromptTokens int
}

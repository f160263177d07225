package openai

import (
	"encoding/json"
	"strings"
)

// Roles of a chat message.
const (
	RoleSystem    = "system"
	RoleDeveloper = "developer"
	RoleUser      = "user"
	RoleAssistant = "assistant"
	RoleTool      = "tool"
)

// Finish reasons of a choice.
const (
	FinishStop   = "stop"
	FinishLength = "length"
	FinishCalls  = "tool_calls"
)

// DefaultCompletionTokens is how many tokens /v1/completions makes when the
// request names no limit. Chat completions have no such default: they run to
// the end of turn or of the context.
const DefaultCompletionTokens = 16

// Parameters are the fields that both text routes share. A nil pointer means
// that the field was absent or null.
type Parameters struct {
	Model       string   `json:"model"`
	MaxTokens   *int     `json:"max_tokens,omitempty"`
	Temperature *float64 `json:"temperature,omitempty"`
	TopP        *float64 `json:"top_p,omitempty"`
	TopK        *int     `json:"top_k,omitempty"`
	MinP        *float64 `json:"min_p,omitempty"`
	Seed        *int64   `json:"seed,omitempty"`

	FrequencyPenalty *float64 `json:"frequency_penalty,omitempty"`
	PresencePenalty  *float64 `json:"presence_penalty,omitempty"`

	// LogitBias is added to the logits of tokens, by their ids.
	LogitBias map[int32]float64 `json:"logit_bias,omitempty"`

	// Priority: lower ones go first, as vLLM has it; 0 is everybody's. nil where
	// the request says nothing.
	Priority *int `json:"priority,omitempty"`

	// N is how many answers are wanted to the same prompt; see Choices.
	N *int `json:"n,omitempty"`

	// Constraint is the form of the answer; nil is any.
	Constraint *Constraint `json:"constraint,omitempty"`

	Stop          []string       `json:"stop,omitempty"`
	Stream        bool           `json:"stream,omitempty"`
	StreamOptions *StreamOptions `json:"stream_options,omitempty"`
	User          string         `json:"user,omitempty"`
}

// StreamOptions change what a stream carries.
type StreamOptions struct {
	IncludeUsage bool `json:"include_usage,omitempty"`
}

// IncludeUsage says whether the stream ends with a usage chunk.
func (p *Parameters) IncludeUsage() bool {
	return p.StreamOptions != nil && p.StreamOptions.IncludeUsage
}

// Choices is how many answers are wanted, 1 where nothing is said.
func (p *Parameters) Choices() int {
	if p.N == nil {
		return 1
	}
	return *p.N
}

// ChatRequest is the body of POST /v1/chat/completions.
type ChatRequest struct {
	Parameters
	// MaxCompletionTokens is the newer name of MaxTokens; see TokenLimit.
	MaxCompletionTokens *int      `json:"max_completion_tokens,omitempty"`
	Messages            []Message `json:"messages"`
	// Logprobs asks for the log-probability of each token, TopLogprobs for those
	// of so many alternatives.
	Logprobs    bool `json:"logprobs,omitempty"`
	TopLogprobs *int `json:"top_logprobs,omitempty"`
	ToolUse
	// Effort is how much the model is to think; empty says nothing of it.
	Effort string `json:"reasoning_effort,omitempty"`
}

// TokenLimit is the most tokens the answer may have; ok is false where the
// request names no limit.
func (r *ChatRequest) TokenLimit() (limit int, ok bool) {
	switch {
	case r.MaxCompletionTokens != nil:
		return *r.MaxCompletionTokens, true
	case r.MaxTokens != nil:
		return *r.MaxTokens, true
	}
	return 0, false
}

// Message is one turn of a conversation.
type Message struct {
	Role    string  `json:"role"`
	Content Content `json:"content"`
	// Name tells speakers of one role apart; chat templates may use it.
	Name string `json:"name,omitempty"`
	// Reasoning of an assistant's turn; most templates leave out that of earlier
	// turns.
	Reasoning string `json:"reasoning_content,omitempty"`
	// Calls of tools by an assistant's turn, and of a tool's turn the call that it
	// answers.
	Calls  []Call `json:"-"`
	CallID string `json:"tool_call_id,omitempty"`
}

// Content is what a message says: a string, or a list of parts.
type Content struct {
	// Parts hold the content in order; a plain string is one text part.
	Parts []ContentPart
}

// ContentPart is one piece of a message. Only text parts exist so far.
type ContentPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// TextContent makes the content that is one string.
func TextContent(text string) Content {
	return Content{Parts: []ContentPart{{Type: "text", Text: text}}}
}

// Text joins the text parts without a separator.
func (c Content) Text() string {
	if len(c.Parts) == 1 {
		return c.Parts[0].Text
	}
	var b strings.Builder
	for _, p := range c.Parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// MarshalJSON writes one text part as a string and anything else as a list.
func (c Content) MarshalJSON() ([]byte, error) {
	if len(c.Parts) == 1 && c.Parts[0].Type == "text" {
		return json.Marshal(c.Parts[0].Text)
	}
	if c.Parts == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(c.Parts)
}

// CompletionRequest is the body of POST /v1/completions.
type CompletionRequest struct {
	Parameters
	Prompt Prompt `json:"prompt"`
	// Logprobs asks for the log-probability of each token, and those of so many
	// alternatives.
	Logprobs *int `json:"logprobs,omitempty"`
	// Echo puts the prompt, a text, in front of the answer.
	Echo bool `json:"echo,omitempty"`
}

// TokenLimit is the most tokens the answer may have.
func (r *CompletionRequest) TokenLimit() int {
	if r.MaxTokens != nil {
		return *r.MaxTokens
	}
	return DefaultCompletionTokens
}

// Prompt is a text or a list of token ids, never both.
type Prompt struct {
	Text   string
	Tokens []int32
}

// MarshalJSON writes tokens as a list and text as a string.
func (p Prompt) MarshalJSON() ([]byte, error) {
	if p.Tokens != nil {
		return json.Marshal(p.Tokens)
	}
	return json.Marshal(p.Text)
}

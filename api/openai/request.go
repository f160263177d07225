package openai

import (
	"encoding/json"
	"slices"
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

// DefaultCompletionTokens is the maximum number of tokens that /v1/completions
// generates when the request sets no limit. Chat completions have no such
// default: they continue to the end of the turn or of the context.
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

	// RepetitionPenalty divides or multiplies the logits of tokens of the prompt
	// and the output, as in Hugging Face's transformers and in vLLM.
	RepetitionPenalty *float64 `json:"repetition_penalty,omitempty"`

	// MinTokens come before anything but MaxTokens can end the output. IgnoreEOS
	// continues it after the end of the model's turn. StopTokens end it.
	MinTokens  *int    `json:"min_tokens,omitempty"`
	IgnoreEOS  bool    `json:"ignore_eos,omitempty"`
	StopTokens []int32 `json:"stop_token_ids,omitempty"`

	// LogitBias is added to the logits of tokens, by token id.
	LogitBias map[int32]float64 `json:"logit_bias,omitempty"`

	// Priority orders requests as in vLLM: lower values run first, 0 is the
	// default. It is nil when the request does not set it.
	Priority *int `json:"priority,omitempty"`

	// ReturnProgress asks a stream to report how much of the prompt has been
	// computed, as in llama.cpp.
	ReturnProgress bool `json:"return_progress,omitempty"`

	// N is the requested number of choices; see Choices.
	N *int `json:"n,omitempty"`

	// CacheKey names the conversation that the prompt belongs to; requests with the
	// same key are best served by the same Mac.
	CacheKey string `json:"prompt_cache_key,omitempty"`
	// CacheSalt separates the cached prompts of requests within a tenant: only
	// requests with the same salt find them.
	CacheSalt string `json:"cache_salt,omitempty"`

	// Constraint restricts the form of the response; nil means no restriction.
	Constraint *Constraint `json:"constraint,omitempty"`

	Stop          []string       `json:"stop,omitempty"`
	Stream        bool           `json:"stream,omitempty"`
	StreamOptions *StreamOptions `json:"stream_options,omitempty"`
}

// StreamOptions are options of a streamed response.
type StreamOptions struct {
	IncludeUsage bool `json:"include_usage,omitempty"`
	// ContinuousUsage includes the usage so far in each chunk of a stream that
	// includes usage.
	ContinuousUsage bool `json:"continuous_usage_stats,omitempty"`
}

// IncludeUsage reports whether the stream ends with a usage chunk.
func (p *Parameters) IncludeUsage() bool {
	return p.StreamOptions != nil && p.StreamOptions.IncludeUsage
}

// ContinuousUsage reports whether each chunk of the stream has the usage so far.
func (p *Parameters) ContinuousUsage() bool {
	return p.IncludeUsage() && p.StreamOptions.ContinuousUsage
}

// Choices returns the number of choices to generate; the default is 1.
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
	// Logprobs requests the log-probability of each token, TopLogprobs the
	// number of alternatives.
	Logprobs    bool `json:"logprobs,omitempty"`
	TopLogprobs *int `json:"top_logprobs,omitempty"`
	ToolUse
	Reasoning
}

// TokenLimit returns the maximum number of tokens to generate; ok is false when
// the request sets no limit.
func (r *ChatRequest) TokenLimit() (limit int, ok bool) {
	switch {
	case r.MaxCompletionTokens != nil:
		return *r.MaxCompletionTokens, true
	case r.MaxTokens != nil:
		return *r.MaxTokens, true
	}
	return 0, false
}

// Message is one message of a conversation.
type Message struct {
	Role    string  `json:"role"`
	Content Content `json:"content"`
	// Name distinguishes participants with the same role; chat templates may
	// use it.
	Name string `json:"name,omitempty"`
	// Reasoning is the reasoning of an assistant's message; most chat templates
	// drop it for earlier turns.
	Reasoning string `json:"reasoning_content,omitempty"`
	// Calls are the tool calls of an assistant's message. For a tool's message,
	// CallID is the call that it answers.
	Calls  []Call `json:"-"`
	CallID string `json:"tool_call_id,omitempty"`
}

// Content is the content of a message: a string, or a list of parts.
type Content struct {
	// Parts hold the content in order; a plain string is one text part.
	Parts []ContentPart
}

// ContentPart is one part of a message: a text, or an image.
type ContentPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
	// Image of an image_url part.
	Image *Image `json:"-"`
}

// Seen reports whether there is an image among the parts.
func (c Content) Seen() bool {
	return slices.ContainsFunc(c.Parts, func(p ContentPart) bool { return p.Image != nil })
}

// Text returns the text parts, joined without a separator.
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

// MarshalJSON encodes one text part as a string and anything else as a list.
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
	// Prompts has at least one element. Each has its own choices.
	Prompts []Prompt `json:"prompt"`
	// Logprobs requests the log-probability of each token, with this number of
	// alternatives.
	Logprobs *int `json:"logprobs,omitempty"`
	// Echo returns the prompt in front of the output and, with Logprobs, the
	// log-probabilities of its tokens.
	Echo bool `json:"echo,omitempty"`
}

// TokenLimit returns the maximum number of tokens to generate; 0 computes only
// the prompt.
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

// MarshalJSON encodes tokens as a list and text as a string.
func (p Prompt) MarshalJSON() ([]byte, error) {
	if p.Tokens != nil {
		return json.Marshal(p.Tokens)
	}
	return json.Marshal(p.Text)
}

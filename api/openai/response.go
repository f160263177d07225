package openai

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Prefixes of response ids.
const (
	ChatIDPrefix       = "chatcmpl-"
	CompletionIDPrefix = "cmpl-"
)

// NewID generates a response id.
func NewID(prefix string) string {
	var b [12]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return prefix + hex.EncodeToString(b[:])
}

// Usage counts tokens.
type Usage struct {
	PromptTokens        int                  `json:"prompt_tokens"`
	CompletionTokens    int                  `json:"completion_tokens"`
	TotalTokens         int                  `json:"total_tokens"`
	PromptTokensDetails *PromptTokensDetails `json:"prompt_tokens_details,omitempty"`

	CompletionTokensDetails *CompletionTokensDetails `json:"completion_tokens_details,omitempty"`
}

// CompletionTokensDetails is the number of completion tokens that the model used
// for reasoning.
type CompletionTokensDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// Reasoning returns the number of tokens that the model used for reasoning.
func (u Usage) Reasoning() int {
	if u.CompletionTokensDetails == nil {
		return 0
	}
	return u.CompletionTokensDetails.ReasoningTokens
}

// PromptTokensDetails is the number of prompt tokens that were read from a
// cache.
type PromptTokensDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// NewUsage returns the counts and their total.
func NewUsage(prompt, completion int) Usage {
	return Usage{PromptTokens: prompt, CompletionTokens: completion, TotalTokens: prompt + completion}
}

// ChatCompletion is the non-streamed response of /v1/chat/completions.
type ChatCompletion struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []ChatChoice `json:"choices"`
	Usage   *Usage       `json:"usage,omitempty"`
}

// ChatChoice is one choice of a chat completion.
type ChatChoice struct {
	Index        int           `json:"index"`
	Message      AnswerMessage `json:"message"`
	Logprobs     *ChatLogprobs `json:"logprobs"`
	FinishReason string        `json:"finish_reason"`
}

// AnswerMessage is the assistant's message.
type AnswerMessage struct {
	Role    string  `json:"role"`
	Content *string `json:"content"` // null when there are only tool calls
	Refusal *string `json:"refusal"`
	ReasoningText
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
}

// ReasoningText is the model's reasoning before its answer, or the part that a chunk
// adds to it, under both names that clients read. No API of OpenAI's has it:
// DeepSeek, SGLang, llama.cpp and LM Studio write reasoning_content; vLLM, Ollama
// and OpenRouter write reasoning.
type ReasoningText struct {
	ReasoningContent string `json:"reasoning_content,omitempty"`
	Reasoning        string `json:"reasoning,omitempty"`
}

// NewReasoningText returns a text under both names.
func NewReasoningText(text string) ReasoningText {
	return ReasoningText{ReasoningContent: text, Reasoning: text}
}

// ChatCompletionChunk is one event of a streamed chat completion.
type ChatCompletionChunk struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	// Progress of the prompt, where the client asked for it.
	Progress *PromptProgress   `json:"prompt_progress,omitempty"`
	Choices  []ChatChunkChoice `json:"choices"`
	Usage    ChunkUsage        `json:"usage,omitzero"`
}

// PromptProgress is how much of a prompt has been computed, in tokens, as
// llama.cpp names it. Processed includes Cache, the tokens that were read from a
// cache.
type PromptProgress struct {
	Total     int `json:"total"`
	Cache     int `json:"cache"`
	Processed int `json:"processed"`
	// TimeMS is the time since the engine took the request, in milliseconds.
	TimeMS int64 `json:"time_ms"`
}

// ChatChunkChoice is the part of a chunk that belongs to one choice.
type ChatChunkChoice struct {
	Index        int           `json:"index"`
	Delta        Delta         `json:"delta"`
	Logprobs     *ChatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

// Delta is the part that a chunk adds to a message.
type Delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
	ReasoningText
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
}

// Completion is the non-streamed response of /v1/completions, and one event of
// its stream.
type Completion struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	// Progress of the prompt, where the client of a stream asked for it.
	Progress *PromptProgress    `json:"prompt_progress,omitempty"`
	Choices  []CompletionChoice `json:"choices"`
	Usage    ChunkUsage         `json:"usage,omitzero"`
}

// CompletionChoice is one choice, or the part that a chunk adds to it.
type CompletionChoice struct {
	Index        int                 `json:"index"`
	Text         string              `json:"text"`
	Logprobs     *CompletionLogprobs `json:"logprobs"`
	FinishReason *string             `json:"finish_reason"`
}

// ChunkUsage is the usage member of a stream's chunk, which has three states:
// absent (not requested), null (requested, not known yet) and known.
type ChunkUsage struct {
	Present bool
	Usage   *Usage
}

// IsZero reports whether the member is absent.
func (u ChunkUsage) IsZero() bool { return !u.Present }

// MarshalJSON encodes null or the figures.
func (u ChunkUsage) MarshalJSON() ([]byte, error) { return json.Marshal(u.Usage) }

// UnmarshalJSON decodes null or the figures.
func (u *ChunkUsage) UnmarshalJSON(b []byte) error {
	u.Present, u.Usage = true, nil
	return json.Unmarshal(b, &u.Usage)
}

// ModelList is the response of GET /v1/models.
type ModelList struct {
	Object string  `json:"object"`
	Data   []Model `json:"data"`
}

// Model is one served model, and the response of GET /v1/models/NAME.
type Model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	ModelFacts
}

// ModelFacts are members of a Model beyond OpenAI's, under the names by which
// clients of other servers read them. What is unknown is absent.
type ModelFacts struct {
	// MaxModelLen is the maximum length of a request in tokens, prompt and output
	// together, as vLLM names it; ContextLength is the same for other clients.
	MaxModelLen   int64 `json:"max_model_len,omitempty"`
	ContextLength int64 `json:"context_length,omitempty"`
	// Meta has the same as llama.cpp names it.
	Meta *ModelMeta `json:"meta,omitempty"`
	// Capabilities are what the model is made for.
	Capabilities []string `json:"capabilities,omitempty"`
}

// ModelMeta are facts as llama.cpp names them.
type ModelMeta struct {
	ContextTokens int64 `json:"n_ctx,omitempty"`
	// TrainedTokens is the longest context that the model was trained for.
	TrainedTokens int64 `json:"n_ctx_train,omitempty"`
	// Bytes of the weights.
	Bytes int64 `json:"size,omitempty"`
}

// NewModelFacts returns facts; those that are zero are unknown.
func NewModelFacts(context int64, meta ModelMeta, capabilities []string) ModelFacts {
	f := ModelFacts{MaxModelLen: context, ContextLength: context, Capabilities: capabilities}
	if meta.ContextTokens = context; meta != (ModelMeta{}) {
		f.Meta = &meta
	}
	return f
}

// NewModel returns a Model with its constant fields set.
func NewModel(id string, created int64, ownedBy string) Model {
	return Model{ID: id, Object: "model", Created: created, OwnedBy: ownedBy}
}

// NewModelList returns a list with its constant fields set; without models it
// is an empty list, not null.
func NewModelList(models ...Model) ModelList {
	return ModelList{Object: "list", Data: append([]Model{}, models...)}
}

// Marshal encodes a response as the API does: compact, without escaping <, >
// and &, and without a trailing newline.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

package anthropic

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"

	"metalfleet.dev/metalfleet/api/openai"
)

// Stop reasons.
const (
	StopEndTurn   = "end_turn"
	StopMaxTokens = "max_tokens"
	StopSequence  = "stop_sequence"
	StopToolUse   = "tool_use"
	// StopContext: the context was used up before max_tokens.
	StopContext = "model_context_window_exceeded"
)

// Usage counts the tokens of a message. InputTokens does not include the tokens
// that were read from a cache.
type Usage struct {
	InputTokens              int `json:"input_tokens"`
	CacheCreationInputTokens int `json:"cache_creation_input_tokens"`
	CacheReadInputTokens     int `json:"cache_read_input_tokens"`
	OutputTokens             int `json:"output_tokens"`

	OutputTokensDetails *OutputTokensDetails `json:"output_tokens_details,omitempty"`
}

// OutputTokensDetails is the number of output tokens that the model used for
// thinking.
type OutputTokensDetails struct {
	ThinkingTokens int `json:"thinking_tokens"`
}

// NewUsage counts prompt tokens, of which some were cached, and output tokens.
func NewUsage(prompt, cached, output int) Usage {
	return Usage{InputTokens: prompt - cached, CacheReadInputTokens: cached, OutputTokens: output}
}

// WithThinking adds how many of the output tokens were used for thinking, if any.
func (u Usage) WithThinking(tokens int) Usage {
	if tokens > 0 {
		u.OutputTokensDetails = &OutputTokensDetails{ThinkingTokens: tokens}
	}
	return u
}

// MessageAnswer is the non-streamed response of /v1/messages.
type MessageAnswer struct {
	ID           string        `json:"id"`
	Type         string        `json:"type"`
	Role         string        `json:"role"`
	Model        string        `json:"model"`
	Content      []AnswerBlock `json:"content"`
	StopReason   *string       `json:"stop_reason"`
	StopSequence *string       `json:"stop_sequence"`
	Usage        Usage         `json:"usage"`
}

// AnswerBlock is a content block of a response, or a delta of one.
type AnswerBlock struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	// PartialJSON is appended to the input.
	PartialJSON *string `json:"partial_json,omitempty"`
}

// TextBlock, ThinkingBlock and ToolUseBlock create the content blocks of a
// response. Thinking is not signed.
func TextBlock(text string) AnswerBlock { return AnswerBlock{Type: BlockText, Text: &text} }

// ThinkingBlock creates a block with the model's thinking.
func ThinkingBlock(text string) AnswerBlock {
	return AnswerBlock{Type: BlockThinking, Thinking: &text, Signature: new(string)}
}

// ToolUseBlock creates a tool call with a new id.
func ToolUseBlock(name string, input json.RawMessage) AnswerBlock {
	return AnswerBlock{Type: BlockToolUse, ID: newID("toolu_"), Name: name, Input: input}
}

// CountAnswer is the response of /v1/messages/count_tokens.
type CountAnswer struct {
	InputTokens int `json:"input_tokens"`
}

// NewID generates the id of a response.
func NewID() string { return newID("msg_") }

func newID(prefix string) string {
	var b [12]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return prefix + hex.EncodeToString(b[:])
}

// Answer builds the response to one request, streamed or not. The events of a
// stream come in this order: Opening once; Text, Thinking, Call and Input for
// each delta; Finish once. An Answer serves one stream.
type Answer struct {
	ID, Model string
	// PromptTokens is known before the response begins.
	PromptTokens int
	// open is the type of the current block, which has index index.
	open  string
	index int
}

// Stop is why a response ended: Reason, and for StopSequence the sequence.
type Stop struct{ Reason, Sequence string }

func (s Stop) sequence() *string {
	if s.Reason != StopSequence {
		return nil
	}
	return &s.Sequence
}

// Whole returns the non-streamed response.
func (a *Answer) Whole(blocks []AnswerBlock, stop Stop, u Usage) MessageAnswer {
	m := a.message(u)
	m.Content = append(m.Content, blocks...)
	m.StopReason, m.StopSequence = &stop.Reason, stop.sequence()
	return m
}

func (a *Answer) message(u Usage) MessageAnswer {
	return MessageAnswer{ID: a.ID, Type: "message", Role: openai.RoleAssistant, Model: a.Model, Content: []AnswerBlock{}, Usage: u}
}

// ping is the event that keeps an idle stream open.
type ping struct {
	Type string `json:"type"`
	// Progress of the prompt, where the client asked for it.
	Progress *openai.PromptProgress `json:"prompt_progress,omitempty"`
}

// Ping returns the event that keeps an idle stream open. It may come at any
// point of a stream.
func Ping(p *openai.PromptProgress) []openai.NamedEvent {
	return []openai.NamedEvent{{Name: "ping", Data: ping{"ping", p}}}
}

type messageStart struct {
	Type    string        `json:"type"`
	Message MessageAnswer `json:"message"`
}

type blockStart struct {
	Type         string      `json:"type"`
	Index        int         `json:"index"`
	ContentBlock AnswerBlock `json:"content_block"`
}

type blockDelta struct {
	Type  string      `json:"type"`
	Index int         `json:"index"`
	Delta AnswerBlock `json:"delta"`
}

type blockStop struct {
	Type  string `json:"type"`
	Index int    `json:"index"`
}

type messageDelta struct {
	Type  string    `json:"type"`
	Delta stopDelta `json:"delta"`
	Usage Usage     `json:"usage"`
}

type stopDelta struct {
	StopReason   string  `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
}

type bare struct {
	Type string `json:"type"`
}

// Opening begins a stream. The number of cached tokens is not known yet; Finish
// reports it.
func (a *Answer) Opening() []openai.NamedEvent {
	return []openai.NamedEvent{{Name: "message_start", Data: messageStart{"message_start", a.message(NewUsage(a.PromptTokens, 0, 0))}}, {Name: "ping", Data: bare{"ping"}}}
}

// Text adds text.
func (a *Answer) Text(text string) []openai.NamedEvent {
	return append(a.begin(TextBlock("")), a.adds(AnswerBlock{Type: "text_delta", Text: &text}))
}

// Thinking adds to the model's thinking.
func (a *Answer) Thinking(text string) []openai.NamedEvent {
	return append(a.begin(ThinkingBlock("")), a.adds(AnswerBlock{Type: "thinking_delta", Thinking: &text}))
}

// Call begins a tool call.
func (a *Answer) Call(name string) []openai.NamedEvent {
	return a.begin(ToolUseBlock(name, json.RawMessage("{}")))
}

// Input adds to the input of the most recent call.
func (a *Answer) Input(text string) []openai.NamedEvent {
	return []openai.NamedEvent{a.adds(AnswerBlock{Type: "input_json_delta", PartialJSON: &text})}
}

// begin begins a block, unless a block of its type is open and can continue.
func (a *Answer) begin(b AnswerBlock) []openai.NamedEvent {
	if a.open == b.Type && b.Type != BlockToolUse {
		return nil
	}
	out := a.close()
	a.open = b.Type
	return append(out, openai.NamedEvent{Name: "content_block_start", Data: blockStart{"content_block_start", a.index, b}})
}

func (a *Answer) adds(delta AnswerBlock) openai.NamedEvent {
	return openai.NamedEvent{Name: "content_block_delta", Data: blockDelta{"content_block_delta", a.index, delta}}
}

// close ends the current block.
func (a *Answer) close() []openai.NamedEvent {
	if a.open == "" {
		return nil
	}
	var out []openai.NamedEvent
	if a.open == BlockThinking { // clients wait for a signature, also an empty one
		out = append(out, a.adds(AnswerBlock{Type: "signature_delta", Signature: new(string)}))
	}
	a.open = ""
	a.index++
	return append(out, openai.NamedEvent{Name: "content_block_stop", Data: blockStop{"content_block_stop", a.index - 1}})
}

// Finish ends a stream.
func (a *Answer) Finish(stop Stop, u Usage) []openai.NamedEvent {
	return append(a.close(), openai.NamedEvent{Name: "message_delta", Data: messageDelta{"message_delta", stopDelta{stop.Reason, stop.sequence()}, u}},
		openai.NamedEvent{Name: "message_stop", Data: bare{"message_stop"}})
}

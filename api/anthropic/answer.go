package anthropic

import (
	"crypto/rand"
	"encoding/hex"

	"metalfleet.dev/metalfleet/api/openai"
)

// Stop reasons.
const (
	StopEndTurn   = "end_turn"
	StopMaxTokens = "max_tokens"
	StopSequence  = "stop_sequence"
)

// Usage counts the tokens of a message. Those that came out of a cache are not
// among InputTokens.
type Usage struct {
	InputTokens              int `json:"input_tokens"`
	CacheCreationInputTokens int `json:"cache_creation_input_tokens"`
	CacheReadInputTokens     int `json:"cache_read_input_tokens"`
	OutputTokens             int `json:"output_tokens"`
}

// NewUsage counts prompt tokens, of which some were cached, and those of the
// answer.
func NewUsage(prompt, cached, output int) Usage {
	return Usage{InputTokens: prompt - cached, CacheReadInputTokens: cached, OutputTokens: output}
}

// MessageAnswer is the whole answer of /v1/messages.
type MessageAnswer struct {
	ID           string      `json:"id"`
	Type         string      `json:"type"`
	Role         string      `json:"role"`
	Model        string      `json:"model"`
	Content      []TextBlock `json:"content"`
	StopReason   *string     `json:"stop_reason"`
	StopSequence *string     `json:"stop_sequence"`
	Usage        Usage       `json:"usage"`
}

// TextBlock is a block of an answer.
type TextBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// CountAnswer is the answer of /v1/messages/count_tokens.
type CountAnswer struct {
	InputTokens int `json:"input_tokens"`
}

// NewID makes the id of an answer.
func NewID() string {
	var b [12]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return "msg_" + hex.EncodeToString(b[:])
}

// Answer builds the responses to one request, streamed or whole. The events of a
// stream come in this order: Opening once, Text for each piece, Finish once. It is
// for one stream.
type Answer struct {
	ID, Model string
	// PromptTokens are known before the answer begins.
	PromptTokens int
	open         bool // a block is
}

// Stop is why an answer ended: Reason, and for StopSequence which one it was.
type Stop struct{ Reason, Sequence string }

func (s Stop) sequence() *string {
	if s.Reason != StopSequence {
		return nil
	}
	return &s.Sequence
}

// Whole is the response that is not streamed. An answer without a text has no
// block: a client could not send an empty one back.
func (a *Answer) Whole(text string, stop Stop, u Usage) MessageAnswer {
	m := a.message(u)
	if text != "" {
		m.Content = append(m.Content, TextBlock{BlockText, text})
	}
	m.StopReason, m.StopSequence = &stop.Reason, stop.sequence()
	return m
}

func (a *Answer) message(u Usage) MessageAnswer {
	return MessageAnswer{ID: a.ID, Type: "message", Role: openai.RoleAssistant, Model: a.Model, Content: []TextBlock{}, Usage: u}
}

type messageStart struct {
	Type    string        `json:"type"`
	Message MessageAnswer `json:"message"`
}

type blockStart struct {
	Type         string    `json:"type"`
	Index        int       `json:"index"`
	ContentBlock TextBlock `json:"content_block"`
}

type blockDelta struct {
	Type  string    `json:"type"`
	Index int       `json:"index"`
	Delta TextBlock `json:"delta"`
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

// Opening begins a stream. How much of the prompt was cached is not known yet;
// Finish says it.
func (a *Answer) Opening() []openai.NamedEvent {
	return []openai.NamedEvent{{Name: "message_start", Data: messageStart{"message_start", a.message(NewUsage(a.PromptTokens, 0, 0))}}, {Name: "ping", Data: bare{"ping"}}}
}

// Text adds text.
func (a *Answer) Text(text string) []openai.NamedEvent {
	var out []openai.NamedEvent
	if !a.open {
		a.open = true
		out = append(out, openai.NamedEvent{Name: "content_block_start", Data: blockStart{"content_block_start", 0, TextBlock{Type: BlockText}}})
	}
	return append(out, openai.NamedEvent{Name: "content_block_delta", Data: blockDelta{"content_block_delta", 0, TextBlock{"text_delta", text}}})
}

// Finish ends a stream.
func (a *Answer) Finish(stop Stop, u Usage) []openai.NamedEvent {
	var out []openai.NamedEvent
	if a.open {
		out = append(out, openai.NamedEvent{Name: "content_block_stop", Data: blockStop{"content_block_stop", 0}})
	}
	return append(out, openai.NamedEvent{Name: "message_delta", Data: messageDelta{"message_delta", stopDelta{stop.Reason, stop.sequence()}, u}},
		openai.NamedEvent{Name: "message_stop", Data: bare{"message_stop"}})
}

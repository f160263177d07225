package front

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

// maxErrorBody bounds what is read of a refusal.
const maxErrorBody = 64 << 10

// Turn is one message of a conversation.
type Turn struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Request is one chat request; what is nil or zero is left to the server.
type Request struct {
	Model         string         `json:"model"`
	Messages      []Turn         `json:"messages"`
	MaxTokens     int            `json:"max_tokens,omitempty"`
	Temperature   *float64       `json:"temperature,omitempty"`
	Stream        bool           `json:"stream"`
	StreamOptions map[string]any `json:"stream_options"`
}

// Reply is a whole answer.
type Reply struct {
	Text         string
	FinishReason string
	// Usage as the server counted; nil where it did not say.
	Usage *openai.Usage
	// First is the time from the request to the first text, Total to the end.
	First, Total time.Duration
}

// Chat sends a request and hands each piece of the answer to text as it comes.
// A refusal is an *openai.Error; a stream that breaks off is an error too, with
// what came so far in the reply.
func (w *Way) Chat(ctx context.Context, key string, r Request, text func(string) error) (Reply, error) {
	r.Stream, r.StreamOptions = true, map[string]any{"include_usage": true}
	body, err := json.Marshal(r)
	if err != nil {
		return Reply{}, fmt.Errorf("encode the request: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.base.JoinPath("v1", "chat", "completions").String(), bytes.NewReader(body))
	if err != nil {
		return Reply{}, fmt.Errorf("create the request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	begun := time.Now()
	response, err := w.http.Do(request)
	if err != nil {
		return Reply{}, fmt.Errorf("send the request to the gateway: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		refusal, err := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
		if err != nil {
			return Reply{}, fmt.Errorf("read the gateway's error: %w", err)
		}
		return Reply{}, openai.ParseError(response.StatusCode, response.Header, refusal)
	}
	reply, err := read(response.Body, begun, text)
	reply.Total = time.Since(begun)
	return reply, err
}

// read follows a stream to its end.
func read(from io.Reader, begun time.Time, text func(string) error) (Reply, error) {
	var reply Reply
	var b strings.Builder
	events := openai.NewEventReader(from)
	for {
		var chunk openai.ChatCompletionChunk
		err := events.NextChunk(&chunk)
		reply.Text = b.String()
		switch {
		case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return reply, nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return reply, errors.New("the response is incomplete: the connection to the gateway was lost")
		case err != nil:
			return reply, err
		}
		if chunk.Usage.Usage != nil {
			reply.Usage = chunk.Usage.Usage
		}
		for _, choice := range chunk.Choices {
			if choice.FinishReason != nil {
				reply.FinishReason = *choice.FinishReason
			}
			if choice.Delta.Content == nil || *choice.Delta.Content == "" {
				continue
			}
			if reply.First == 0 {
				reply.First = time.Since(begun)
			}
			b.WriteString(*choice.Delta.Content)
			if err := text(*choice.Delta.Content); err != nil {
				reply.Text = b.String()
				return reply, err
			}
		}
	}
}

package fleet

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

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
)

// Question is one chat request to the gateway.
type Question struct {
	Model  string
	Text   string
	Stream bool
	// Patience is how long the gateway may take; 0 leaves it to the gateway.
	Patience time.Duration
	// MaxTokens of the answer; 0 leaves it to the server.
	MaxTokens int
	// OnText, if set, is called with each piece of a streamed answer.
	OnText func(string)
}

// Answer is the answer to a question.
type Answer struct {
	Text   string
	Finish string
	Usage  openai.Usage
	// Mac that answered, from the response's header.
	Mac string
	// Begun is true once the first event of a stream has arrived.
	Begun bool
	// First is the time to the first piece of text, Total to the end.
	First, Total time.Duration
}

// Ask sends a greedy chat request and reads the answer to its end. An error of
// the server, before or inside the stream, is an *openai.Error.
func Ask(ctx context.Context, url string, q Question) (Answer, error) {
	fields := map[string]any{
		"model":       q.Model,
		"messages":    []map[string]string{{"role": "user", "content": q.Text}},
		"temperature": 0,
		"stream":      q.Stream,
	}
	if q.MaxTokens > 0 {
		fields["max_tokens"] = q.MaxTokens
	}
	if q.Stream {
		fields["stream_options"] = map[string]bool{"include_usage": true}
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return Answer{}, fmt.Errorf("question: %w", err)
	}
	return Post(ctx, url+"/v1/chat/completions", body, q)
}

// Post sends a body as it is and reads the answer as q expects it.
func Post(ctx context.Context, url string, body []byte, q Question) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, fmt.Errorf("question: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if q.Patience > 0 {
		req.Header.Set(agentapi.HeaderTimeout, fmt.Sprint(q.Patience.Seconds()))
	}
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", url, err)
	}
	defer resp.Body.Close()
	a := Answer{Mac: resp.Header.Get(agentapi.HeaderMac)}
	switch {
	case resp.StatusCode != http.StatusOK:
		b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return a, fmt.Errorf("ask %s: %s: %w", url, resp.Status, err)
		}
		return a, openai.ParseError(resp.StatusCode, resp.Header, b)
	case q.Stream:
		err = a.readStream(resp.Body, began, q.OnText)
	default:
		err = a.readWhole(resp.Body)
	}
	a.Total = time.Since(began)
	return a, err
}

func (a *Answer) readWhole(r io.Reader) error {
	var c openai.ChatCompletion
	if err := json.NewDecoder(r).Decode(&c); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if len(c.Choices) != 1 {
		return fmt.Errorf("answer has %d choices, want 1", len(c.Choices))
	}
	if text := c.Choices[0].Message.Content; text != nil {
		a.Text = *text
	}
	a.Finish = c.Choices[0].FinishReason
	if c.Usage == nil {
		return errors.New("answer has no usage")
	}
	a.Usage = *c.Usage
	return nil
}

func (a *Answer) readStream(r io.Reader, began time.Time, onText func(string)) error {
	events := openai.NewEventReader(r)
	var text strings.Builder
	defer func() { a.Text = text.String() }()
	for {
		var c openai.ChatCompletionChunk
		err := events.NextChunk(&c)
		if errors.Is(err, io.EOF) {
			if a.Finish == "" {
				return errors.New("stream ended without a finish reason")
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
		a.Begun = true
		if c.Usage.Present && c.Usage.Usage != nil {
			a.Usage = *c.Usage.Usage
		}
		for _, choice := range c.Choices {
			if piece := choice.Delta.Content; piece != nil && *piece != "" {
				if a.First == 0 {
					a.First = time.Since(began)
				}
				text.WriteString(*piece)
				if onText != nil {
					onText(*piece)
				}
			}
			if choice.FinishReason != nil {
				a.Finish = *choice.FinishReason
			}
		}
	}
}

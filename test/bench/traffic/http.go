package traffic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"metalfleet.dev/metalfleet/api/openai"
)

// HTTP is a server that speaks the OpenAI API: chat completions for requests
// with messages, completions for the others.
type HTTP struct {
	Client     *http.Client
	URL, Model string
	// Silent counts events without text as pieces: random models write parts of
	// characters, which are held back.
	Silent bool
}

// Ask runs one request.
func (h HTTP) Ask(ctx context.Context, r Request, each func()) (u Usage, err error) {
	path, fields := "/v1/completions", map[string]any{"model": h.Model, "prompt": r.Prompt, "max_tokens": r.MaxTokens, "temperature": 0,
		"stream": true, "stream_options": map[string]bool{"include_usage": true}}
	if r.Messages != nil {
		path, fields["messages"] = "/v1/chat/completions", r.Messages
		delete(fields, "prompt")
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return u, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL+path, bytes.NewReader(body))
	if err != nil {
		return u, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := h.Client.Do(req)
	if err != nil {
		return u, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return u, fmt.Errorf("%s answered %s: %s", h.URL, resp.Status, text)
	}
	if u, err = h.read(resp.Body, each); err != nil {
		return u, fmt.Errorf("stream of %s: %w", h.URL, err)
	}
	_, err = io.Copy(io.Discard, resp.Body) // otherwise the connection is not kept
	return u, err
}

// chunk is an event of a stream of either kind.
type chunk struct {
	Choices []struct {
		Text  string
		Delta struct{ Content string }
	}
	Usage *openai.Usage
}

func (h HTTP) read(from io.Reader, each func()) (u Usage, err error) {
	events := openai.NewEventReader(from)
	for {
		var c chunk
		switch err := events.NextChunk(&c); {
		case errors.Is(err, io.EOF):
			return u, nil
		case err != nil:
			return u, err
		}
		if h.Silent || len(c.Choices) > 0 && c.Choices[0].Text+c.Choices[0].Delta.Content != "" {
			each()
		}
		if c.Usage != nil {
			u.Prompt, u.Generated = c.Usage.PromptTokens, c.Usage.CompletionTokens
			if d := c.Usage.PromptTokensDetails; d != nil {
				u.Cached = d.CachedTokens
			}
		}
	}
}

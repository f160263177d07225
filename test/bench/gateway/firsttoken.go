package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/traffic"
	"metalfleet.dev/metalfleet/test/oracle/clients/tinyfleet"
)

const (
	// mostFirst is the most, in milliseconds, that the gateway may add.
	mostFirst = 1
	// firstRequests of a round, in sequence.
	firstRequests = 60
)

var firstTokenScenario = scenario.Scenario{
	Name: "first-token", Title: "What the gateway adds to the first token", Rounds: 15, Run: runFirstToken,
	About: fmt.Sprintf(`Chat completions of a tiny model, streamed, one after another on a connection that is kept: the time from the request to
the first event with text, through the gateway's program in plain HTTP and straight at the agent with mutual TLS, in turns. Each run is the
median of %d requests.`, firstRequests),
}

var firstTokenFigures = []scenario.Figure{
	{Name: "added to the first token, p50", Unit: "ms", Of: "gateway/p50", Less: "agent/p50", Bound: report.AtMost(mostFirst)},
	{Name: "first token through the gateway, p50", Unit: "ms", Of: "gateway/p50"},
	{Name: "first token straight at the agent, p50", Unit: "ms", Of: "agent/p50"},
}

func runFirstToken(ctx context.Context, e *scenario.Env, r *report.Report) error {
	return tinyfleet.With(ctx, ".", "", func(ctx context.Context, w *tinyfleet.World) error {
		url, config := w.Agent()
		g := scenario.Group{Name: "first token", Turns: []scenario.Turn{
			firstTokens("gateway", w.URL, &http.Transport{}), firstTokens("agent", url, &http.Transport{TLSClientConfig: config}),
		}}
		samples, err := scenario.Rounds{Count: e.Rounds, Warm: 1, Log: e.Log}.Run(ctx, g)
		if err != nil {
			return err
		}
		samples.Fill(r, firstTokenFigures...)
		return nil
	})
}

func firstTokens(name, url string, transport *http.Transport) scenario.Turn {
	return scenario.Turn{Name: name, Run: func(ctx context.Context) (scenario.Values, error) {
		defer transport.CloseIdleConnections()
		c := &http.Client{Transport: transport, Timeout: time.Minute}
		var all []time.Duration
		for range firstRequests {
			d, err := firstText(ctx, c, url)
			if err != nil {
				return nil, err
			}
			all = append(all, d)
		}
		return scenario.Values{"p50": ms(traffic.Percentile(all, 50))}, nil
	}}
}

const firstBody = `{"model":"` + tinyfleet.Chat + `","messages":[{"role":"user","content":"Hello"}],"max_tokens":8,"temperature":0,"stream":true}`

// firstText is the time to the first text of a stream, which is read to its end.
func firstText(ctx context.Context, c *http.Client, url string) (took time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader([]byte(firstBody)))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	began := time.Now()
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the answer is %s", resp.Status)
	}
	events := openai.NewEventReader(resp.Body)
	for {
		var chunk openai.ChatCompletionChunk
		switch err := events.NextChunk(&chunk); {
		case errors.Is(err, io.EOF) && took > 0:
			_, err := io.Copy(io.Discard, resp.Body) // otherwise the connection is not kept
			return took, err
		case err != nil:
			return 0, fmt.Errorf("stream: %w", err)
		}
		if took == 0 && len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != nil && *chunk.Choices[0].Delta.Content != "" {
			took = time.Since(began)
		}
	}
}

package gateway

import (
	"context"
	"fmt"
	"net/http"
	"time"

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
		return e.Measure(ctx, r, 1, firstTokenFigures, g)
	})
}

func firstTokens(name, url string, transport *http.Transport) scenario.Turn {
	target := traffic.HTTP{Client: &http.Client{Transport: transport, Timeout: time.Minute}, URL: url, Model: tinyfleet.Chat}
	return scenario.Turn{Name: name, Run: func(ctx context.Context) (scenario.Values, error) {
		defer transport.CloseIdleConnections()
		var all []time.Duration
		for range firstRequests {
			a := traffic.Ask(ctx, target, traffic.Request{Messages: []traffic.Message{{Role: "user", Content: "Hello"}}, MaxTokens: 8})
			if a.Err != nil {
				return nil, a.Err
			}
			all = append(all, a.First)
		}
		return scenario.Values{"p50": ms(traffic.Percentile(all, 50))}, nil
	}}
}

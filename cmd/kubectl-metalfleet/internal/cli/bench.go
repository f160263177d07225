package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/front"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/load"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

const benchLong = `Sends concurrent requests to a model and reports the time to first token, the
tokens per second of one stream and of all streams, and errors by kind. The
figures include the connection: with a port-forward, that includes the API
server; use --url to avoid it.

99 % of the requests stay within the p99 of a time, and 99 % reach the p99 of a
rate. The exit code is 1 if a request failed.

` + wayHelp

// benchCommand measures a model through a gateway.
type benchCommand struct{ *app }

func (a benchCommand) bench() *cobra.Command {
	var f frontFlags
	var requests, streams int
	var prompt string
	c := &cobra.Command{
		Use: "bench MODEL", Short: "Measure the latency and throughput of a model", Long: benchLong, Args: exactly(1, "one MODEL"),
		Example:           "  kubectl metalfleet bench qwen3-8b\n  kubectl metalfleet bench qwen3-8b --requests 200 --streams 16 --max-tokens 128 -o json",
		ValidArgsFunction: a.complete(modelNames),
	}
	f.bind(c)
	c.Flags().IntVar(&requests, "requests", 20, "number of requests to send")
	c.Flags().IntVar(&streams, "streams", 4, "number of concurrent requests")
	c.Flags().StringVar(&prompt, "prompt", "Write a short story about a lighthouse.", "prompt of each request")
	c.Flags().Lookup("max-tokens").DefValue = "64"
	f.maxTokens = 64
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if requests < 1 || streams < 1 {
			return usagef("--requests and --streams must be at least 1")
		}
		t, err := a.open(cmd.Context(), &f, args[0])
		if err != nil {
			return err
		}
		defer t.Close()
		t.request.Messages = append(t.request.Messages, front.Turn{Role: openai.RoleUser, Content: prompt})
		begun := time.Now()
		samples := load.Run(cmd.Context(), requests, streams, func(ctx context.Context, _ int) load.Sample { return sample(ctx, t) })
		return a.report(load.Summarize(t.model, streams, samples, time.Since(begun)))
	}
	a.outputFlag(c)
	return c
}

// sample is one request, measured.
func sample(ctx context.Context, t *talk) load.Sample {
	reply, err := t.Chat(ctx, t.key, t.request, func(string) error { return nil })
	s := load.Sample{First: reply.First, Total: reply.Total}
	if reply.Usage != nil {
		s.Tokens = reply.Usage.CompletionTokens
	}
	var refused *openai.Error
	switch {
	case errors.As(err, &refused):
		s.Error = strings.TrimSpace(fmt.Sprintf("%d %s", refused.Status, refused.Code))
	case err != nil:
		s.Error = err.Error()
	}
	return s
}

func (a benchCommand) report(r load.Report) error {
	var failed error
	if r.Failed > 0 {
		failed = answer(exitFailed)
	}
	if a.json() {
		if err := a.printJSON(r); err != nil {
			return err
		}
		return failed
	}
	fmt.Fprintf(a.Out, "%s: %s, %d concurrent, in %.1f s\n", r.Model, picture.Count(r.Requests, "request"), r.Streams, r.Seconds)
	var t picture.Table
	t.Row("FIGURE", "P50", "P99", "UNIT")
	t.Row("time to first token", figure(r.FirstToken.P50), figure(r.FirstToken.P99), "ms")
	t.Row("one stream", figure(r.Decode.P50), figure(r.Decode.P99), "tokens/s")
	if err := t.Write(a.Out); err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "all streams: %.1f tokens/s, %d tokens\nfailed: %d\n", r.TokensPerSecond, r.OutputTokens, r.Failed)
	var kinds []string
	for kind, n := range r.Errors {
		kinds = append(kinds, fmt.Sprintf("  %d x %s\n", n, picture.Plain(kind)))
	}
	slices.Sort(kinds)
	fmt.Fprint(a.Out, strings.Join(kinds, ""))
	return failed
}

func figure(f *float64) string {
	if f == nil {
		return ""
	}
	return fmt.Sprintf("%.1f", *f)
}

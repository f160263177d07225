package serving

import (
	"context"
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

var stallScenario = scenario.Scenario{
	Name: "stall", Title: "A stream next to a long prompt", Rounds: 5, Parts: []string{"ref", "mlx", peerName}, Run: runStall,
	About: `A stream runs alone, then a prompt alone, then such a prompt arrives after the eighth token of such a stream. SmolLM2-135M-Instruct
in 4 bits: the GGUF file in Q4_1 on ref, prompts of 2,048 tokens; MLX's format on MLX and mlx-lm's server, prompts of 256, because both
compute on the processor. Inter-token time is between two pieces of the stream; next to a prompt those count that lie between its sending
and its first token. Prompts are random words, different ones each time, so that no cache knows them.` + aboutGPU,
}

const (
	mostGap     = 2 // p99 between tokens next to a prompt, as a multiple of alone
	mostPrefill = 3 // time of a prompt next to a stream, as a multiple of alone

	streamPrompt = 24 // tokens of the stream's own prompt
	underway     = 8  // pieces of the stream before the prompt arrives
)

// stall is one server and the lengths that it is asked for, in tokens.
type stall struct {
	server
	prompt int
	// stream is the answer that runs alone: about as many tokens as arrive while a
	// prompt is computed, since later tokens attend to more, and the p99 of few
	// gaps is the longest of them.
	stream  int
	context int
	warm    int
}

func runStall(ctx context.Context, e *scenario.Env, r *report.Report) error {
	gguf, folder, err := models.SmolLM2(ctx, e.Engine, e.Cache)
	if err != nil {
		return err
	}
	return runStalls(ctx, e, r,
		stall{server: ours(e.Engine, "ref", gguf, 4096, 4), prompt: 2048, stream: 1024, context: 4096},
		stall{server: ours(e.MLXEngine, "mlx", folder, 4096, 4), prompt: 256, stream: 160, context: 4096},
		stall{server: peer(e, folder, 4), prompt: 256, stream: 160, context: 4096})
}

func stallGPU(shape *string) runner {
	return func(ctx context.Context, e *scenario.Env, r *report.Report) error {
		folder, err := models.Shape(e.Cache, *shape)
		if err != nil {
			return err
		}
		return runStalls(ctx, e, r,
			stall{server: ours(e.MLXEngine, "mlx", folder, 16384, 4), prompt: 8192, stream: 192, context: 16384, warm: 1},
			stall{server: peer(e, folder, 4), prompt: 8192, stream: 192, context: 16384, warm: 1})
	}
}

// runStalls measures one server after another.
func runStalls(ctx context.Context, e *scenario.Env, r *report.Report, all ...stall) error {
	for _, s := range all {
		if !e.Wants(s.name) {
			continue
		}
		if err := s.measure(ctx, e, r); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (s stall) measure(ctx context.Context, e *scenario.Env, r *report.Report) (err error) {
	target, stop, err := s.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	words, err := traffic.Words(ctx, target)
	if err != nil {
		return err
	}
	seed := uint64(0)
	return e.Measure(ctx, r, s.warm, s.figures(), scenario.One(s.name, func(ctx context.Context) (scenario.Values, error) {
		seed++
		return s.round(ctx, caller{target, words, seed})
	}))
}

func (s stall) figures() []scenario.Figure {
	gap, prefill := report.Bound{}, report.Bound{}
	if s.ours {
		gap, prefill = report.Under(mostGap), report.AtMost(mostPrefill)
	}
	of := func(value string) string { return s.name + "/" + value }
	return []scenario.Figure{
		{Name: s.name + ", inter-token alone, median", Unit: "ms", Of: of("alone median")},
		{Name: s.name + ", inter-token alone, p99", Unit: "ms", Of: of("alone p99")},
		{Name: s.name + ", inter-token with a prompt, median", Unit: "ms", Of: of("both median")},
		{Name: s.name + ", inter-token with a prompt, p99", Unit: "ms", Of: of("both p99")},
		{Name: s.name + ", inter-token p99, with a prompt / alone", Of: of("both p99"), Over: of("alone p99"), Bound: gap},
		{Name: fmt.Sprintf("%s, prompt of %d alone", s.name, s.prompt), Unit: "ms", Of: of("alone prompt")},
		{Name: fmt.Sprintf("%s, prompt of %d with a stream", s.name, s.prompt), Unit: "ms", Of: of("both prompt")},
		{Name: s.name + ", prompt, with a stream / alone", Of: of("both prompt"), Over: of("alone prompt"), Bound: prefill},
	}
}

// caller makes the requests of one round, all of them different.
type caller struct {
	traffic.Target
	words func(tokens int) int
	seed  uint64
}

func (a caller) request(n uint64, prompt, tokens int) traffic.Request {
	return traffic.Request{Prompt: traffic.Prompt(a.words(prompt), 100*a.seed+n), MaxTokens: tokens}
}

// round runs a stream alone, a prompt alone, and then both.
func (s stall) round(ctx context.Context, a caller) (scenario.Values, error) {
	stream := traffic.Ask(ctx, a, a.request(0, streamPrompt, s.stream))
	if stream.Err != nil {
		return nil, stream.Err
	}
	prompt := traffic.Ask(ctx, a, a.request(1, s.prompt, 1))
	if prompt.Err != nil {
		return nil, prompt.Err
	}
	if prompt.Prompt < s.prompt*9/10 || prompt.Prompt > s.prompt*11/10 {
		return nil, fmt.Errorf("the prompt has %d tokens, want about %d", prompt.Prompt, s.prompt)
	}
	gaps, second, err := s.both(ctx, a)
	if err != nil {
		return nil, err
	}
	percentile := func(gaps []time.Duration, p float64) float64 {
		return traffic.Milliseconds(traffic.Percentile(gaps, p))
	}
	return scenario.Values{
		"alone median": percentile(stream.Gaps, 50), "alone p99": percentile(stream.Gaps, 99), "alone prompt": traffic.Milliseconds(prompt.First),
		"both median": percentile(gaps, 50), "both p99": percentile(gaps, 99), "both prompt": traffic.Milliseconds(second.First),
	}, nil
}

// both sends a prompt while a stream is under way. It returns the gaps of the
// stream that ended after the prompt was sent and began before it was computed.
func (s stall) both(ctx context.Context, a caller) (gaps []time.Duration, prompt traffic.Answer, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pieces := make(chan time.Time, s.context)
	ended := make(chan error, 1)
	go func() { // until the stream ends or is cancelled, which both waits for
		u, err := a.Ask(ctx, a.request(2, streamPrompt, s.context/2), func() { pieces <- time.Now() })
		close(pieces)
		ended <- errors.Join(fmt.Errorf("the stream ended after %d tokens, before the prompt was computed", u.Generated), err)
	}()
	var last time.Time
	for range underway {
		var ok bool
		if last, ok = <-pieces; !ok {
			return nil, prompt, <-ended
		}
	}
	sent := time.Now()
	prompt = traffic.Ask(ctx, a, a.request(3, s.prompt, 1))
	select {
	case err := <-ended:
		return nil, prompt, errors.Join(prompt.Err, err)
	default:
		gaps = collect(pieces, last, sent, sent.Add(prompt.First), cancel)
		<-ended
		return gaps, prompt, prompt.Err
	}
}

// collect reads pieces until one came after done, which may be the one that the
// prompt delayed most, and then ends the stream.
func collect(pieces <-chan time.Time, last, sent, done time.Time, end func()) (gaps []time.Duration) {
	for at := range pieces {
		if at.After(sent) && last.Before(done) {
			gaps = append(gaps, at.Sub(last))
		}
		last = at
		if at.After(done) {
			end()
		}
	}
	return gaps
}

package serving

import (
	"context"
	"fmt"

	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

var batchScenario = scenario.Scenario{
	Name: "batch", Title: "Several streams at once", Rounds: 3, Run: runBatch,
	About: `SmolLM2-135M-Instruct in 4 bits, as "engine convert" writes it, served by the engine with MLX and by mlx-lm's server, both on the
processor, both loaded, taking turns. Several streams begin at once with prompts and answers of 16 tokens, greedy; the rate is all tokens of
the answers by the time until the last. Then requests arrive at random times (Poisson, the same for both) at multiples of what the peer does
with the most streams; time to the first token counts from the time that a request was due.` + aboutGPU,
}

// load is the traffic of one kind of machine, and its bounds.
type load struct {
	// context is the longest request; prompt and tokens are the lengths of each.
	context, prompt, tokens int
	// arrivals at each rate.
	arrivals int
	streams  []streams
	// rates are multiples of what the peer does with the most streams.
	rates []float64
	// sooner is the least ratio of the peer's time to the first token (p90) to ours
	// at the last rate; 0 is no bound.
	sooner float64
	warm   int
}

// streams at once, and the least ratio of our tokens per second to the peer's.
type streams struct {
	count int
	least float64
}

var (
	processorLoad = load{
		context: 512, prompt: 16, tokens: 16, arrivals: 16,
		streams: []streams{{1, 0.95}, {4, 0.95}, {8, 0.95}}, rates: []float64{0.5, 0.8, 1.1},
	}
	gpuLoad = load{
		context: 1024, prompt: 128, tokens: 64, arrivals: 64,
		streams: []streams{{1, 1}, {8, 2}, {16, 3.5}, {32, 4}}, rates: []float64{1, 2, 3}, sooner: 2, warm: 1,
	}
)

func (l load) most() int { return l.streams[len(l.streams)-1].count }

func runBatch(ctx context.Context, e *scenario.Env, r *report.Report) error {
	_, folder, err := models.SmolLM2(ctx, e.Engine, e.Cache)
	if err != nil {
		return err
	}
	return processorLoad.run(ctx, e, r, folder)
}

func batchGPU(shape *string) runner {
	return func(ctx context.Context, e *scenario.Env, r *report.Report) error {
		folder, err := models.Shape(e.Cache, *shape)
		if err != nil {
			return err
		}
		return gpuLoad.run(ctx, e, r, folder)
	}
}

func (l load) run(ctx context.Context, e *scenario.Env, r *report.Report, folder string) error {
	b := contest{load: l}
	for _, s := range []server{ours(e.MLXEngine, "mlx", folder, l.context, l.most()), peer(e, folder, l.most())} {
		target, stop, err := s.start(ctx)
		if err != nil {
			return err
		}
		e.Cleanup(stop)
		b.targets = append(b.targets, named{s.name, target})
	}
	var err error
	if b.words, err = traffic.Words(ctx, b.targets[0]); err != nil {
		return err
	}
	samples, err := scenario.Rounds{Count: e.Rounds, Warm: l.warm, Log: e.Log}.Run(ctx, b.groups()...)
	if err != nil {
		return err
	}
	capacity := report.Median(samples.Runs(key(peerName, l.most()))) / float64(l.tokens)
	for _, times := range l.rates {
		if err := b.arrive(ctx, samples, times, times*capacity); err != nil {
			return err
		}
	}
	samples.Fill(r, l.figures()...)
	return nil
}

// contest is two servers under the same load.
type contest struct {
	load
	targets []named
	words   func(tokens int) int
}

type named struct {
	name string
	traffic.Target
}

func key(name string, streams int) string { return fmt.Sprintf("%s %d/rate", name, streams) }

func (b *contest) groups() []scenario.Group {
	var out []scenario.Group
	for _, s := range b.streams {
		g := scenario.Group{Name: fmt.Sprintf("%d streams", s.count)}
		for _, t := range b.targets {
			turn := uint64(s.count) << 32
			g.Turns = append(g.Turns, scenario.Turn{Name: fmt.Sprintf("%s %d", t.name, s.count), Run: func(ctx context.Context) (scenario.Values, error) {
				turn++
				f, err := traffic.Sum(traffic.Together(ctx, t, b.requests(turn, s.count)))
				return scenario.Values{"rate": f.TokensPerSecond}, err
			}})
		}
		out = append(out, g)
	}
	return out
}

// requests of a turn are the same for both servers and different from those of
// every other turn.
func (b *contest) requests(turn uint64, count int) []traffic.Request {
	rs := make([]traffic.Request, count)
	for i := range rs {
		rs[i] = traffic.Request{Prompt: traffic.Prompt(b.words(b.prompt), turn<<8+uint64(i)), MaxTokens: b.tokens}
	}
	return rs
}

// arrive sends both servers requests at the same random times.
func (b *contest) arrive(ctx context.Context, samples scenario.Samples, times, rate float64) error {
	for _, t := range b.targets {
		rs := b.requests(1<<48+uint64(100*times), b.arrivals)
		f, err := traffic.Sum(traffic.OpenLoop(ctx, t, rs, traffic.Poisson(rate, len(rs), uint64(len(rs)))))
		if err != nil {
			return fmt.Errorf("%s at %.2f requests/s: %w", t.name, rate, err)
		}
		at := func(value string) string { return fmt.Sprintf("%s at %g/%s", t.name, times, value) }
		samples.Set(at("arrivals"), rate)
		samples.Set(at("first p50"), traffic.Milliseconds(traffic.Percentile(f.First, 50)))
		samples.Set(at("first p90"), traffic.Milliseconds(traffic.Percentile(f.First, 90)))
		samples.Set(at("gap p90"), traffic.Milliseconds(traffic.Percentile(f.Gaps, 90)))
		samples.Set(at("rate"), f.TokensPerSecond)
	}
	return nil
}

func (l load) figures() []scenario.Figure {
	var out []scenario.Figure
	names := []string{"mlx", peerName}
	for _, s := range l.streams {
		for _, name := range names {
			out = append(out, scenario.Figure{Name: fmt.Sprintf("%s, %d streams", name, s.count), Unit: "tokens/s", Of: key(name, s.count)})
		}
		out = append(out, scenario.Figure{Name: fmt.Sprintf("%d streams, mlx / %s", s.count, peerName),
			Of: key("mlx", s.count), Over: key(peerName, s.count), Bound: report.AtLeast(s.least)})
	}
	for _, times := range l.rates {
		for _, name := range names {
			at := fmt.Sprintf("%s at %g", name, times)
			out = append(out,
				scenario.Figure{Name: at + " x capacity, arrivals", Unit: "requests/s", Of: at + "/arrivals"},
				scenario.Figure{Name: at + " x capacity, first token, p50", Unit: "ms", Of: at + "/first p50"},
				scenario.Figure{Name: at + " x capacity, first token, p90", Unit: "ms", Of: at + "/first p90"},
				scenario.Figure{Name: at + " x capacity, inter-token, p90", Unit: "ms", Of: at + "/gap p90"},
				scenario.Figure{Name: at + " x capacity, rate", Unit: "tokens/s", Of: at + "/rate"})
		}
	}
	if l.sooner > 0 {
		last := l.rates[len(l.rates)-1]
		out = append(out, scenario.Figure{Name: "first token at the last rate, p90, " + peerName + " / mlx",
			Of: fmt.Sprintf("%s at %g/first p90", peerName, last), Over: fmt.Sprintf("mlx at %g/first p90", last), Bound: report.AtLeast(l.sooner)})
	}
	return out
}

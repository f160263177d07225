package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

func routingScenario(requests *int) scenario.Scenario {
	return scenario.Scenario{
		Name: "routing", Title: "What the choice of a replica is worth", Rounds: 3,
		Run: func(ctx context.Context, e *scenario.Env, r *report.Report) error {
			return runRouting(ctx, e, r, *requests)
		},
		About: fmt.Sprintf(`The gateway's front with TLS to %d engine processes on ref, each with one thread and a random model of 4 layers, is asked by
chats that share system prompts: the same requests of 610 to 930 tokens at the same times under each policy, at %g times what all cores could
compute if nothing were cached. The hit rate is the share of prompt tokens that the replica had cached; time to the first token counts from
the time that a request was due.`, replicas, utilization),
	}
}

const (
	replicas = 8
	// Of each engine: the longest request, what it caches of all, and how many run
	// at once.
	contextTokens, cacheTokens, sequences = 2048, 6144, 4
	// answerTokens are few: the time to the first token is the figure.
	answerTokens = 4
	utilization  = 0.9

	leastHits = 1.2 // hit rate, as a multiple of each other policy's
	mostTTFT  = 1   // p99 of the time to the first token, as a multiple
)

// policy is one way to choose a replica.
type policy struct {
	name string
	pick pick.Policy
}

// policies that are compared, ours first.
var policies = []policy{{"prefix affinity", pick.Choose}, {"least load", pick.LeastLoad}, {"round robin", pick.RoundRobin}}

func routingFigures() []scenario.Figure {
	var out []scenario.Figure
	for _, p := range policies {
		out = append(out,
			scenario.Figure{Name: p.name + ", hit rate", Unit: "%", Of: p.name + "/hits", Scale: 100},
			scenario.Figure{Name: p.name + ", first token, p50", Unit: "ms", Of: p.name + "/p50"},
			scenario.Figure{Name: p.name + ", first token, p99", Unit: "ms", Of: p.name + "/p99"})
	}
	for _, p := range policies[1:] {
		out = append(out,
			scenario.Figure{Name: "hit rate, ours / " + p.name, Of: policies[0].name + "/hits", Over: p.name + "/hits", Bound: report.AtLeast(leastHits)},
			scenario.Figure{Name: "first token, p99, ours / " + p.name, Of: policies[0].name + "/p99", Over: p.name + "/p99", Bound: report.AtMost(mostTTFT)})
	}
	return out
}

func runRouting(ctx context.Context, e *scenario.Env, r *report.Report, requests int) error {
	if requests < 1 {
		return fmt.Errorf("-requests is %d, want at least 1", requests)
	}
	// Small, so that 8 of them fit on a few cores, and a prompt takes much longer
	// than everything else.
	c := tinymodel.Config{Seed: 1, Name: "bench-routing", Family: tinymodel.Qwen3, Layers: 4, Hidden: 256, FeedForward: 1024, QueryHeads: 4, KVHeads: 2, HeadSize: 64,
		Context: 4096, Vocabulary: 512, NormEps: 1e-6, Theta: 1e6, Endless: true}
	model, err := models.Write(e.Model("random-4x256-512"), c, models.Packed())
	if err != nil {
		return err
	}
	f, err := newFleet(ctx, e, model)
	if err != nil {
		return err
	}
	words, err := traffic.Words(ctx, f.target(0))
	if err != nil {
		return err
	}
	s := chats(requests)
	alone, err := f.alone(ctx, s, words)
	if err != nil {
		return err
	}
	s.rate = utilization * float64(runtime.NumCPU()) / alone.Seconds()
	fmt.Fprintf(e.Log, "a prompt alone took %s: %.1f requests per second\n", alone.Round(time.Millisecond), s.rate)
	g := scenario.Group{Name: "routing"}
	salt := uint64(0)
	for _, p := range policies {
		seed := uint64(0)
		g.Turns = append(g.Turns, scenario.Turn{Name: p.name, Run: func(ctx context.Context) (scenario.Values, error) {
			seed, salt = seed+1, salt+1
			return f.run(ctx, p.pick, s.trace(seed), script{words: words, salt: salt, shape: s})
		}})
	}
	return e.Measure(ctx, r, 0, routingFigures(), g)
}

// script is the text of the prompts of a run, different from every other run's.
type script struct {
	words func(tokens int) int
	salt  uint64
	shape shape
}

func (s script) text(tokens int, seed ...uint64) string {
	all := s.salt
	for _, n := range seed {
		all = all*1_000_003 + n + 1
	}
	return traffic.Prompt(s.words(tokens), all)
}

// request of a turn: its system prompt and the conversation so far.
func (s script) request(t turn) traffic.Request {
	messages := []traffic.Message{{Role: "system", Content: s.text(s.shape.system, 1, uint64(t.group))}}
	for n := range t.number + 1 {
		messages = append(messages, traffic.Message{Role: "user", Content: s.text(s.shape.question, 2, uint64(t.conversation), uint64(n))})
		if n < t.number {
			messages = append(messages, traffic.Message{Role: "assistant", Content: s.text(s.shape.reply, 3, uint64(t.conversation), uint64(n))})
		}
	}
	return traffic.Request{Messages: messages, MaxTokens: answerTokens}
}

// alone is the median time of a prompt of the middle turn that no engine knows.
func (f *fleet) alone(ctx context.Context, s shape, words func(int) int) (time.Duration, error) {
	var took []time.Duration
	for n := range uint64(5) {
		a := traffic.Ask(ctx, f.target(int(n)), traffic.Request{Prompt: traffic.Prompt(words(s.system+s.question+s.turns/2*(s.question+s.reply)), 1<<40+n), MaxTokens: answerTokens})
		if a.Err != nil {
			return 0, fmt.Errorf("a prompt alone: %w", a.Err)
		}
		took = append(took, a.Whole)
	}
	return traffic.Percentile(took, 50), nil
}

// run sends the requests of a trace at their times.
func (f *fleet) run(ctx context.Context, choose pick.Policy, trace []turn, s script) (v scenario.Values, err error) {
	front, err := f.open(choose)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, front.close()) }()
	requests, at := make([]traffic.Request, len(trace)), make([]time.Duration, len(trace))
	for i, t := range trace {
		requests[i], at[i] = s.request(t), t.at
	}
	answers, err := traffic.Sum(traffic.OpenLoop(ctx, front, requests, at))
	if err != nil {
		return nil, err
	}
	return scenario.Values{
		"hits": float64(answers.Cached) / float64(answers.Prompt),
		"p50":  ms(traffic.Percentile(answers.First, 50)), "p99": ms(traffic.Percentile(answers.First, 99)),
	}, nil
}

// shape is what a trace is made of. Lengths are in tokens.
type shape struct {
	// groups are applications, each with a system prompt of its own; the first is
	// asked most (Zipf with exponent skew).
	groups int
	skew   float64
	system int
	// Of a conversation: turns, and what each of them adds.
	turns, question, reply int
	// think is the mean time from one turn to the next.
	think time.Duration
	// rate of requests per second, and their number.
	rate     float64
	requests int
}

// chats of 24 applications; the rate follows from the speed of the engines.
func chats(requests int) shape {
	return shape{groups: 24, skew: 0.9, system: 512, turns: 3, question: 96, reply: 64, think: 4 * time.Second, requests: requests}
}

// turn is one request of a trace.
type turn struct {
	at                  time.Duration
	group, conversation int
	// number of the turn in its conversation, from 0.
	number int
}

// trace makes the requests of a seed, in the order of their times. Conversations
// begin at random times (Poisson), and all of them are complete.
func (s shape) trace(seed uint64) []turn {
	rng := rand.New(rand.NewPCG(seed, 9))
	weights := make([]float64, s.groups)
	sum := 0.0
	for g := range weights {
		sum += 1 / math.Pow(float64(g+1), s.skew)
		weights[g] = sum
	}
	var out []turn
	began := 0.0
	for conversation := 0; len(out) < s.requests; conversation++ {
		began += rng.ExpFloat64() * float64(s.turns) / s.rate
		at := time.Duration(began * float64(time.Second))
		group, _ := slices.BinarySearch(weights, rng.Float64()*sum)
		for n := range s.turns {
			out = append(out, turn{at: at, group: group, conversation: conversation, number: n})
			at += time.Duration(rng.ExpFloat64() * float64(s.think))
		}
	}
	slices.SortStableFunc(out, func(a, b turn) int { return int(a.at - b.at) })
	return out
}

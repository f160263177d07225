package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/test/bench/served"
	"metalfleet.dev/metalfleet/test/bench/traffic"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

const (
	// Of each engine: the longest request, and what it remembers of all.
	contextTokens, cacheTokens = 2048, 6144
	sequences                  = 4
	// answerTokens are few: the time to the first token is looked at.
	answerTokens = 4
	// load is how much is asked, beside what the cores could compute if nothing
	// were remembered.
	load = 0.9
)

// chats is the trace for real engines; its rate follows from their speed.
func chats(requests int) shape {
	return shape{groups: 24, skew: 0.9, system: 512, turns: 3, question: 96, reply: 64, think: 4 * time.Second, requests: requests}
}

// measure asks real engines the same under each policy, in turns.
func measure(ctx context.Context, o options) (c comparison, err error) {
	c = comparison{name: "real engines", bounds: bounds{1.2, 1, 1}, outcomes: make([][]outcome, len(policies()))}
	model, err := randomModel(o.dir)
	if err != nil {
		return c, err
	}
	f, err := newFleet(ctx, filepath.Join(o.root, "bin", "engine"), model)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	words, err := traffic.Words(ctx, traffic.Engine{Client: f.engines[0].Client})
	if err != nil {
		return c, err
	}
	s := chats(o.requests)
	alone, err := f.alone(ctx, s, words)
	if err != nil {
		return c, err
	}
	s.rate = load * float64(runtime.NumCPU()) / alone.Seconds()
	fmt.Fprintf(os.Stderr, "a prompt alone took %s: %.1f requests a second\n", alone.Round(time.Millisecond), s.rate)
	for n := range o.runs {
		for i, p := range policies() {
			r, err := f.run(ctx, p, s.trace(uint64(n+1)), script{words: words, salt: uint64(1 + n*len(policies()) + i), shape: s})
			if err != nil {
				return c, fmt.Errorf("%s, run %d: %w", p.name, n+1, err)
			}
			fmt.Fprintf(os.Stderr, "%s, run %d of %d: %.1f %% known, first token p50 %.0f ms, p99 %.0f ms\n", p.name, n+1, o.runs, 100*r.hits(), first(50)(r), first(99)(r))
			c.outcomes[i] = append(c.outcomes[i], r)
		}
	}
	return c, nil
}

// randomModel is small, so that 8 engines on a few cores have something to say,
// and computes a prompt for much longer than anything else takes.
func randomModel(dir string) (string, error) {
	path := filepath.Join(dir, "random-4x256")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("folder for the model: %w", err)
	}
	c := tinymodel.Config{Seed: 1, Name: "bench-routing", Family: tinymodel.Qwen3, Layers: 4, Hidden: 256, FeedForward: 1024, QueryHeads: 4, KVHeads: 2, HeadSize: 64,
		Context: 4096, Vocabulary: 512, NormEps: 1e-6, Theta: 1e6, Endless: true}
	return path, tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.AffineOf(4, 64, quant.BFloat16)})
}

// script is what the prompts of a run say. No two runs say the same.
type script struct {
	words func(tokens int) int
	salt  uint64
	shape shape
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// text of so many tokens, another for each seed and run.
func (s script) text(tokens int, seed ...uint64) string {
	all := s.salt
	for _, n := range seed {
		all = all*1_000_003 + n + 1
	}
	return traffic.Prompt(s.words(tokens), all)
}

// body of the request of a turn: its system prompt and all that was said before.
func (s script) body(t turn) ([]byte, error) {
	messages := []message{{"system", s.text(s.shape.system, 1, uint64(t.group))}}
	for n := range t.number + 1 {
		messages = append(messages, message{"user", s.text(s.shape.question, 2, uint64(t.conversation), uint64(n))})
		if n < t.number {
			messages = append(messages, message{"assistant", s.text(s.shape.reply, 3, uint64(t.conversation), uint64(n))})
		}
	}
	return json.Marshal(map[string]any{"model": "bench", "stream": true, "max_tokens": answerTokens, "temperature": 0, "messages": messages,
		"stream_options": map[string]bool{"include_usage": true}})
}

// alone is the median time of a prompt of the middle turn that nobody remembers.
func (f *fleet) alone(ctx context.Context, s shape, words func(int) int) (time.Duration, error) {
	var took []time.Duration
	for n := range uint64(5) {
		a := traffic.Ask(ctx, traffic.Engine{Client: f.engines[n%replicas].Client},
			traffic.Request{Prompt: traffic.Prompt(words(s.system+s.question+s.turns/2*(s.question+s.reply)), 1<<40+n), MaxTokens: answerTokens})
		if a.Err != nil {
			return 0, fmt.Errorf("a prompt alone: %w", a.Err)
		}
		took = append(took, a.Whole)
	}
	return traffic.Percentile(took, 50), nil
}

// run asks a trace, open-loop.
func (f *fleet) run(ctx context.Context, p policy, trace []turn, s script) (outcome, error) {
	door, err := f.open(p.pick)
	if err != nil {
		return outcome{}, err
	}
	bodies := make([][]byte, len(trace))
	for i, t := range trace {
		if bodies[i], err = s.body(t); err != nil {
			return outcome{}, errors.Join(err, door.close())
		}
	}
	answers := make([]answer, len(trace))
	var wg sync.WaitGroup
	began := time.Now()
	for i, t := range trace {
		wg.Go(func() { answers[i] = door.ask(ctx, bodies[i], began.Add(t.at)) })
	}
	wg.Wait()
	return sum(answers, door.close())
}

// sum is the outcome of all answers, or what was wrong with one.
func sum(answers []answer, err error) (outcome, error) {
	o := outcome{answers: make([]int, replicas)}
	for i, a := range answers {
		if a.err != nil {
			return o, errors.Join(fmt.Errorf("request %d: %w", i, a.err), err)
		}
		o.prompt, o.cached = o.prompt+a.prompt, o.cached+a.cached
		o.first = append(o.first, a.first)
		o.answers[a.replica]++
	}
	if o.prompt == 0 {
		err = errors.Join(err, errors.New("no prompt had a token"))
	}
	return o, err
}

// macOf is the name of an engine's Mac, and replicaOf what a name says.
func macOf(n int) string { return fmt.Sprintf("mac-%d", n) }

func replicaOf(mac string) (int, error) {
	var n int
	if _, err := fmt.Sscanf(mac, "mac-%d", &n); err != nil || n < 0 || n >= replicas || strings.Contains(mac, " ") {
		return 0, fmt.Errorf("the answer is of the Mac %q", mac)
	}
	return n, nil
}

// engines starts all of them beside one another, each on one thread.
func engines(ctx context.Context, program, model string) ([]*served.Engine, error) {
	if err := os.Setenv("GOMAXPROCS", "1"); err != nil { // of the processes to come
		return nil, err
	}
	all, errs := make([]*served.Engine, replicas), make([]error, replicas)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			all[i], errs[i] = served.Start(ctx, served.Options{Program: program, Backend: "ref", Model: model, ContextTokens: contextTokens,
				Sequences: sequences, CacheTokens: cacheTokens, PrefixCache: true})
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

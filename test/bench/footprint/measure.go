package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/bench/served"
)

const (
	// look is how often the process is looked at, at most: arrays of a step live for
	// milliseconds, but their pages stay pooled.
	look = 20 * time.Millisecond
	// leastChunk is how few tokens of a prompt the engine computes in one step
	// beside running answers, and lead how long a short answer is.
	leastChunk, lead = 2, 16
	// shortPrompt is the longest of the prompts that come first. An engine that
	// knows nothing of its speed computes 128 tokens of it at once, as a quick
	// machine always does: what is measured must not depend on how busy this one
	// is.
	shortPrompt = 160
	// filled is the least share of the promised KV that must have been held.
	filled = 0.95
)

// estimated is what the engine says it would take, in bytes.
type estimated struct {
	Weights   int64 `json:"weightsBytes"`
	KV        int64 `json:"kvBytes"`
	Transient int64 `json:"transientBytes"`
	Pooled    int64 `json:"pooledBytes"`
	Overhead  int64 `json:"overheadBytes"`
	Total     int64 `json:"totalBytes"`
	Limit     int64 `json:"limitBytes"`
	Cache     int64 `json:"cacheLimitBytes"`
}

// measured is one model on one back end, in bytes.
type measured struct {
	name     string
	promise  promise
	estimate estimated
	// loading is the most that the process held until it was ready, ready what it
	// held then, asked nothing yet, and peak the most it ever held.
	loading, ready, peak int64
	// weights, kv and pooled are the engine's own figures at their largest.
	weights, kv, pooled int64
}

func (m measured) ratio() float64 { return float64(m.estimate.Total) / float64(m.peak) }

func (m measured) String() string {
	mb := func(n int64) float64 { return float64(n) / 1e6 }
	e := m.estimate
	return fmt.Sprintf("%s: estimate %.1f MB (weights %.1f, KV %.1f, step %.1f, pooled %.1f, process %.1f), peak %.1f (loading %.1f, ready %.1f; weights %.1f, KV %.1f, pooled %.1f): %.3f",
		m.name, mb(e.Total), mb(e.Weights), mb(e.KV), mb(e.Transient), mb(e.Pooled), mb(e.Overhead), mb(m.peak), mb(m.loading), mb(m.ready), mb(m.weights), mb(m.kv), mb(m.pooled), m.ratio())
}

// ask has the engine say what a model would take.
func ask(ctx context.Context, path string, b backend, p promise) (e estimated, err error) {
	cmd := exec.CommandContext(ctx, b.program, "footprint", "--json", "--model", path, "--backend", b.arithmetic,
		"--context", strconv.Itoa(p.tokens), "--sequences", strconv.Itoa(p.sequences), "--cache-tokens", strconv.Itoa(p.tokens*p.sequences))
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return e, fmt.Errorf("estimate: %w", err)
	}
	if err := json.Unmarshal(out, &e); err != nil {
		return e, fmt.Errorf("estimate: %w", err)
	}
	return e, nil
}

// measure serves a model under its estimate and fills what was promised.
func measure(ctx context.Context, m model, path string, b backend) (out measured, err error) {
	p := m.quick
	if b.slow {
		p = m.slow
	}
	out = measured{name: m.name + " on " + b.name, promise: p}
	if out.estimate, err = ask(ctx, path, b, p); err != nil {
		return out, err
	}
	var w watching
	e, err := served.Start(ctx, served.Options{
		Program: b.program, Backend: b.name, Model: path, ContextTokens: p.tokens, Sequences: p.sequences,
		LimitBytes: out.estimate.Limit, Started: w.start,
	})
	if err != nil {
		return out, errors.Join(err, w.stop())
	}
	defer func() { err = errors.Join(err, e.Stop()) }()
	out.loading = w.peak.Load()
	if out.ready, err = e.Footprint(); err == nil {
		w.reads = m.reads
		err = w.fill(ctx, e, out.estimate, p)
	}
	if err = errors.Join(err, w.stop()); err != nil {
		return out, err
	}
	out.peak, out.weights, out.kv, out.pooled = w.peak.Load(), w.weights, w.kv, w.pooled
	if float64(out.kv) < filled*float64(out.estimate.KV) {
		return out, fmt.Errorf("the engine held at most %d bytes of KV, %d were promised: the context was not filled", out.kv, out.estimate.KV)
	}
	return out, nil
}

// fill publishes the limits as an agent does, and has the engine take what was
// promised, while its gauges are followed.
func (w *watching) fill(ctx context.Context, e *served.Engine, limits estimated, p promise) error {
	if _, err := e.Client.SetLimits(ctx, &wire.Limits{MemoryBytes: limits.Limit, CacheBytes: limits.Cache, Sequence: 1}); err != nil {
		return fmt.Errorf("publish limits: %w", err)
	}
	if w.reads {
		return w.follow(ctx, e, func(ctx context.Context) error { return readAll(ctx, e, p) })
	}
	for n := min(p.tokens, shortPrompt) - 2; n > 0; n = n * 2 / 3 {
		if err := answer(ctx, e, n+2, n, func() {}); err != nil {
			return err
		}
	}
	return w.follow(ctx, e, func(ctx context.Context) error { return writeAll(ctx, e, p) })
}

// follow keeps an eye on the gauges until work is done.
func (w *watching) follow(ctx context.Context, e *served.Engine, work func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.gauges(ctx, e) })
	err := work(ctx)
	cancel()
	running.Wait()
	return err
}

// writeAll has one or two sequences grow to the end of the context. Short prompts
// of all kinds of lengths, whose arrays stay pooled, came before. The first waits
// for the second with an answer that outlasts the second's prompt, and lies in
// its last block meanwhile.
func writeAll(ctx context.Context, e *served.Engine, p promise) error {
	prompts := []int{p.tokens - lead}
	if p.sequences > 1 {
		prompts = []int{p.tokens - p.tokens/leastChunk - 2*lead, p.tokens - lead}
	}
	errs := make([]error, len(prompts))
	var answers sync.WaitGroup
	for i, prompt := range prompts {
		admitted := make(chan struct{})
		answers.Go(func() { errs[i] = answer(ctx, e, p.tokens, prompt, sync.OnceFunc(func() { close(admitted) })) })
		<-admitted
	}
	answers.Wait()
	return errors.Join(errs...)
}

// readAll has an encoder read lists of texts of all kinds of lengths, each of as
// many tokens as the longest text, and then a full batch of the longest.
func readAll(ctx context.Context, e *served.Engine, p promise) error {
	for n := p.tokens / 2; n > 1; n = n * 2 / 3 {
		if _, err := read(ctx, e, n, p.tokens/n); err != nil {
			return err
		}
	}
	got, err := read(ctx, e, p.tokens, p.sequences)
	if want := int64(p.tokens * p.sequences); err == nil && got != want {
		err = fmt.Errorf("the engine read %d tokens, want %d: the batch was not full", got, want)
	}
	return err
}

// read has texts of that many words read, cut to what the model reads, and
// returns the tokens that they had.
func read(ctx context.Context, e *served.Engine, words, texts int) (int64, error) {
	list := slices.Repeat([]string{strings.TrimSpace(strings.Repeat("the ", words))}, texts)
	got, err := e.Client.Embed(ctx, &wire.EmbedRequest{Id: "fill", Texts: list, Truncate: true})
	if wire.RefusalOf(err).GetParam() != "model" {
		return got.GetUsage().GetPromptTokens(), err
	}
	scores, err := e.Client.Rerank(ctx, &wire.RerankRequest{Id: "fill", Query: "the man", Documents: list, Truncate: true})
	return scores.GetUsage().GetPromptTokens(), err
}

// answer asks for what fills a context of tokens behind a prompt of so many,
// and reads it to its end. It calls admitted once it was, or failed.
func answer(ctx context.Context, e *served.Engine, tokens, prompt int, admitted func()) error {
	defer admitted()
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = int32(100 + i%16) // goes on by itself: a model that ends its turn repeats what it saw
	}
	zero := float32(0)
	stream, err := e.Client.Generate(ctx, &wire.GenerateRequest{
		Id: "fill", MaxTokens: int64(tokens - prompt), Sampling: &wire.Sampling{Temperature: &zero},
		Input: &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: ids}},
	})
	for err == nil {
		var ev *wire.GenerateEvent
		if ev, err = stream.Recv(); err != nil {
			break
		}
		if ev.GetAdmitted() != nil {
			admitted()
		}
		if f := ev.GetFinished(); f.GetError() != nil {
			err = errors.New(f.GetError().GetMessage())
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("a prompt of %d in a context of %d: %w", prompt, tokens, err)
}

// watching looks at a process from its start on.
type watching struct {
	ended chan struct{}
	done  sync.WaitGroup
	peak  atomic.Int64
	// reads says what kind of model it is.
	reads bool
	// All below belong to the goroutine of gauges until it is done.
	weights, kv, pooled int64
}

// start begins to read the footprint.
func (w *watching) start(e *served.Engine) {
	w.ended = make(chan struct{})
	w.done.Go(func() {
		for {
			began := time.Now()
			if n, err := e.Footprint(); err == nil { // it ends with the process, which Stop judges
				w.peak.Store(max(w.peak.Load(), n))
			}
			// The kernel walks every page of the process for it: a tenth of the
			// time is enough.
			next := time.NewTimer(max(look, 10*time.Since(began)))
			select {
			case <-next.C:
			case <-w.ended:
				next.Stop()
				return
			}
		}
	})
}

// stop ends it; a process that was never seen was not measured.
func (w *watching) stop() error {
	if w.ended == nil {
		return errors.New("the process never ran")
	}
	close(w.ended)
	w.done.Wait()
	if w.peak.Load() == 0 {
		return errors.New("the process has no footprint")
	}
	return nil
}

// gauges follows what the engine says it holds, until ctx ends.
func (w *watching) gauges(ctx context.Context, e *served.Engine) {
	stream, err := e.Client.Watch(ctx, &wire.WatchRequest{IntervalMilliseconds: 50})
	for err == nil {
		var st *wire.Status
		if st, err = stream.Recv(); err == nil {
			m := st.GetMemory()
			w.weights, w.kv, w.pooled = max(w.weights, m.GetWeightsBytes()), max(w.kv, m.GetKvInUseBytes()), max(w.pooled, m.GetPooledBytes())
		}
	}
}

package footprint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/served"
)

const (
	// look is the shortest time between two readings: arrays of a step live for
	// milliseconds, but their pages stay pooled.
	look = 20 * time.Millisecond
	// leastChunk is the fewest tokens of a prompt that the engine computes in a
	// step with decoding requests, and lead the length of a short answer.
	leastChunk, lead = 2, 16
	// shortPrompt is the longest of the prompts that come first. An engine that
	// does not know its speed yet computes 128 tokens of it at once, as a fast
	// machine always does: the result must not depend on how busy this one is.
	shortPrompt = 160
)

// filling is what is promised, and under which limits.
type filling struct {
	limits estimate
	promise
	reads bool
}

// fill publishes the limits as an agent does, and has the engine take what was
// promised while its gauges are followed.
func (o *observer) fill(ctx context.Context, e *served.Engine, f filling) error {
	if _, err := e.Client.SetLimits(ctx, &wire.Limits{MemoryBytes: f.limits.Limit, CacheBytes: f.limits.Cache, Sequence: 1}); err != nil {
		return fmt.Errorf("publish limits: %w", err)
	}
	work := func(ctx context.Context) error { return writeAll(ctx, e, f.promise) }
	if f.reads {
		work = func(ctx context.Context) error { return readAll(ctx, e, f.promise) }
	} else {
		for n := min(f.tokens, shortPrompt) - 2; n > 0; n = n * 2 / 3 {
			if err := generate(ctx, e, n+2, n, func() {}); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var gauges sync.WaitGroup
	gauges.Go(func() { o.gauges(ctx, e) })
	err := work(ctx)
	cancel()
	gauges.Wait()
	return err
}

// writeAll has sequences grow to the end of the context, after short prompts of many
// lengths, whose arrays stay pooled. All but the last wait for it with an answer that
// lasts longer than its prompt, and are in their last blocks meanwhile.
func writeAll(ctx context.Context, e *served.Engine, p promise) error {
	first := max(lead, p.tokens-p.tokens/leastChunk-2*lead*(p.sequences-1))
	prompts := append(slices.Repeat([]int{first}, p.sequences-1), p.tokens-lead)
	errs := make([]error, len(prompts))
	var answers sync.WaitGroup
	for i, prompt := range prompts {
		admitted := make(chan struct{})
		answers.Go(func() { errs[i] = generate(ctx, e, p.tokens, prompt, sync.OnceFunc(func() { close(admitted) })) })
		<-admitted
	}
	answers.Wait()
	return errors.Join(errs...)
}

// readAll has an embedding model or reranker read lists of texts of many
// lengths, each with as many tokens as the longest text, and then a full batch of
// the longest.
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

// read has texts read, cut to what the model accepts, and returns their tokens.
func read(ctx context.Context, e *served.Engine, words, texts int) (int64, error) {
	list := slices.Repeat([]string{strings.TrimSpace(strings.Repeat("the ", words))}, texts)
	got, err := e.Client.Embed(ctx, &wire.EmbedRequest{Id: "fill", Texts: list, Truncate: true})
	if wire.RefusalOf(err).GetParam() != "model" {
		return got.GetUsage().GetPromptTokens(), err
	}
	scores, err := e.Client.Rerank(ctx, &wire.RerankRequest{Id: "fill", Query: "the man", Documents: list, Truncate: true})
	return scores.GetUsage().GetPromptTokens(), err
}

// generate fills a context of tokens after a prompt. It calls admitted once the
// request was admitted or has failed.
func generate(ctx context.Context, e *served.Engine, tokens, prompt int, admitted func()) error {
	defer admitted()
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = int32(100 + i%16) // a model that could end its turn repeats what it saw
	}
	_, err := served.Generate(ctx, e.Client, &wire.GenerateRequest{MaxTokens: int64(tokens - prompt), Input: served.Tokens(ids)}, func(ev *wire.GenerateEvent) {
		if ev.GetAdmitted() != nil {
			admitted()
		}
	})
	if err != nil {
		return fmt.Errorf("a prompt of %d in a context of %d: %w", prompt, tokens, err)
	}
	return nil
}

// observer reads a process from its start on.
type observer struct {
	ended chan struct{}
	done  sync.WaitGroup
	peak  atomic.Int64
	// weights and kv belong to the goroutine of gauges until it has ended.
	weights, kv int64
}

// start begins to read the footprint.
func (o *observer) start(pid int) {
	o.ended = make(chan struct{})
	o.done.Go(func() {
		for {
			began := time.Now()
			if n, err := proc.Footprint(pid); err == nil { // the process may have ended, which Stop reports
				o.peak.Store(max(o.peak.Load(), n))
			}
			// The kernel walks every page of the process for a reading: a tenth of the
			// time is enough.
			next := time.NewTimer(max(look, 10*time.Since(began)))
			select {
			case <-next.C:
			case <-o.ended:
				next.Stop()
				return
			}
		}
	})
}

// stop ends the readings. It is an error if there was none.
func (o *observer) stop() error {
	if o.ended == nil {
		return errors.New("the process never ran")
	}
	close(o.ended)
	o.done.Wait()
	if o.peak.Load() == 0 {
		return errors.New("the process has no footprint")
	}
	return nil
}

// gauges follows what the engine reports, until ctx ends.
func (o *observer) gauges(ctx context.Context, e *served.Engine) {
	stream, err := e.Client.Watch(ctx, &wire.WatchRequest{IntervalMilliseconds: 50})
	for err == nil {
		var st *wire.Status
		if st, err = stream.Recv(); err == nil {
			o.weights, o.kv = max(o.weights, st.GetMemory().GetWeightsBytes()), max(o.kv, st.GetMemory().GetKvInUseBytes())
		}
	}
}

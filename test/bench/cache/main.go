// Command cache measures what an engine's prefix cache saves: the time to the
// first token of a prompt of which all but the end is known, beside the time
// that the same prompt takes an engine without a cache, on ref and on MLX.
//
// On ref the weights are real. MLX without a GPU takes many minutes for such a
// prompt of theirs, and so has a random model of its own. With -gpu it is MLX
// on a GPU, with the weights of a real shape.
//
// It owns the measurement, its bounds and the record in docs/bench. Every round
// has a prompt of its own, which is computed by both engines and then asked again
// with another end; the engines take turns. A third engine keeps its blocks on
// disk: it is unloaded after it computed the prompt, their pages are dropped from
// the kernel's cache, and it is loaded again before it is asked. It refuses a
// figure of a prompt of which other tokens were restored than should be, or whose
// blocks were still in memory.
//
//	go run ./test/bench/cache        (make bench-cache; test/bench/gpu/run.sh on a GPU)
//
// Start reading at measure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/stream"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/bench/pagecache"
	"metalfleet.dev/metalfleet/test/bench/served"
	"metalfleet.dev/metalfleet/test/bench/traffic"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

const (
	// known tokens of a prompt, whole blocks of 256, and what comes behind them.
	known, fresh = 4096, 16
	// context holds both and an answer of one token.
	context4k = 4352
	// firstID and ids bound the tokens of prompts: plain words of the vocabulary.
	firstID, ids = 1000, 20_000
)

// room is memory for the cache, and the queue of what waits for the disk.
type room struct{ memory, queue int64 }

// Rooms for two prompts of SmolLM2 on ref, which takes more, and any block of it; and
// for three of a model of 8 billion weights, and a whole prompt.
var onProcessor, onGPU = room{512 << 20, 64 << 20}, room{2 << 30, 1 << 30}

// options are the flags.
type options struct {
	root, dir, model, out, only, gpu string
	runs                             int
	limit                            time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "folder whose bin holds the programs")
	flag.StringVar(&o.model, "model", filepath.Join(".cache", "models", "smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), "real model for ref (hack/models/fetch.sh smollm2)")
	flag.StringVar(&o.dir, "dir", filepath.Join(".cache", "bench", "cache"), "folder for the random model, which is kept")
	flag.StringVar(&o.out, "out", filepath.Join("docs", "bench"), "folder for cache.json and cache.md; empty writes none")
	flag.StringVar(&o.only, "only", "", "one back end alone: ref or mlx")
	flag.StringVar(&o.gpu, "gpu", "", "folder to serve on a GPU; empty measures on the processor")
	flag.IntVar(&o.runs, "runs", 5, "prompts for each back end")
	flag.DurationVar(&o.limit, "limit", time.Hour, "most that everything may take")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-cache:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	if o.runs < 1 {
		return fmt.Errorf("%d rounds, want at least 1", o.runs)
	}
	if o.only != "" && o.only != "ref" && o.only != "mlx" {
		return fmt.Errorf("--only is %q, want ref or mlx", o.only)
	}
	if o.gpu != "" {
		if err := os.MkdirAll(o.dir, 0o755); err != nil {
			return fmt.Errorf("folder for blocks: %w", err)
		}
		m, err := measure(ctx, rounds{measured: o.runs, warm: 1}, onGPU, o.dir, served.Options{Program: filepath.Join(o.root, "bin", "mlx", "engine"), Backend: "mlx", Model: o.gpu, ContextTokens: context4k, Sequences: 1})
		if err != nil {
			return err
		}
		return newGPUReport(filepath.Base(o.gpu), m).Finish(o.out)
	}
	var all []measured
	random, err := randomModel(o.dir)
	if err != nil {
		return err
	}
	for _, b := range []struct{ name, program, model string }{
		{"ref", filepath.Join("bin", "engine"), o.model}, {"mlx", filepath.Join("bin", "mlx", "engine"), random},
	} {
		if o.only != "" && o.only != b.name {
			continue
		}
		m, err := measure(ctx, rounds{measured: o.runs}, onProcessor, o.dir, served.Options{Program: filepath.Join(o.root, b.program), Backend: b.name, Model: b.model, ContextTokens: context4k, Sequences: 1})
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		all = append(all, m)
	}
	return newReport(all).Finish(o.out)
}

// randomModel is a small one that is cheap to compute without a GPU, written
// unless it is there.
func randomModel(dir string) (string, error) {
	path := filepath.Join(dir, "random")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("folder for the model: %w", err)
	}
	c := tinymodel.Config{Seed: 1, Name: "bench-cache", Family: tinymodel.Qwen3, Layers: 4, Hidden: 256, FeedForward: 512, QueryHeads: 4, KVHeads: 2, HeadSize: 64,
		Context: 8192, Vocabulary: firstID + ids, NormEps: 1e-6, Theta: 1e6}
	return path, tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.AffineOf(4, 64, quant.BFloat16)})
}

// measured is what one back end took, in milliseconds and rounds.
type measured struct {
	backend string
	// computed without a cache, saved with one that knew nothing of the prompt,
	// warm with one that knew all but its end; step is the median of decoding.
	computed, saved, warm, step []float64
	// cold is with an engine that was loaded since, whose blocks lay on the disk
	// and not in the kernel's memory; diskBytes of them were read for each prompt.
	cold      []float64
	diskBytes float64
	// tokenBytes is what a cached token takes.
	tokenBytes float64
}

// rounds that are measured, and those before: a GPU's kernels are compiled when a
// shape is first computed.
type rounds struct{ measured, warm int }

// measure runs the rounds on two engines, one of them with a cache, and on a third
// that keeps its blocks below a folder of a disk.
func measure(ctx context.Context, r rounds, room room, folder string, settings served.Options) (m measured, err error) {
	m.backend = settings.Backend
	without, err := served.Start(ctx, settings)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, without.Stop()) }()
	settings.CacheMemory = room.memory
	with, err := served.Start(ctx, settings)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, with.Stop()) }()
	for round := range r.warm + r.measured {
		if round == r.warm {
			m.computed, m.saved, m.warm, m.step, m.cold = nil, nil, nil, nil, nil
		}
		for _, step := range []struct {
			engine *served.Engine
			end    int
			cached int64
			into   *[]float64
		}{{without, 0, 0, &m.computed}, {with, 0, 0, &m.saved}, {with, 1, known, &m.warm}} {
			took, err := firstToken(ctx, step.engine, prompt(round, step.end), step.cached)
			if err != nil {
				return m, fmt.Errorf("round %d: %w", round+1, err)
			}
			*step.into = append(*step.into, float64(took.Microseconds())/1000)
		}
		if err := m.fromDisk(ctx, folder, room, settings, round); err != nil {
			return m, fmt.Errorf("round %d, from the disk: %w", round+1, err)
		}
		step, err := decodeStep(ctx, with)
		if err != nil {
			return m, fmt.Errorf("round %d: %w", round+1, err)
		}
		m.step = append(m.step, step)
		if round == 0 {
			if m.tokenBytes, err = bytesPerToken(ctx, with); err != nil {
				return m, err
			}
		}
	}
	return m, nil
}

// fromDisk computes a round's prompt, unloads the engine, and asks another one.
func (m *measured) fromDisk(ctx context.Context, folder string, room room, settings served.Options, round int) (err error) {
	dir, err := os.MkdirTemp(folder, "kv-") // temporary folders may be memory
	if err != nil {
		return fmt.Errorf("folder for blocks: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	owner, err := cold.Open(cold.Options{FS: disk.OS{}, Dir: dir})
	if err != nil {
		return err
	}
	settings.DiskQueue, settings.ModelDigest = room.queue, "bench"
	settings.Disk = func(o kv.Origin) (stream.Lease, error) { return owner.Lease(o, nil) }
	for end, cached := range []int64{0, known} {
		e, err := served.Start(ctx, settings)
		if err != nil {
			return err
		}
		took, err := firstToken(ctx, e, prompt(round, end), cached)
		if err := errors.Join(err, e.Stop()); err != nil {
			return err
		}
		if cached > 0 {
			m.cold = append(m.cold, float64(took.Microseconds())/1000)
		} else if m.diskBytes, err = dropPages(dir); err != nil {
			return err
		}
	}
	return nil
}

// dropPages drops what the kernel keeps of all blocks in memory, and says how
// many bytes they have.
func dropPages(dir string) (float64, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "?", "*.kv"))
	if err == nil && len(paths) == 0 {
		err = errors.New("there are none")
	}
	if err != nil {
		return 0, fmt.Errorf("blocks in %s: %w", dir, err)
	}
	var kept, all int64
	for _, path := range paths {
		if err := pagecache.Forget(path); err != nil {
			return 0, err
		}
		in, size, err := pagecache.Resident(path)
		if err != nil {
			return 0, err
		}
		kept, all = kept+in, all+size
	}
	if kept > all/100 {
		return 0, fmt.Errorf("%d of %d bytes of %s stay in the kernel's memory", kept, all, dir)
	}
	return float64(all), nil
}

// prompt of one round: known tokens that no other round has, and an end.
func prompt(round, end int) []int32 {
	out := make([]int32, known+fresh)
	for i := range out {
		seed := round
		if i >= known {
			seed += 1000 * (end + 1)
		}
		out[i] = int32(firstID + (i*37+seed*7919+i*i%101)%ids)
	}
	return out
}

// firstToken is the time from the call to the first token.
func firstToken(ctx context.Context, e *served.Engine, tokens []int32, cached int64) (time.Duration, error) {
	zero := float32(0)
	began, took := time.Now(), time.Duration(0)
	stream, err := e.Client.Generate(ctx, &wire.GenerateRequest{Id: "bench", MaxTokens: 1, Sampling: &wire.Sampling{Temperature: &zero},
		Input: &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: tokens}}})
	if err != nil {
		return 0, fmt.Errorf("generate: %w", err)
	}
	for {
		ev, err := stream.Recv()
		if err == io.EOF {
			return 0, errors.New("the stream ended without its last event")
		}
		if err != nil {
			return 0, fmt.Errorf("generate: %w", err)
		}
		if took == 0 && ev.GetAdmitted() == nil {
			took = time.Since(began)
		}
		f := ev.GetFinished()
		switch {
		case f == nil:
		case f.GetError() != nil:
			return 0, fmt.Errorf("generate: %s", f.GetError().GetMessage())
		case f.GetUsage().GetCachedTokens() != cached:
			return 0, fmt.Errorf("%d tokens were restored, want %d", f.GetUsage().GetCachedTokens(), cached)
		default:
			return took, nil
		}
	}
}

// stepTokens is how many steps a decode step is the median of.
const stepTokens = 32

// decodeStep is the median time between two tokens of an answer, in milliseconds.
func decodeStep(ctx context.Context, e *served.Engine) (float64, error) {
	a := traffic.Ask(ctx, traffic.Engine{Client: e.Client}, traffic.Request{Prompt: traffic.Prompt(fresh, 1), MaxTokens: stepTokens})
	return float64(traffic.Percentile(a.Gaps, 50).Microseconds()) / 1000, a.Err
}

// bytesPerToken of what is held after one prompt, all of whose blocks are.
func bytesPerToken(ctx context.Context, e *served.Engine) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := e.Client.Watch(ctx, &wire.WatchRequest{})
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	st, err := w.Recv()
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	if st.GetPrefixCache().GetBytes() == 0 {
		return 0, errors.New("nothing is held after a prompt")
	}
	return float64(st.GetPrefixCache().GetBytes()) / known, nil
}

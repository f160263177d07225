package serving

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/stream"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/served"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

var cacheScenario = scenario.Scenario{
	Name: "cache", Title: "The first token of a known prompt", Rounds: 5, Parts: []string{"ref", "mlx"}, Run: runCache,
	About: fmt.Sprintf(`The time from the call to the first token of prompts of %d tokens, whole blocks, and %d after them, through the engine's
socket: computed by an engine without a cache; computed and saved by one with a cache; asked again with another end; and asked of an engine
that was loaded since, whose blocks had left the page cache, too. Each round has a prompt of its own. ref: SmolLM2-135M in Q4_1. mlx, which
computes on the processor: a random model of 4 layers, 256 wide, in 4 bits.`, known, fresh) + aboutGPU +
		fmt.Sprintf(" The bound is then two steps of decoding and a copy of the known tokens at %g GB/s.", copyRate/1e9),
}

const (
	// known tokens of a prompt, whole blocks of 256, and fresh ones after them.
	known, fresh = 4096, 16
	// cacheContext holds both and an answer of one token.
	cacheContext = 4352
	// firstID and ids bound the tokens of prompts: plain words of the vocabulary.
	firstID, ids = 1000, 20_000
	// stepTokens is how many steps the median step of decoding is taken from.
	stepTokens = 32

	// The most that a known prompt may take, as a share of computing it: in memory,
	// and on disk.
	mostWarm, mostCold = 0.02, 0.1
	// copyRate is the least speed, in bytes per second, of a copy to a GPU: half of
	// what a PCIe link of the third generation moves.
	copyRate = 8e9
)

// room is memory for the cache, and for the queue of blocks that wait for the
// disk.
type room struct{ memory, queue int64 }

// processorRoom holds two prompts of SmolLM2 on ref, which takes more, and any
// block of it; gpuRoom three of a model of 8 billion weights, and a whole prompt.
var processorRoom, gpuRoom = room{512 << 20, 64 << 20}, room{2 << 30, 1 << 30}

// knownPrompts is one back end that is asked prompts that it knows in part.
type knownPrompts struct {
	served.Options
	room room
	// dir is on a disk; temporary folders may be memory.
	dir        string
	round      int
	tokenBytes float64
}

func runCache(ctx context.Context, e *scenario.Env, r *report.Report) error {
	gguf, err := models.Fetch(ctx, "smollm2")
	if err != nil {
		return err
	}
	c := tinymodel.Config{Seed: 1, Name: "bench-cache", Family: tinymodel.Qwen3, Layers: 4, Hidden: 256, FeedForward: 512, QueryHeads: 4, KVHeads: 2, HeadSize: 64,
		Context: 8192, Vocabulary: firstID + ids, NormEps: 1e-6, Theta: 1e6}
	random, err := models.Write(e.Model("random-4x256-21000"), c, models.Packed())
	if err != nil {
		return err
	}
	for _, b := range []struct{ name, program, model string }{{"ref", e.Engine, gguf}, {"mlx", e.MLXEngine, random}} {
		if !e.Wants(b.name) {
			continue
		}
		k := &knownPrompts{Options: served.Options{Program: b.program, Backend: b.name, Model: b.model}, room: processorRoom, dir: e.Model("kv")}
		samples, err := k.measure(ctx, e, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		samples.Fill(r, cacheFigures(b.name)...)
	}
	return nil
}

func cacheGPU(shape *string) runner {
	return func(ctx context.Context, e *scenario.Env, r *report.Report) error {
		folder, err := models.Shape(e.Cache, *shape)
		if err != nil {
			return err
		}
		k := &knownPrompts{Options: served.Options{Program: e.MLXEngine, Backend: "mlx", Model: folder}, room: gpuRoom, dir: e.Model("kv")}
		samples, err := k.measure(ctx, e, 1)
		if err != nil {
			return err
		}
		samples.Fill(r, cacheGPUFigures(k.tokenBytes)...)
		return nil
	}
}

// cacheFigures are those that both kinds of machines have.
func cacheFigures(backend string) []scenario.Figure {
	of := func(value string) string { return backend + "/" + value }
	return []scenario.Figure{
		{Name: backend + ", computed without a cache", Unit: "ms", Of: of("computed")},
		{Name: backend + ", computed and saved", Unit: "ms", Of: of("saved")},
		{Name: backend + ", known, in memory", Unit: "ms", Of: of("warm")},
		{Name: backend + ", known, on disk, after a load", Unit: "ms", Of: of("cold")},
		{Name: backend + ", known / computed", Of: of("warm"), Over: of("computed"), Bound: report.AtMost(mostWarm)},
		{Name: backend + ", known, on disk / computed", Of: of("cold"), Over: of("computed"), Bound: report.AtMost(mostCold)},
		{Name: backend + ", computed and saved / computed", Of: of("saved"), Over: of("computed")},
		{Name: backend + ", a cached token", Unit: "bytes", Of: of("token bytes")},
		{Name: backend + ", read from disk for a prompt", Unit: "bytes", Of: of("disk bytes")},
	}
}

// cacheGPUFigures bound the copy of known tokens instead of shares of computing
// them, which takes a GPU little time.
func cacheGPUFigures(tokenBytes float64) []scenario.Figure {
	figures := cacheFigures("mlx")
	for i := range figures {
		figures[i].Bound = report.Bound{}
	}
	return append(figures,
		scenario.Figure{Name: "mlx, a step of decoding", Unit: "ms", Of: "mlx/step"},
		scenario.Figure{Name: "mlx, known, beyond two steps", Unit: "ms", Of: "mlx/beyond", Bound: report.AtMost(1000 * tokenBytes * known / copyRate)})
}

// measure runs the rounds on two engines, of which one has a cache.
func (k *knownPrompts) measure(ctx context.Context, e *scenario.Env, warm int) (samples scenario.Samples, err error) {
	k.ContextTokens, k.Sequences = cacheContext, 1
	if err := os.MkdirAll(k.dir, 0o755); err != nil {
		return nil, fmt.Errorf("folder for blocks: %w", err)
	}
	without, err := served.Start(ctx, k.Options)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, without.Stop()) }()
	k.CacheMemory = k.room.memory
	with, err := served.Start(ctx, k.Options)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, with.Stop()) }()
	return scenario.Rounds{Count: e.Rounds, Warm: warm, Log: e.Log}.Run(ctx, scenario.One(k.Backend, func(ctx context.Context) (scenario.Values, error) { return k.ask(ctx, without, with) }))
}

// ask asks for one prompt in every way.
func (k *knownPrompts) ask(ctx context.Context, without, with *served.Engine) (scenario.Values, error) {
	k.round++
	v := scenario.Values{}
	for _, step := range []struct {
		name   string
		engine *served.Engine
		end    int
		cached int64
	}{{"computed", without, 0, 0}, {"saved", with, 0, 0}, {"warm", with, 1, known}} {
		took, err := firstToken(ctx, step.engine, knownPrompt(k.round, step.end), step.cached)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		v[step.name] = traffic.Milliseconds(took)
	}
	if err := k.fromDisk(ctx, v); err != nil {
		return nil, fmt.Errorf("from disk: %w", err)
	}
	if k.tokenBytes == 0 { // later rounds hold several prompts
		st, err := with.Status(ctx)
		if err != nil {
			return nil, err
		}
		if k.tokenBytes = float64(st.GetPrefixCache().GetBytes()) / known; k.tokenBytes == 0 {
			return nil, errors.New("nothing is cached after a prompt")
		}
	}
	v["token bytes"] = k.tokenBytes
	a := traffic.Ask(ctx, traffic.Engine{Client: with.Client}, traffic.Request{Prompt: traffic.Prompt(fresh, 1), MaxTokens: stepTokens})
	v["step"] = traffic.Milliseconds(traffic.Percentile(a.Gaps, 50))
	v["beyond"] = v["warm"] - 2*v["step"]
	return v, a.Err
}

// fromDisk computes the round's prompt with an engine that writes blocks to
// disk, and asks another one that was loaded after it.
func (k *knownPrompts) fromDisk(ctx context.Context, v scenario.Values) (err error) {
	dir, err := os.MkdirTemp(k.dir, "kv-")
	if err != nil {
		return fmt.Errorf("folder for blocks: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	o := k.Options
	o.DiskQueue, o.ModelDigest = k.room.queue, "bench"
	o.CacheDir = blocks.ModelFolder(dir, o.ModelDigest)
	owner, err := cold.Open(cold.Options{FS: disk.OS{}, Dir: dir})
	if err := errors.Join(err, os.MkdirAll(o.CacheDir, 0o700)); err != nil { // a confined engine cannot make it
		return err
	}
	o.Disk = func(origin kv.Origin) (stream.Lease, error) { return owner.Lease(origin, nil) }
	for end, cached := range []int64{0, known} {
		e, err := served.Start(ctx, o)
		if err != nil {
			return err
		}
		took, err := firstToken(ctx, e, knownPrompt(k.round, end), cached)
		if err := errors.Join(err, e.Stop()); err != nil {
			return err
		}
		if cached > 0 {
			v["cold"] = traffic.Milliseconds(took)
			continue
		}
		blocks, err := filepath.Glob(filepath.Join(dir, "*", "*", "?", "*.kv"))
		if err != nil {
			return err
		}
		bytes, err := proc.DropPages(blocks...)
		if err != nil {
			return err
		}
		v["disk bytes"] = float64(bytes)
	}
	return nil
}

// knownPrompt has known tokens that no other round has, and an end.
func knownPrompt(round, end int) []int32 {
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

// firstToken times a prompt from the call to the first token. The engine has to
// find the given number of its tokens in the cache.
func firstToken(ctx context.Context, e *served.Engine, prompt []int32, cached int64) (took time.Duration, err error) {
	began := time.Now()
	usage, err := served.Generate(ctx, e.Client, &wire.GenerateRequest{MaxTokens: 1, Input: served.Tokens(prompt)}, func(ev *wire.GenerateEvent) {
		if took == 0 && ev.GetAdmitted() == nil {
			took = time.Since(began)
		}
	})
	if err == nil && usage.GetCachedTokens() != cached {
		err = fmt.Errorf("%d tokens were restored, want %d", usage.GetCachedTokens(), cached)
	}
	return took, err
}

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/engine/constraint"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/weights"
)

// longestText of a request, in bytes: the gateway takes no longer body.
const longestText = 16 << 20

var (
	errContext = errors.New("unsupported context length")
	// errCanary: the model computes, but its result is not usable.
	errCanary = errors.New("the model cannot generate a token")
)

// loadedModel is what a loop computes with.
type loadedModel struct {
	input *inputProcessor
	model arch.Model
	// adapters by name.
	adapters map[string]*nn.Adapter
	// tower of a model with image input; nil without.
	tower       *nn.Tower
	cache       tensor.Cache
	cacheTokens int
	// heap is what the heap of Go may take of the limit, in bytes.
	heap int64
	// blockTokens the cache takes at a time. shape is how prompts are divided into
	// blocks, if there is a prefix cache.
	blockTokens int
	shape       kv.Shape
	// embedder takes the place of model and cache in an embedding model or reranker.
	embedder *embed.Model
}

func (m *loadedModel) release() {
	if m.cache != nil {
		m.cache.Release()
	}
	if m.tower != nil {
		m.tower.Release()
	}
	for _, a := range m.adapters {
		a.Release()
	}
	if m.model != nil {
		m.model.Release()
	}
	if m.embedder != nil {
		m.embedder.Release()
	}
}

// loader reads a model and checks that it works.
type loader struct {
	*shared
	// known is called once it is known what the model is, before its weights are read.
	known func(*inputProcessor)
}

// load reads the model and runs one token through it. After an error nothing stays loaded.
func (l *loader) load() (*loadedModel, error) {
	m, err := l.read()
	if err != nil {
		return nil, err
	}
	debug.FreeOSMemory() // of headers and weights, before the first step takes its own
	if l.opts.HeapLimit != nil && l.opts.LimitBytes > 0 {
		// An allocation does not wait for the collection that it starts: the heap passes its limit
		// by the largest one, the text of a request.
		l.opts.HeapLimit(max(m.heap/2, m.heap-longestText))
	}
	if err := l.canary(m); err != nil {
		m.release()
		return nil, fmt.Errorf("warm up: %w", err)
	}
	return m, nil
}

func (l *loader) read() (*loadedModel, error) {
	f, err := weights.Open(l.opts.ModelPath)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := l.describe(f)
	if err != nil {
		return nil, err
	}
	if err := p.open(l.hard, f, l.opts.ChatTemplate); err != nil {
		return nil, ofModel(l.opts.ModelPath, err)
	}
	adapters, err := l.openAll(f, p.task)
	defer adapters.close()
	if err != nil {
		return nil, err
	}
	debug.FreeOSMemory() // garbage of the vocabulary may be more than the context takes later
	m := &loadedModel{input: p, cacheTokens: l.opts.CacheTokens}
	if m.cacheTokens == 0 {
		m.cacheTokens = p.context * l.opts.Sequences
	}
	if err := l.reserve(m, adapters.bytes()); err != nil {
		return nil, err
	}
	l.known(p)
	if err := l.readWeights(f, m); err != nil {
		return nil, ofModel(l.opts.ModelPath, err)
	}
	if err := l.loadAdapters(m, adapters); err != nil {
		m.release()
		return nil, err
	}
	return m, nil
}

// describe decides what will be served.
func (l *loader) describe(f *weights.File) (*inputProcessor, error) {
	if !l.opts.Drafts || l.opts.Task == model.Embed || l.opts.Task == model.Rerank {
		f.DropDraft()
	}
	facts, err := f.Facts()
	if err != nil {
		return nil, err
	}
	p := &inputProcessor{facts: facts, adapters: digests(l.opts.Adapters), context: l.opts.ContextTokens, ends: map[int32]bool{}, long: share.NewTurns(1), received: share.NewBytes(receivedBytes), texts: share.NewBytes(waitingTextBytes), unread: share.NewBytes(cmp.Or(l.opts.unread, maxUnread)), renders: share.NewTurns(renderPlaces)}
	if p.context == 0 {
		p.context = int(facts.ContextTokens)
	}
	if int64(p.context) > facts.ContextTokens || l.opts.CacheTokens != 0 && l.opts.CacheTokens < p.context {
		return nil, fmt.Errorf("%w: %d tokens with a cache of %d, but the model supports %d", errContext, p.context, l.opts.CacheTokens, facts.ContextTokens)
	}
	if p.task = l.opts.Task; p.task == "" {
		p.task = facts.TaskOf()
	}
	if p.task != model.Generate {
		p.received = share.NewBytes(receivedTextBytes)
	}
	if p.task == model.Generate && facts.EncoderLayers > 0 {
		return nil, fmt.Errorf("an encoder cannot generate text: %w", weights.ErrUnsupported)
	}
	processor, err := f.Processor()
	switch n := f.Unread(); {
	case facts.Sees() && p.task == model.Generate:
		p.images = newImageProcessor(processor, *f.Dim.Tower)
	case n > 0 && err != nil:
		l.log.Info("the vision tower is not loaded: the model runs with text only", "bytes", n, "reason", err.Error())
	}
	return p, nil
}

// open reads the vocabulary and the template, and the conventions of an embedding model or
// reranker. It comes before the weights and not in parallel, which would take as much
// memory again while each engine loads: a Mac's memory is scarcer than the tenth of a
// second of a long vocabulary.
func (p *inputProcessor) open(ctx context.Context, f *weights.File, template string) error {
	var err error
	if p.text, err = text.OpenWith(ctx, f, template); err != nil {
		return err
	}
	p.tok = p.text.Tokenizer
	for _, id := range p.tok.Special().Ends() {
		p.ends[id] = true
	}
	if p.task == model.Generate {
		return nil
	}
	if p.conventions, err = embed.ConventionsOf(f, p.tok, p.task); err != nil {
		return err
	}
	p.conventions.Limit = min(p.conventions.Limit, p.context)
	return nil
}

// reserve computes what the model takes and sets it in the guard, or refuses a model that is
// too large for the limit.
func (l *loader) reserve(m *loadedModel, adapters int64) error {
	p, name := m.input, kernelsName(l.opts.Backend)
	terms, err := footprint.Estimate(p.facts, footprint.Context{
		Tokens: int64(p.context), Sequences: int64(l.opts.Sequences), CacheTokens: int64(m.cacheTokens), PrefixCache: l.opts.CacheMemory, CacheQueue: l.opts.CacheQueue, Adapters: adapters, Backend: name,
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errContext, err)
	}
	if limit := l.opts.LimitBytes; limit > 0 && terms.Weights+terms.Overhead+terms.PrefixCache+terms.CacheQueue > limit {
		return fmt.Errorf("weights of %d bytes, %d bytes for the process and %d for the prefix cache do not fit the limit of %d: %w",
			terms.Weights, terms.Overhead, terms.PrefixCache+terms.CacheQueue, limit, tensor.ErrMemory)
	}
	m.heap = terms.Heap(l.opts.LimitBytes)
	l.divide(p, m.heap, l.opts.LimitBytes-terms.Total())
	kernels := footprint.KernelsOf(name)
	kernels.Adapted = adapters > 0
	known := guard.Model{Weights: p.facts.WeightBytes + adapters, Overhead: terms.Overhead, Estimator: l.opts.estimator}
	if known.Estimator == nil {
		known.Estimator = guard.Arithmetic(p.facts, kernels)
	}
	if p.constraints != nil {
		known.Extra = p.constraints.Bytes
	}
	l.guard.SetModel(known)
	l.counters.loadTotal.Store(p.facts.WeightBytes + adapters)
	return nil
}

// divide gives tools and compiled constraints their parts of the heap. What requests hold of these,
// of prompts, and of texts until they are read counts together, against the slack of the limit: the rest of
// it is for renders, garbage and output that is not read yet. Vectors count with their texts.
func (l *loader) divide(p *inputProcessor, heap, slack int64) {
	part := func(most, least, of int64) int64 {
		if l.opts.LimitBytes == 0 {
			return most
		}
		return min(most, max(least, heap/of))
	}
	p.tools, p.prompts = share.NewBytes(part(toolsBytes, leastToolsBytes, 4)), share.NewBytes(promptBytes)
	if p.task == model.Generate {
		p.constraints = constraint.NewCompiler(p.tok, p.text.Rows(), p.ends, part(grammarBytes, leastGrammarBytes, 3))
		p.constraints.OnPanic(func(value any, stack []byte) { logPanic(l.log, "mask", value, stack) })
	}
	if p.task != model.Generate {
		p.texts = share.NewBytes(p.waitingBytes(l.opts.LimitBytes > 0, slack))
	}
	if l.opts.LimitBytes == 0 || p.task != model.Generate {
		return
	}
	held := share.NewBytes(max(receivedBytes, slack*5/8))
	p.received.Within(held)
	p.tools.Within(held)
	p.prompts.Within(held)
	p.constraints.CountIn(held)
}

// kernelsName is the name of a back end in package footprint: without a GPU, MLX has other
// attention kernels.
func kernelsName(b tensor.Backend) string {
	if g, ok := b.(interface{ GPU() bool }); ok && !g.GPU() {
		return footprint.MLXCPU
	}
	return b.Name()
}

// readWeights makes the model and its cache. After an error nothing stays loaded.
func (l *loader) readWeights(f *weights.File, m *loadedModel) (err error) {
	progress := func(n int64) { l.counters.loaded.Add(n) }
	if m.input.task != model.Generate {
		m.embedder, err = embed.Load(l.hard, l.opts.Backend, f, m.input.conventions, progress)
		return err
	}
	if m.model, err = arch.Load(l.hard, l.opts.Backend, f, progress); err != nil {
		return err
	}
	if m.input.images != nil {
		if m.tower, err = nn.LoadTower(l.hard, nn.NewLoader(l.opts.Backend, f.Tower(), progress), m.input.images.tower); err != nil {
			m.release()
			return fmt.Errorf("load the vision tower: %w", err)
		}
	}
	for _, c := range f.Conversions() {
		l.log.Warn("some weights are loaded in another format than in the file", "type", c.From.String(), "as", c.To.String(), "tensors", c.Tensors,
			"fileBytes", c.Bytes, "heldBytes", c.Held, "worstDifference", c.Worst, "largestValue", c.Largest)
	}
	if err = l.makeCache(m); err != nil {
		m.release()
	}
	return err
}

// makeCache makes the KV cache of requests, divided into blocks if there is a prefix cache.
func (l *loader) makeCache(m *loadedModel) error {
	spec := m.model.CacheSpec()
	var err error
	if l.opts.keepsPrefixes() {
		if m.shape, spec.BlockTokens, err = blockShape(spec, m.input.context); err != nil {
			return err
		}
	}
	m.blockTokens = spec.BlockTokens
	m.cache, err = l.opts.Backend.NewCache(spec)
	return err
}

// canary generates one token: a model that loads and cannot step, or whose scores are not
// numbers, is not ready. Of an embedding model or reranker, it computes one vector.
func (l *loader) canary(m *loadedModel) error {
	if m.embedder != nil {
		l.counters.steps.Add(1)
		out, err := m.embedder.Compute(l.hard, []embed.Input{{IDs: []int32{0}, Types: []int32{0}}})
		if err != nil {
			return err
		}
		for _, row := range out {
			if i := slices.IndexFunc(row, func(v float32) bool { return v-v != 0 }); i >= 0 {
				return fmt.Errorf("%w: element %d of its vector is %v", errCanary, i, row[i])
			}
		}
		return nil
	}
	sc := l.opts.Backend.NewScope(l.hard)
	defer sc.Close()
	defer m.cache.Drop(0)
	out := m.model.Step(sc, m.cache, sc.IDs([]int32{0}), []tensor.Segment{{Request: 0, Length: 1}}, []int{0})
	if err := sc.Err(); err != nil {
		if errors.Is(err, context.Canceled) {
			return fmt.Errorf("stopped: %w", err)
		}
		return err
	}
	scores := make([]float32, m.input.facts.VocabularySize)
	sc.Read(out, scores)
	l.counters.steps.Add(1)
	if err := sc.Err(); err != nil {
		return err
	}
	if _, err := sample.Argmax(scores); err != nil {
		return fmt.Errorf("%w: %w", errCanary, err)
	}
	return nil
}

// sharedPrompts are the tokens of the shared prefixes, each as the beginning of a prompt
// and as the system message of a chat.
func (l *loader) sharedPrompts(p *inputProcessor) (out [][]int32) {
	for i, prefix := range l.opts.SharedPrefixes {
		asChat := &text.Chat{Messages: []chat.Message{{Role: "system", Content: prefix}, {Role: "user", Content: "x"}}}
		for _, r := range []Request{{Prompt: &prefix}, {Chat: asChat}} {
			tokens, refusal := p.tokens(context.Background(), r, nil)
			if refusal != nil {
				l.log.Warn("a shared prefix cannot be used", "index", i, "chat", r.Chat != nil, "reason", refusal.Message)
				continue
			}
			out = append(out, tokens)
		}
	}
	return out
}

package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

var errContext = errors.New("unsupported context length")

// serving is what preflight needs; it does not change once loaded.
type serving struct {
	facts    model.Facts
	text     *text.Text
	tok      *tokenizer.Tokenizer
	ends     map[int32]bool
	context  int
	overhead int64
	// task of the model, and how its inputs are written where it reads them.
	task        model.Task
	conventions *embed.Conventions
	// estimator of what prompts take.
	estimator estimator
	// grammars that answers are held to, and the tokens that must not begin such an answer.
	grammars       *grammar.Cache
	shownOtherwise func() []int32
	// maskings are under way; they end with their requests.
	maskings sync.WaitGroup
}

// loadedModel is what the loop computes with.
type loadedModel struct {
	serving     *serving
	model       arch.Model
	cache       tensor.Cache
	cacheTokens int
	// blockTokens the cache takes at a time; shape says where prompts are cut, if
	// they are remembered.
	blockTokens int
	shape       kv.Shape
	// reader is there in place of model and cache where texts are read.
	reader *embed.Model
}

func (m *loadedModel) release() {
	if m.cache != nil {
		m.cache.Release()
	}
	if m.model != nil {
		m.model.Release()
	}
	if m.reader != nil {
		m.reader.Release()
	}
}

// load reads the model, runs one token through it, and declares Ready. After
// an error nothing stays loaded.
func (e *Engine) load() (*loadedModel, error) {
	began := time.Now()
	m, err := e.read()
	if err != nil {
		return nil, err
	}
	debug.FreeOSMemory() // what reading headers and weights left behind, before the first step takes its own
	if err := e.canary(m); err != nil {
		m.release()
		return nil, fmt.Errorf("warm up: %w", err)
	}
	e.remember(m)
	e.ready()
	e.log.Info("model loaded", "bytes", e.loaded.Load(), "milliseconds", time.Since(began).Milliseconds())
	return m, nil
}

// ready opens the engine to requests and, in the same breath, to chores: an
// abort that follows a request must find it.
func (e *Engine) ready() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == Loading {
		e.attending = true
		e.setState(Ready, "", "")
	}
}

func (e *Engine) read() (*loadedModel, error) {
	f, err := weights.Open(e.opts.ModelPath)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if n := f.Unread(); n > 0 {
		e.log.Info("the vision tower is not loaded: the model runs with text only", "bytes", n)
	}
	s, err := e.prepare(f)
	if err != nil {
		return nil, err
	}
	if err := s.openText(e.hard, f); err != nil {
		return nil, err
	}
	debug.FreeOSMemory() // what reading the vocabulary let die may be more than the context takes later
	return e.readWeights(e.hard, f, s)
}

// readWeights makes the model and its cache.
func (e *Engine) readWeights(ctx context.Context, f *weights.File, s *serving) (*loadedModel, error) {
	m := &loadedModel{serving: s, cacheTokens: e.opts.CacheTokens}
	if m.cacheTokens == 0 {
		m.cacheTokens = s.context * e.opts.Sequences
	}
	name := arithmeticName(e.opts.Backend)
	terms, err := footprint.Estimate(s.facts, footprint.Context{Tokens: int64(s.context), Sequences: int64(e.opts.Sequences), CacheTokens: int64(m.cacheTokens), PrefixCache: e.opts.CacheMemory, CacheQueue: e.opts.CacheQueue, Backend: name})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errContext, err)
	}
	s.overhead = terms.Overhead
	if s.estimator = e.opts.estimator; s.estimator == nil {
		s.estimator = arithmetic{s.facts, footprint.KernelsOf(name)}
	}
	if limit := e.opts.LimitBytes; limit > 0 && terms.Weights+terms.Overhead+terms.PrefixCache+terms.CacheQueue > limit {
		return nil, fmt.Errorf("weights of %d bytes, %d bytes for the process and %d for the prefix cache do not fit the limit of %d: %w",
			terms.Weights, terms.Overhead, terms.PrefixCache+terms.CacheQueue, limit, tensor.ErrMemory)
	}
	e.mu.Lock()
	e.serving = s
	e.mu.Unlock()
	e.limits.again(e.applyLimits)
	e.loadTotal.Store(s.facts.WeightBytes)
	if s.task != model.Generate {
		m.reader, err = embed.Load(ctx, e.opts.Backend, f, s.conventions, func(n int64) { e.loaded.Add(n) })
		return m, err
	}
	if m.model, err = arch.Load(ctx, e.opts.Backend, f, func(n int64) { e.loaded.Add(n) }); err != nil {
		return nil, err
	}
	for _, c := range f.Conversions() {
		e.log.Warn("some weights are loaded in another format than in the file", "type", c.From.String(), "as", c.To.String(), "tensors", c.Tensors,
			"fileBytes", c.Bytes, "heldBytes", c.Held, "worstDifference", c.Worst, "largestValue", c.Largest)
	}
	if err := e.makeCache(m); err != nil {
		m.release()
		return nil, err
	}
	return m, nil
}

// makeCache makes the cache of requests, cut as prompts are where they are to be
// remembered.
func (e *Engine) makeCache(m *loadedModel) error {
	spec := m.model.CacheSpec()
	var err error
	if e.opts.remembers() {
		if m.shape, spec.BlockTokens, err = cutAt(spec, m.serving.context); err != nil {
			return err
		}
	}
	m.blockTokens = spec.BlockTokens
	m.cache, err = e.opts.Backend.NewCache(spec)
	return err
}

// arithmeticName is what package footprint calls a back end: without a GPU, MLX
// attends by other kernels.
func arithmeticName(b tensor.Backend) string {
	if g, ok := b.(interface{ GPU() bool }); ok && !g.GPU() {
		return footprint.MLXCPU
	}
	return b.Name()
}

// prepare says what will be served.
func (e *Engine) prepare(f *weights.File) (*serving, error) {
	facts, err := f.Facts()
	if err != nil {
		return nil, err
	}
	s := &serving{facts: facts, context: e.opts.ContextTokens, ends: map[int32]bool{}}
	if s.context == 0 {
		s.context = int(facts.ContextTokens)
	}
	if int64(s.context) > facts.ContextTokens || e.opts.CacheTokens != 0 && e.opts.CacheTokens < s.context {
		return nil, fmt.Errorf("%w: %d tokens with a cache of %d, but the model supports %d", errContext, s.context, e.opts.CacheTokens, facts.ContextTokens)
	}
	if s.task = e.opts.Task; s.task == "" {
		s.task = facts.TaskOf()
	}
	if s.task == model.Generate && facts.EncoderLayers > 0 {
		return nil, fmt.Errorf("an encoder cannot generate text: %w", weights.ErrUnsupported)
	}
	return s, nil
}

// openText reads the vocabulary and the template, and how a model that reads
// wants its texts to be put. It comes before the weights
// and not beside them, which would take as much again for each engine only while
// it loads: a Mac's memory is scarcer than the tenth of a second of a long
// vocabulary.
func (s *serving) openText(ctx context.Context, f *weights.File) error {
	var err error
	if s.text, err = text.Open(ctx, f); err != nil {
		return err
	}
	s.tok = s.text.Tokenizer
	for _, id := range s.tok.Special().Ends() {
		s.ends[id] = true
	}
	if s.task == model.Generate {
		s.grammars = grammar.NewCache(s.tok.Size(), s.spellShown, grammarBytes)
		s.shownOtherwise = sync.OnceValue(s.findShownOtherwise)
		return nil
	}
	if s.conventions, err = embed.ConventionsOf(f, s.tok, s.task); err != nil {
		return err
	}
	s.conventions.Limit = min(s.conventions.Limit, s.context)
	return nil
}

// spellShown is what a token shows; one that shows nothing has no bytes.
func (s *serving) spellShown(id int32) []byte {
	if s.silent(id) {
		return nil
	}
	return s.tok.Bytes(id)
}

// silent reports whether a token shows nothing.
func (s *serving) silent(id int32) bool { return s.ends[id] || s.tok.IsControl(id) }

// errCanary: the model computes and what comes out is no answer.
var errCanary = errors.New("the model cannot generate a token")

// canary generates one token: a model that loads and cannot step, or whose scores
// are no numbers, is not ready. Of one that reads, it computes one vector.
func (e *Engine) canary(m *loadedModel) error {
	if m.reader != nil {
		e.steps.Add(1)
		out, err := m.reader.Compute(e.hard, []embed.Input{{IDs: []int32{0}, Types: []int32{0}}})
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
	sc := e.opts.Backend.NewScope(e.hard)
	defer sc.Close()
	defer m.cache.Drop(0)
	out := m.model.Step(sc, m.cache, sc.IDs([]int32{0}), []tensor.Segment{{Request: 0, Length: 1}}, []int{0})
	if err := sc.Err(); err != nil {
		if errors.Is(err, context.Canceled) {
			return fmt.Errorf("stopped: %w", err)
		}
		return err
	}
	scores := make([]float32, m.serving.facts.VocabularySize)
	sc.Read(out, scores)
	e.steps.Add(1)
	if err := sc.Err(); err != nil {
		return err
	}
	if _, err := sample.Argmax(scores); err != nil {
		return fmt.Errorf("%w: %w", errCanary, err)
	}
	return nil
}

package weights

import (
	"fmt"
	"maps"
	"slices"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/quant"
)

// Dimensions are the numbers a decoder family is built from.
type Dimensions struct {
	Architecture string
	Layers       int
	Hidden       int
	FeedForward  int
	QueryHeads   int
	KVHeads      int
	HeadSize     int
	Vocabulary   int
	Context      int
	Rope         Rope
	NormEps      float64
	// Window is how many latest positions attention sees; 0 means all. Layers that
	// are Everywhere see all in any case.
	Window     int
	Everywhere []bool
	// LocalRope is how layers under the window turn heads; nil means as others.
	LocalRope *Rope
	// QueryScalar is what scores are divided by the root of; 0 means HeadSize.
	QueryScalar float64
	// EmbedScale multiplies what is looked up in the embedding; 0 means 1.
	EmbedScale float64
	// Temper makes queries grow with their position; nil means that they do not.
	Temper *Temper
	// Experts of layers that are mixtures.
	Experts Experts
	// Hybrid says which layers are recurrent, and how.
	Hybrid Hybrid
	// Encoder is set for families whose tokens see one another all at once.
	Encoder *Encoder
}

// Temper multiplies the query at a position by 1 + Beta*ln(1 +
// floor(position/Every)), as transformers' modeling_ministral3.py (version 5).
type Temper struct {
	Beta  float64
	Every int
}

// Rope is how a family turns heads by position: pairs (i, i+Size/2) of the
// first Size elements, by position/Linear * Theta^(-2i/Size) / Factors[i],
// times Magnitude.
type Rope struct {
	Theta float64
	Size  int
	// Linear and Magnitude are 1 where the file does not say.
	Linear, Magnitude float64
	// Factors divide the frequencies; nil means 1.
	Factors []float32
}

// ggufFamilies are the families by their names in GGUF.
func ggufFamilies() map[string]string {
	return map[string]string{"gemma3": familyGemma3, "gpt-oss": familyGPTOSS, "llama": familyLlama, "qwen2": familyQwen2, "qwen3": familyQwen3, "qwen3moe": familyQwen3MoE}
}

// GGUFArchitectures lists the families that are read from GGUF files too.
func GGUFArchitectures() []string {
	return slices.Sorted(maps.Values(ggufFamilies()))
}

// Dimensions reads and checks the numbers of the model's family.
func (h *Header) Dimensions() (Dimensions, error) {
	arch, ok := h.Text("general.architecture")
	if !ok {
		return Dimensions{}, fmt.Errorf("metadata key general.architecture: %w", ErrMissing)
	}
	family, ok := ggufFamilies()[arch]
	if !ok {
		return Dimensions{}, unknownInGGUF(arch)
	}
	r := keyReader{h: h, prefix: arch + "."}
	d := Dimensions{
		Architecture: family,
		Layers:       r.integer("block_count", 1, 1<<12),
		Hidden:       r.integer("embedding_length", 1, 1<<20),
		FeedForward:  r.integer("feed_forward_length", 1, 1<<22),
		QueryHeads:   r.integer("attention.head_count", 1, 1<<12),
		Context:      r.integer("context_length", 1, 1<<30),
		NormEps:      r.float("attention.layer_norm_rms_epsilon", 0, 1),
		Rope:         Rope{Theta: r.floatOr("rope.freq_base", 10000, 1, 1e12), Linear: 1, Magnitude: 1},
	}
	d.KVHeads = r.integerOr("attention.head_count_kv", d.QueryHeads, 1, 1<<12)
	if d.QueryHeads > 0 {
		d.HeadSize = r.integerOr("attention.key_length", d.Hidden/d.QueryHeads, 2, 1<<12)
	}
	d.Rope.Size = r.integerOr("rope.dimension_count", d.HeadSize, 2, 1<<12)
	r.scaling(&d)
	switch family {
	case familyGemma3:
		r.gemma(&d)
	case familyGPTOSS:
		r.gptoss(&d)
	case familyQwen3MoE:
		d.Experts = r.experts()
	}
	if r.err != nil {
		return Dimensions{}, r.err
	}
	if err := d.consistent(); err != nil {
		return Dimensions{}, err
	}
	if err := d.plainGGUF(h, r); err != nil {
		return Dimensions{}, err
	}
	embed, ok := h.Tensor("token_embd.weight")
	if !ok || len(embed.Shape) != 2 {
		return Dimensions{}, fmt.Errorf("tensor token_embd.weight with two dimensions: %w", ErrMissing)
	}
	d.Vocabulary = int(embed.Shape[0])
	if tokens, ok := h.Metadata["tokenizer.ggml.tokens"].([]string); ok && len(tokens) > d.Vocabulary {
		return Dimensions{}, invalidf("%d tokens but only %d embeddings", len(tokens), d.Vocabulary)
	}
	return d, nil
}

// unknownInGGUF refuses a family. Hybrids are read from folders alone: llama.cpp
// rewrites what their recurrent layers hold (decays in place of their logarithms,
// heads in another order), of which no golden is at hand.
func unknownInGGUF(arch string) error {
	switch arch {
	case "qwen3next", "qwen35", "qwen35moe":
		return &UnsupportedError{"GGUF file of a hybrid model,", arch, []string{"its safetensors folder, from Hugging Face or mlx-lm"}}
	}
	return &UnsupportedError{"architecture", arch, sortedKeys(ggufFamilies())}
}

// consistent checks the numbers against one another.
func (d Dimensions) consistent() error {
	switch {
	case d.QueryHeads%d.KVHeads != 0:
		return invalidf("%d query heads are not a multiple of %d key-value heads", d.QueryHeads, d.KVHeads)
	case d.HeadSize%2 != 0 || d.HeadSize < 2:
		return invalidf("head size %d is not an even number", d.HeadSize)
	case d.Rope.Size < 2 || d.Rope.Size%2 != 0 || d.Rope.Size > d.HeadSize:
		return invalidf("%d rotary elements do not fit a head of %d", d.Rope.Size, d.HeadSize)
	}
	return d.Experts.consistent()
}

// plainGGUF refuses what the family may have in GGUF but the engine has not.
func (d Dimensions) plainGGUF(h *Header, r keyReader) error {
	if v, ok := h.Integer(r.prefix + "attention.value_length"); ok && v != int64(d.HeadSize) {
		return invalidf("value heads have size %d but key heads have size %d", v, d.HeadSize)
	}
	if v, ok := h.Integer(r.prefix + "expert_count"); ok && v > 0 && d.Experts.Count == 0 {
		return &UnsupportedError{"feed-forward", "mixture of experts", []string{"dense"}}
	}
	return nil
}

// Facts says what placement and memory arithmetic need to know. It also checks
// that every tensor the family needs is there with the right shape and that
// none is there that the family would ignore.
func (h *Header) Facts() (model.Facts, error) {
	d, err := h.Dimensions()
	if err != nil {
		return model.Facts{}, err
	}
	entries, err := h.inventory(d)
	if err != nil {
		return model.Facts{}, err
	}
	name, _ := h.Text("general.name")
	if len(name) > 256 {
		name = ""
	}
	kinds := map[string]int64{}
	for _, t := range h.Tensors {
		kinds[t.Type.String()] += t.Bytes
	}
	f, err := facts(d, name, largest(kinds), entries, quant.Float32)
	f.SetTask(taskOfMetadata(h.Metadata, h))
	return f, err
}

// facts of a model whose numbers mean at least the given precision.
func facts(d Dimensions, name, quantization string, entries map[string]Entry, precise quant.Type) (model.Facts, error) {
	f := model.Facts{
		Architecture: d.Architecture, Name: name, Quantization: quantization,
		Layers: int64(d.Layers), GrowingLayers: int64(d.Layers),
		HiddenSize: int64(d.Hidden), FeedForwardSize: int64(d.FeedForward),
		QueryHeads: int64(d.QueryHeads), KeyValueHeads: int64(d.KVHeads), HeadSize: int64(d.HeadSize),
		VocabularySize: int64(d.Vocabulary), ContextTokens: int64(d.Context),
		KeyValueElementBytes: elementBytes(entries, precise),
	}
	if n := int64(d.windowLayers()); n > 0 {
		f.GrowingLayers, f.WindowLayers, f.WindowTokens = f.Layers-n, n, int64(d.Window)
	}
	if n := int64(d.Hybrid.Layers(d.Layers)); n > 0 {
		f.GrowingLayers, f.RecurrentLayers, f.RecurrentStateBytes = f.Layers-n, n, n*d.Hybrid.StateBytes()
		f.RecurrentSize = int64(d.Hybrid.Channels() + d.Hybrid.ValueWidth())
	}
	if d.Encoder != nil {
		f.GrowingLayers, f.EncoderLayers = 0, f.Layers
	}
	if sparse := d.Experts.layers(d.Layers); sparse > 0 {
		f.Experts, f.ExpertsPerToken, f.ExpertFeedForwardSize = int64(d.Experts.Count), int64(d.Experts.PerToken), int64(d.Experts.FeedForward)
		if sparse == d.Layers { // no block has the width that the file states
			f.FeedForwardSize = max(f.ExpertFeedForwardSize, int64(d.Experts.Shared))
		}
	}
	for _, e := range entries {
		f.WeightBytes += e.Held()
		f.WideWeightBytes += e.wideBytes(precise)
	}
	if f.WideWeightBytes <= f.WeightBytes {
		f.WideWeightBytes = 0
	}
	return f, f.Validate()
}

// elementBytes is the width of an activation, and so of a key or value, where
// the weights are as they are written: half precision only where all numbers
// are of one such type. Two types together are computed in float32.
func elementBytes(entries map[string]Entry, precise quant.Type) int64 {
	for _, e := range entries {
		if e.Format.Type != precise && !e.stateless() {
			return int64(quant.Float32.Bytes())
		}
	}
	return int64(precise.Bytes())
}

// wideBytes is what a tensor takes where a bias lies beside every scale, and
// numbers are at least as fine as precise says (see model.Facts).
func (e Entry) wideBytes(precise quant.Type) int64 {
	f := e.Format
	if f.Mode == quant.Symmetric {
		f.Mode = quant.Affine
	}
	if precise == quant.Float32 && !f.BlockFloat() {
		f.Type = quant.Float32
	}
	sizes, err := f.Sizes(e.Columns())
	if err != nil {
		return e.Bytes
	}
	return int64(e.Rows()) * int64(sizes.Sum())
}

// largest is the key with the largest value, the first among equals.
func largest(bytes map[string]int64) string {
	best := ""
	for _, name := range sortedKeys(bytes) {
		if best == "" || bytes[name] > bytes[best] {
			best = name
		}
	}
	return best
}

// keyReader reads the keys of one family and keeps the first fault.
type keyReader struct {
	h      *Header
	prefix string
	err    error
}

func (r *keyReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *keyReader) integer(key string, low, high int64) int {
	if _, ok := r.h.Metadata[r.prefix+key]; !ok {
		r.fail(fmt.Errorf("metadata key %s%s: %w", r.prefix, key, ErrMissing))
		return 0
	}
	return r.integerOr(key, 0, low, high)
}

func (r *keyReader) integerOr(key string, absent int, low, high int64) int {
	key = r.prefix + key
	if _, ok := r.h.Metadata[key]; !ok {
		return absent
	}
	v, ok := r.h.Integer(key)
	if !ok {
		r.fail(invalidf("metadata key %s is not one whole number", key))
		return 0
	}
	if v < low || v > high {
		r.fail(invalidf("metadata key %s is %d, want %d to %d", key, v, low, high))
		return 0
	}
	return int(v)
}

func (r *keyReader) float(key string, low, high float64) float64 {
	if _, ok := r.h.Metadata[r.prefix+key]; !ok {
		r.fail(fmt.Errorf("metadata key %s%s: %w", r.prefix, key, ErrMissing))
		return 0
	}
	return r.floatOr(key, 0, low, high)
}

func (r *keyReader) floatOr(key string, absent, low, high float64) float64 {
	key = r.prefix + key
	if _, ok := r.h.Metadata[key]; !ok {
		return absent
	}
	v, ok := r.h.Float(key)
	if !ok || !(v >= low && v <= high) { // also refuses NaN
		r.fail(invalidf("metadata key %s is %v, want a number from %v to %v", key, r.h.Metadata[key], low, high))
		return 0
	}
	return v
}

// scaling reads how positions are stretched beyond the trained context, as
// llama.cpp does (llama-model.cpp, llm_load_hparams; ggml's rope_yarn).
func (r *keyReader) scaling(d *Dimensions) {
	kind, ok := r.h.Text(r.prefix + "rope.scaling.type")
	if !ok || kind == "none" || kind == "" {
		return
	}
	switch kind {
	case "linear":
		d.Rope.Linear = r.float("rope.scaling.factor", 1, 1e6)
	case "yarn":
		r.yarn(d)
	default:
		r.fail(&UnsupportedError{"rope scaling", kind, []string{"linear", "none", "yarn"}})
	}
}

// yarn takes the defaults of llama.cpp; keys that change them are refused.
func (r *keyReader) yarn(d *Dimensions) {
	usual := map[string]float64{"attn_factor": 1, "yarn_ext_factor": 1, "yarn_attn_factor": 1, "yarn_beta_fast": 32, "yarn_beta_slow": 1, "yarn_log_multiplier": 0}
	for _, key := range sortedKeys(usual) {
		name := r.prefix + "rope.scaling." + key
		if v, ok := r.h.Float(name); r.h.Metadata[name] != nil && (!ok || v != usual[key]) {
			r.fail(&UnsupportedError{"value of " + name, shown(r.h.Metadata[name]), []string{fmt.Sprint(usual[key])}})
		}
	}
	s := yarnScaling{
		factor:  r.float("rope.scaling.factor", 1, 1e6),
		context: float64(r.integerOr("rope.scaling.original_context_length", d.Context, 1, 1<<30)),
		fast:    32, slow: 1, truncate: true,
	}
	if d.Rope.Theta <= 1 {
		r.fail(invalidf("metadata key %srope.freq_base is %v, yarn wants more than 1", r.prefix, d.Rope.Theta))
	}
	if r.err == nil {
		d.Rope.Magnitude, d.Rope.Factors = yarnMagnitude(s.factor, 1), s.factors(d.Rope)
	}
}

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

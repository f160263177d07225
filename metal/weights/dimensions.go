package weights

import (
	"fmt"
	"slices"
	"sort"

	"metalfleet.dev/metalfleet/api/model"
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
	// Window is how many latest positions attention sees; 0 means all.
	Window int
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

// SupportedArchitectures lists the families this build runs.
func SupportedArchitectures() []string { return []string{"llama"} }

// Dimensions reads and checks the numbers of the model's family.
func (h *Header) Dimensions() (Dimensions, error) {
	arch, ok := h.Text("general.architecture")
	if !ok {
		return Dimensions{}, fmt.Errorf("metadata key general.architecture: %w", ErrMissing)
	}
	if !slices.Contains(SupportedArchitectures(), arch) {
		return Dimensions{}, &UnsupportedError{"architecture", arch, SupportedArchitectures()}
	}
	r := keyReader{h: h, prefix: arch + "."}
	d := Dimensions{
		Architecture: arch,
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
	if r.err != nil {
		return Dimensions{}, r.err
	}
	if err := d.consistent(h, r); err != nil {
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

func (d Dimensions) consistent(h *Header, r keyReader) error {
	switch {
	case d.QueryHeads%d.KVHeads != 0:
		return invalidf("%d query heads are not a multiple of %d key-value heads", d.QueryHeads, d.KVHeads)
	case d.HeadSize%2 != 0 || d.HeadSize < 2:
		return invalidf("head size %d is not an even number", d.HeadSize)
	case d.Rope.Size%2 != 0 || d.Rope.Size > d.HeadSize:
		return invalidf("%d rotary elements do not fit a head of %d", d.Rope.Size, d.HeadSize)
	}
	if v, ok := h.Integer(r.prefix + "attention.value_length"); ok && v != int64(d.HeadSize) {
		return invalidf("value heads of %d beside key heads of %d", v, d.HeadSize)
	}
	if v, ok := h.Integer(r.prefix + "expert_count"); ok && v > 0 {
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
	if _, err := h.inventory(d); err != nil {
		return model.Facts{}, err
	}
	name, _ := h.Text("general.name")
	if len(name) > 256 {
		name = ""
	}
	f := model.Facts{
		Architecture: d.Architecture, Name: name, Quantization: h.dominantType(),
		Layers: int64(d.Layers), GrowingLayers: int64(d.Layers),
		HiddenSize: int64(d.Hidden), FeedForwardSize: int64(d.FeedForward),
		QueryHeads: int64(d.QueryHeads), KeyValueHeads: int64(d.KVHeads), HeadSize: int64(d.HeadSize),
		VocabularySize: int64(d.Vocabulary), ContextTokens: int64(d.Context),
		KeyValueElementBytes: 4, // GGUF norms are float32 and carry the whole network to it
	}
	for _, t := range h.Tensors {
		f.WeightBytes += t.Bytes
	}
	return f, f.Validate()
}

// dominantType is the type that holds most of the bytes.
func (h *Header) dominantType() string {
	bytes := map[string]int64{}
	for _, t := range h.Tensors {
		bytes[t.Type.String()] += t.Bytes
	}
	names := make([]string, 0, len(bytes))
	for n := range bytes {
		names = append(names, n)
	}
	sort.Slice(names, func(i, j int) bool {
		if bytes[names[i]] != bytes[names[j]] {
			return bytes[names[i]] > bytes[names[j]]
		}
		return names[i] < names[j]
	})
	if len(names) == 0 {
		return ""
	}
	return names[0]
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

// scaling reads how positions are stretched beyond the trained context.
func (r *keyReader) scaling(d *Dimensions) {
	kind, ok := r.h.Text(r.prefix + "rope.scaling.type")
	if !ok || kind == "none" || kind == "" {
		return
	}
	if kind != "linear" {
		r.fail(&UnsupportedError{"rope scaling", kind, []string{"linear", "none"}})
		return
	}
	d.Rope.Linear = r.float("rope.scaling.factor", 1, 1e6)
}

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

package family

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Metadata gives access to the key-value pairs of a GGUF file.
type Metadata interface {
	// Text, Integer and Float read a value of one kind.
	Text(key string) (string, bool)
	Integer(key string) (int64, bool)
	Float(key string) (float64, bool)
	// Value returns the value of a key; nil if absent.
	Value(key string) any
	// Keys returns the keys with a prefix, sorted.
	Keys(prefix string) []string
}

// OfMetadata reads and checks the dimensions of the model's family, except the
// size of the vocabulary, which the caller takes from the embedding.
func OfMetadata(h Metadata) (Dimensions, error) {
	arch, ok := h.Text("general.architecture")
	if !ok {
		return Dimensions{}, fmt.Errorf("metadata key general.architecture: %w", ErrMissing)
	}
	f, ok := inGGUF(arch)
	if !ok {
		return Dimensions{}, unknownInGGUF(arch)
	}
	r := keyReader{h: h, prefix: arch + "."}
	d := Dimensions{
		Architecture: f.Name,
		Layers:       r.integer("block_count", 1, maxLayers),
		Hidden:       r.integer("embedding_length", 1, 1<<20),
		FeedForward:  r.equal("feed_forward_length", 0, 1, 1<<22),
		QueryHeads:   r.equal("attention.head_count", 0, 1, 1<<12),
		Context:      r.integer("context_length", 1, 1<<30),
		NormEps:      r.float("attention.layer_norm_rms_epsilon", 0, 1),
		Rope:         Rope{Theta: r.floatOr("rope.freq_base", 10000, 1, 1e12), Linear: 1, Magnitude: 1},
	}
	d.KVHeads = r.equal("attention.head_count_kv", d.QueryHeads, 1, 1<<12)
	if d.QueryHeads > 0 {
		d.HeadSize = r.integerOr("attention.key_length", d.Hidden/d.QueryHeads, 2, 1<<12)
	}
	d.Rope.Size = r.integerOr("rope.dimension_count", d.HeadSize, 2, 1<<12)
	r.scaling(&d)
	r.knownRope()
	if f.GGUF.Read != nil {
		f.GGUF.Read(&r, &d)
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
	return d, nil
}

// inGGUF returns the family with a given GGUF architecture name.
func inGGUF(arch string) (Family, bool) {
	for _, f := range All() {
		if f.GGUF != nil && f.GGUF.Name == arch {
			return f, true
		}
	}
	return Family{}, false
}

// unknownInGGUF refuses a family. Hybrid models can only be loaded from
// folders: llama.cpp rewrites the tensors of their recurrent layers (decays
// instead of their logarithms, another order of heads), and there are no
// goldens for that.
func unknownInGGUF(arch string) error {
	switch arch {
	case "qwen3next", "qwen35", "qwen35moe":
		return &UnsupportedError{"GGUF file of a hybrid model,", arch, []string{"its safetensors folder, from Hugging Face or mlx-lm"}}
	}
	var supported []string
	for _, f := range All() {
		if f.GGUF != nil {
			supported = append(supported, f.GGUF.Name)
		}
	}
	slices.Sort(supported)
	return &UnsupportedError{"architecture", arch, supported}
}

// plainGGUF refuses options of the family in GGUF that the engine does not
// implement.
func (d Dimensions) plainGGUF(h Metadata, r keyReader) error {
	if v, ok := h.Integer(r.prefix + "attention.value_length"); ok && v != int64(d.HeadSize) {
		return Invalidf("value heads have size %d but key heads have size %d", v, d.HeadSize)
	}
	if v, ok := h.Integer(r.prefix + "expert_count"); ok && v > 0 && d.Experts.Count == 0 {
		return &UnsupportedError{"feed-forward", "mixture of experts", []string{"dense"}}
	}
	return nil
}

// keyReader reads the keys of one family and keeps the first error. It returns what a
// section does in place of wrong values.
type keyReader struct {
	h      Metadata
	prefix string
	err    error
}

func (r *keyReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *keyReader) integer(key string, low, high int64) int {
	if r.h.Value(r.prefix+key) == nil {
		r.fail(fmt.Errorf("metadata key %s%s: %w", r.prefix, key, ErrMissing))
		return int(low)
	}
	return r.integerOr(key, 0, low, high)
}

func (r *keyReader) integerOr(key string, absent int, low, high int64) int {
	key = r.prefix + key
	if r.h.Value(key) == nil {
		return absent
	}
	v, ok := r.h.Integer(key)
	if !ok {
		r.fail(Invalidf("metadata key %s is not one whole number", key))
		return int(low)
	}
	if v < low || v > high {
		r.fail(Invalidf("metadata key %s is %d, want %d to %d", key, v, low, high))
		return int(low)
	}
	return int(v)
}

// equal reads a number that may also be a list with the same number for each layer, as
// llama.cpp reads it (get_key_or_arr). An absent one is missing where absent is 0.
func (r *keyReader) equal(key string, absent int, low, high int64) int {
	list := reflect.ValueOf(r.h.Value(r.prefix + key))
	switch {
	case list.Kind() == reflect.Slice:
		return r.sameForAll(key, list, low, high)
	case absent == 0:
		return r.integer(key, low, high)
	}
	return r.integerOr(key, absent, low, high)
}

// sameForAll is the number that all elements of a list are.
func (r *keyReader) sameForAll(key string, list reflect.Value, low, high int64) int {
	layers, _ := r.h.Integer(r.prefix + "block_count")
	if n := list.Len(); int64(n) != layers || n < 1 || n > maxLayers {
		r.fail(Invalidf("metadata key %s%s has %d numbers for %d layers", r.prefix, key, n, layers))
		return 0
	}
	first := int64(0)
	for i := range list.Len() {
		n := int64(0)
		switch v := list.Index(i); {
		case v.CanInt():
			n = v.Int()
		case v.CanUint() && v.Uint() <= uint64(high):
			n = int64(v.Uint())
		default:
			r.fail(Invalidf("metadata key %s%s is not a list of whole numbers up to %d", r.prefix, key, high))
			return 0
		}
		if i > 0 && n != first {
			r.fail(&UnsupportedError{"value of " + r.prefix + key, "different numbers for layers", []string{"the same number for all"}})
			return 0
		}
		first = n
	}
	if first < low || first > high {
		r.fail(Invalidf("metadata key %s%s is %d, want %d to %d", r.prefix, key, first, low, high))
		return 0
	}
	return int(first)
}

func (r *keyReader) float(key string, low, high float64) float64 {
	if r.h.Value(r.prefix+key) == nil {
		r.fail(fmt.Errorf("metadata key %s%s: %w", r.prefix, key, ErrMissing))
		return low
	}
	return r.floatOr(key, 0, low, high)
}

func (r *keyReader) floatOr(key string, absent, low, high float64) float64 {
	key = r.prefix + key
	if r.h.Value(key) == nil {
		return absent
	}
	v, ok := r.h.Float(key)
	if !ok || !(v >= low && v <= high) { // also refuses NaN
		r.fail(Invalidf("metadata key %s is %s, want a number from %v to %v", key, Shown(r.h.Value(key)), low, high))
		return low
	}
	return v
}

// scaling reads the rope scaling as llama.cpp does (llama-model.cpp, load_hparams; ggml's
// rope_yarn): linear where the file states no type, with a factor that old files have as
// rope.scale_linear.
func (r *keyReader) scaling(d *Dimensions) {
	kind, ok := r.h.Text(r.prefix + "rope.scaling.type")
	if !ok || kind == "" {
		kind = "linear"
	}
	switch kind {
	case "none":
	case "linear":
		key := "rope.scaling.factor"
		if r.h.Value(r.prefix+key) == nil {
			key = "rope.scale_linear"
		}
		if factor := r.floatOr(key, 1, 0, 1e6); factor != 0 { // llama.cpp takes 0 as none
			d.Rope.Linear = factor
		}
		r.usual(map[string]float64{"attn_factor": 1})
	case "yarn":
		r.yarn(d)
	default:
		r.fail(&UnsupportedError{"rope scaling", kind, []string{"linear", "none", "yarn"}})
	}
}

// usual refuses any other values of keys of the scaling.
func (r *keyReader) usual(values map[string]float64) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		name := r.prefix + "rope.scaling." + key
		if v, ok := r.h.Float(name); r.h.Value(name) != nil && (!ok || v != values[key]) {
			r.fail(&UnsupportedError{"value of " + name, Shown(r.h.Value(name)), []string{fmt.Sprint(values[key])}})
		}
	}
}

// knownRope refuses by name keys of a rotation that are not read.
func (r *keyReader) knownRope() {
	known := []string{
		"dimension_count", "dimension_sections", "freq_base", "freq_base_swa", "global.freq_base", "local.freq_base", "scale_linear",
		"scaling.attn_factor", "scaling.factor", "scaling.finetuned", "scaling.original_context_length", "scaling.type",
		"scaling.yarn_attn_factor", "scaling.yarn_beta_fast", "scaling.yarn_beta_slow", "scaling.yarn_ext_factor", "scaling.yarn_log_multiplier",
	}
	for _, key := range r.h.Keys(r.prefix + "rope.") {
		if name := strings.TrimPrefix(key, r.prefix+"rope."); !slices.Contains(known, name) {
			r.fail(&UnsupportedError{"key of a rotation", Quoted(key), known})
		}
	}
}

// yarn uses llama.cpp's defaults; keys that change them are refused.
func (r *keyReader) yarn(d *Dimensions) {
	r.usual(map[string]float64{"attn_factor": 1, "yarn_ext_factor": 1, "yarn_attn_factor": 1, "yarn_beta_fast": 32, "yarn_beta_slow": 1, "yarn_log_multiplier": 0})
	s := yarnScaling{
		factor:  r.float("rope.scaling.factor", 1, 1e6),
		context: float64(r.integerOr("rope.scaling.original_context_length", d.Context, 1, 1<<30)),
		fast:    32, slow: 1, truncate: true,
	}
	if d.Rope.Theta <= 1 {
		r.fail(Invalidf("metadata key %srope.freq_base is %v, yarn wants more than 1", r.prefix, d.Rope.Theta))
	}
	if r.err == nil {
		d.Rope.Magnitude, d.Rope.Factors = yarnMagnitude(s.factor, 1), s.factors(d.Rope)
	}
}

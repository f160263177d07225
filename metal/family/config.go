package family

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Config is the configuration of a model folder, config.json. It reads the section
// that describes the decoder: all of values, or an object inside it.
type Config struct {
	values map[string]any
	section
	// kind is the decoder's model_type, once the family is known.
	kind string
}

// sections are the keys under which multimodal models keep the configuration of
// their decoder.
func sections() []string { return []string{"text_config", "language_config", "llm_config"} }

// layerNames are the keys of the number of layers. Those after the first are
// legacy, here and in config.dimensions.
func layerNames() []string {
	return []string{"num_hidden_layers", "num_layers", "n_layers", "n_layer"}
}

// NewConfig reads the values of config.json. The decoder's own section wins
// over the top level whenever it has a number of layers, even if the top level
// has one too: that may be the number of layers of a vision encoder.
func NewConfig(values map[string]any) *Config {
	c := &Config{values: values, section: newSection(values, "")}
	for _, key := range sections() {
		section, ok := values[key].(map[string]any)
		if !ok {
			continue
		}
		for _, name := range layerNames() {
			if section[name] != nil {
				c.section = newSection(section, key+".")
				return c
			}
		}
	}
	return c
}

// Is reports whether the model_type is kind.
func (c *Config) Is(kind string) bool { return c.values["model_type"] == kind }

// Quantization returns the object that describes quantized layers, and its key;
// v is nil if there is none.
func (c *Config) Quantization() (key string, v any) {
	if v := c.values["quantization"]; v != nil {
		return "quantization", v
	}
	v = c.values["quantization_config"]
	if v == nil {
		v = c.text["quantization_config"]
	}
	return "quantization_config", v
}

// family returns the family that runs the model's decoder.
func (c *Config) family() (Family, error) {
	kind, err := c.decoder()
	if err != nil {
		return Family{}, err
	}
	c.kind = kind
	c.complete()
	if f, ok := ofType(kind); ok {
		if f.Prepare != nil {
			c.text = maps.Clone(c.text)
			f.Prepare(c.text)
		}
		return f, nil
	}
	if len(kind) > 64 {
		kind = kind[:64]
	}
	return Family{}, &UnsupportedError{"model type", kind, SupportedModelTypes()}
}

// Dimensions reads and checks the dimensions of the model's family.
func (c *Config) Dimensions() (Dimensions, error) {
	f, err := c.family()
	if err != nil {
		return Dimensions{}, err
	}
	if f.Block == nil {
		d := readEncoder(c, f)
		if c.err != nil {
			return Dimensions{}, fmt.Errorf("config.json: %w", c.err)
		}
		return d, nil
	}
	d, err := c.dimensions(f)
	if err != nil {
		return Dimensions{}, fmt.Errorf("config.json: %w", err)
	}
	return d, nil
}

// dimensions reads the dimensions as mlx-lm 0.32.2 does, and also accepts the
// key names of older configurations. Keys that mlx-lm ignores although they
// would change a result are refused.
func (c *Config) dimensions(f Family) (Dimensions, error) {
	context := cmp.Or(f.Contexts[c.kind], f.Context, 1<<11)
	d := Dimensions{
		Architecture: f.Name,
		Layers:       c.integer(1, maxLayers, layerNames()...),
		Hidden:       c.integer(1, 1<<20, "hidden_size", "n_embd", "d_model"),
		FeedForward:  c.integer(1, 1<<22, append([]string{"intermediate_size", "n_inner", "ffn_dim"}, f.Widths...)...),
		QueryHeads:   c.integer(1, 1<<12, "num_attention_heads", "num_heads", "n_heads", "n_head"),
		Vocabulary:   c.integer(1, 1<<24, "vocab_size", "n_vocab"),
		Context:      c.integerOr(context, 1, 1<<30, "max_position_embeddings", "n_positions", "n_ctx"),
		NormEps:      c.number(0, 1, cmp.Or(f.Eps, "rms_norm_eps")),
	}
	d.KVHeads = c.integerOr(d.QueryHeads, 1, 1<<12, "num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv")
	if d.QueryHeads > 0 {
		d.HeadSize = c.integerOr(d.Hidden/d.QueryHeads, 2, 1<<12, "head_dim")
	}
	d.Rope = c.rope(f, d)
	if f.Read != nil {
		f.Read(c, &d)
	}
	c.activation(f)
	c.unread()
	if c.err != nil {
		return Dimensions{}, c.err
	}
	return d, d.consistent()
}

// unread refuses by name the keys that would change a result and that the
// family does not read, unless their value is neutral.
func (c *Config) unread() {
	c.dense()
	known := meaningful()
	for _, key := range slices.Sorted(maps.Keys(c.text)) {
		v := c.text[key]
		if c.read[key] || neutral(v) {
			continue
		}
		if want, ok := known[key]; ok || strings.HasPrefix(key, "rope_") {
			if f, number := floatNumber(v); ok && number && want == fmt.Sprint(f) {
				continue
			}
			if want == "false" {
				c.flag(key) // fails if it is not a boolean
			}
			c.fail(fmt.Errorf("%s%s: %w", c.inside, key, &UnsupportedError{"value", Shown(v), []string{cmp.Or(want, "none")}}))
		}
	}
}

// neutral reports whether a value leaves the result unchanged.
func neutral(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case []any:
		return len(v) == 0
	}
	return false
}

// meaningful lists keys that change a result, with the one value that families
// that do not read the key accept; null and false are always accepted.
func meaningful() map[string]string {
	return map[string]string{
		"attention_bias": "false", "mlp_bias": "false", "use_bias": "false", "use_qkv_bias": "false", "qkv_bias": "false",
		"use_sliding_window": "false", "quantize_activations": "false", "use_bidirectional_attention": "false",
		"attn_logit_softcapping": "null", "final_logit_softcapping": "null", "logit_scale": "1", "logits_scaling": "1",
		"embedding_multiplier": "1", "residual_multiplier": "1", "attention_multiplier": "null", "clip_qkv": "null",
		"use_qk_norm": "false", "qk_layernorm": "false", "use_parallel_residual": "false", "no_rope_layers": "null",
		"scoring_func": "null", "topk_method": "null", "n_group": "1", "routed_scaling_factor": "1",
		"partial_rotary_factor": "1", "rope_traditional": "false",
	}
}

// dense refuses experts in a family that reads none.
func (c *Config) dense() {
	for _, name := range []string{"num_experts", "num_local_experts", "n_routed_experts"} {
		if v := c.text[name]; v != nil && v != json.Number("0") && !c.read[name] {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, name, &UnsupportedError{"feed-forward", "mixture of experts", []string{"dense"}}))
		}
	}
}

// activation refuses activations that the family does not have.
func (c *Config) activation(f Family) {
	want := f.Activations
	if len(want) == 0 {
		want = []string{"silu", "swish"}
	}
	keys := []string{"hidden_activation", "hidden_act"}
	if c.value(keys[0]) == nil && c.value(keys[1]) == nil { // a legacy key; the others override it
		keys = []string{"activation_function"}
	}
	for _, key := range keys {
		v := c.value(key)
		if name, ok := v.(string); v != nil && (!ok || !slices.Contains(want, name)) {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, key, &UnsupportedError{"activation", Shown(v), want[:1]}))
			return
		}
	}
}

// windows reads which layers have a sliding window: from sliding_window, and
// from layer_types if present, else all but every n-th layer.
func (c *Config) windows(d *Dimensions, n int) {
	d.Window = c.integer(1, 1<<30, "sliding_window")
	d.Everywhere = everyLayer(d.Layers, n)
	for i, kind := range c.kinds(d.Layers, "full_attention", "sliding_attention") {
		d.Everywhere[i] = kind == "full_attention"
	}
}

// Tied reports whether the embedding is also the output head; known is false if
// config.json does not contain it.
func (c *Config) Tied() (tied, known bool, err error) {
	v := c.value("tie_word_embeddings")
	if v == nil {
		v = c.values["tie_word_embeddings"]
	}
	tied, known = v.(bool)
	if !known && v != nil {
		return false, false, Invalidf("config.json: tie_word_embeddings is %s, want true or false", Shown(v))
	}
	return tied, known, nil
}

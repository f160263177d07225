package weights

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// maxConfigBytes bounds config.json; the largest known, with an entry for
// every quantised layer, has about 300 kB.
const maxConfigBytes = 4 << 20

// The families, by the names that Dimensions.Architecture takes.
const (
	familyGemma3   = "gemma3_text"
	familyGPTOSS   = "gpt_oss"
	familyLlama    = "llama"
	familyQwen2    = "qwen2"
	familyQwen3    = "qwen3"
	familyQwen3MoE = "qwen3_moe"
	// Qwen3-Next, and Qwen3.5 with or without experts.
	familyQwen3Next = "qwen3_next"
	familyQwen35    = "qwen3_5"
)

// config is a model folder's config.json.
type config struct {
	values map[string]any
	// text is the part that describes the decoder: values itself, or the
	// configuration inside it.
	text map[string]any
	// inside is the key of that part, for messages.
	inside string
	// err is the first fault.
	err error
}

// sections are where models that also see or hear keep the configuration of
// their decoder.
func sections() []string { return []string{"text_config", "language_config", "llm_config"} }

// layerNames are the names of the number of layers. Those behind the first are
// legacy, here and in config.dimensions.
func layerNames() []string {
	return []string{"num_hidden_layers", "num_layers", "n_layers", "n_layer"}
}

// readConfig reads config.json. The decoder's own section wins over the top
// level wherever it counts layers, also if the top level counts some: those
// may be the layers of a vision encoder.
func readConfig(text []byte) (*config, error) {
	j := newJSONReader(text, 0)
	v, err := j.value()
	if err != nil {
		return nil, err
	}
	if err := j.end(); err != nil {
		return nil, err
	}
	values, ok := v.(map[string]any)
	if !ok {
		return nil, j.invalid("want an object")
	}
	c := &config{values: values, text: values}
	for _, key := range sections() {
		section, ok := values[key].(map[string]any)
		if !ok {
			continue
		}
		for _, name := range layerNames() {
			if section[name] != nil {
				c.text, c.inside = section, key+"."
				return c, nil
			}
		}
	}
	return c, nil
}

func (c *config) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// find returns the first of several names that has a value; null is none.
func (c *config) find(names ...string) (key string, v any) {
	for _, n := range names {
		if v := c.text[n]; v != nil {
			return n, v
		}
	}
	return names[0], nil
}

// integer reads a whole number. It is ErrMissing without one.
func (c *config) integer(low, high int64, names ...string) int {
	if key, v := c.find(names...); v == nil {
		c.fail(fmt.Errorf("%s%s: %w", c.inside, key, ErrMissing))
		return 0
	}
	return c.integerOr(0, low, high, names...)
}

func (c *config) integerOr(absent int, low, high int64, names ...string) int {
	key, v := c.find(names...)
	if v == nil {
		return absent
	}
	n, ok := wholeNumber(v)
	if !ok || n < low || n > high {
		c.fail(invalidf("%s%s is %s, want a whole number from %d to %d", c.inside, key, shown(v), low, high))
		return 0
	}
	return int(n)
}

// number reads a finite number. It is ErrMissing without one.
func (c *config) number(low, high float64, name string) float64 {
	if c.text[name] == nil {
		c.fail(fmt.Errorf("%s%s: %w", c.inside, name, ErrMissing))
		return 0
	}
	f, ok := floatNumber(c.text[name])
	if !ok || f < low || f > high {
		c.fail(invalidf("%s%s is %s, want a number from %v to %v", c.inside, name, shown(c.text[name]), low, high))
		return 0
	}
	return f
}

// flag reads a truth value, false where it is absent.
func (c *config) flag(name string) bool {
	v, ok := c.text[name].(bool)
	if !ok && c.text[name] != nil {
		c.fail(invalidf("%s%s is %s, want true or false", c.inside, name, shown(c.text[name])))
	}
	return v
}

// floatNumber reads a finite number.
func floatNumber(v any) (float64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := strconv.ParseFloat(n.String(), 64)
	return f, err == nil && !math.IsInf(f, 0)
}

// shown is a value as it may stand in a message.
func shown(v any) string {
	switch v := v.(type) {
	case nil:
		return "absent"
	case string:
		return quoted(v)
	case json.Number:
		return strings.TrimSuffix(strings.TrimPrefix(quoted(v.String()), `"`), `"`)
	case bool:
		return strconv.FormatBool(v)
	case []any:
		return "a list"
	}
	return "an object"
}

// SupportedModelTypes lists what config.json may call its model_type.
func SupportedModelTypes() []string {
	return append(encoderFamilies()[:1:1], "gemma3_text", "gpt_oss", "llama", "mistral", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", familyXLMRoberta)
}

// family is the family that runs a model_type (mlx-lm 0.32.2, MODEL_REMAPPING).
func (c *config) family() (string, error) {
	kind, ok := c.values["model_type"].(string)
	if !ok {
		return "", fmt.Errorf("config.json: model_type: %w", ErrMissing)
	}
	switch kind {
	case familyBERT, familyXLMRoberta:
		return kind, nil
	case "gemma3_text":
		return familyGemma3, nil
	case "gpt_oss":
		return familyGPTOSS, nil
	case "llama", "mistral":
		return familyLlama, nil
	case "qwen2":
		return familyQwen2, nil
	case "qwen3":
		return familyQwen3, nil
	case "qwen3_moe":
		return familyQwen3MoE, nil
	case "qwen3_next":
		return familyQwen3Next, nil
	case "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text":
		return familyQwen35, nil
	}
	if len(kind) > 64 {
		kind = kind[:64]
	}
	return "", &UnsupportedError{"model type", kind, SupportedModelTypes()}
}

// Dimensions reads and checks the numbers of the model's family.
func (c *config) Dimensions() (Dimensions, error) {
	family, err := c.family()
	if err != nil {
		return Dimensions{}, err
	}
	if slices.Contains(encoderFamilies(), family) {
		d := c.encoder(family)
		if c.err != nil {
			return Dimensions{}, fmt.Errorf("config.json: %w", c.err)
		}
		return d, nil
	}
	d, err := c.dimensions(family)
	if err != nil {
		return Dimensions{}, fmt.Errorf("config.json: %w", err)
	}
	return d, nil
}

// dimensions reads the numbers as mlx-lm 0.32.2 does (models/llama.py and
// models/qwen3.py, ModelArgs), and besides them the names of older
// configurations. What those files ignore and what would change a result is
// refused.
func (c *config) dimensions(family string) (Dimensions, error) {
	d := Dimensions{
		Architecture: family,
		Layers:       c.integer(1, 1<<12, layerNames()...),
		Hidden:       c.integer(1, 1<<20, "hidden_size", "n_embd", "d_model"),
		FeedForward:  c.integer(1, 1<<22, c.widthNames(family)...),
		QueryHeads:   c.integer(1, 1<<12, "num_attention_heads", "num_heads", "n_heads", "n_head"),
		Vocabulary:   c.integer(1, 1<<24, "vocab_size", "n_vocab"),
		Context:      c.integerOr(c.defaultContext(), 1, 1<<30, "max_position_embeddings", "n_positions", "n_ctx"),
		NormEps:      c.number(0, 1, "rms_norm_eps"),
	}
	d.KVHeads = c.integerOr(d.QueryHeads, 1, 1<<12, "num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv")
	if d.QueryHeads > 0 {
		d.HeadSize = c.integerOr(d.Hidden/d.QueryHeads, 2, 1<<12, "head_dim")
	}
	d.Rope = c.rope(d)
	switch {
	case family == familyGemma3:
		c.gemma(&d)
	case family == familyGPTOSS:
		c.gptoss(&d)
	case isHybrid(family):
		c.hybrid(&d)
	default:
		d.Window = c.window(d)
	}
	switch {
	case family == familyQwen3MoE:
		d.Experts = c.experts(d.Layers)
	case family != familyGPTOSS && !isHybrid(family):
		c.dense()
	}
	c.plain(family)
	c.gated(family)
	if c.err != nil {
		return Dimensions{}, c.err
	}
	return d, d.consistent()
}

// widthNames are the names of the width of a dense feed-forward. A Qwen3.5 of
// experts has none, and may say only how wide an expert is.
func (c *config) widthNames(family string) []string {
	names := []string{"intermediate_size", "n_inner", "ffn_dim"}
	if family == familyQwen35 {
		names = append(names, "moe_intermediate_size")
	}
	return names
}

// defaultContext is what transformers takes where config.json does not say
// (Gemma3TextConfig, GptOssConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig,
// Qwen3NextConfig, Qwen3_5TextConfig, Qwen3_5MoeTextConfig, version 5).
func (c *config) defaultContext() int {
	switch c.values["model_type"] {
	case "mistral", "gemma3_text", "gpt_oss":
		return 1 << 17
	case "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text":
		return 1 << 15
	}
	return 1 << 11
}

// plain refuses by name what these families have but the engine does not.
func (c *config) plain(family string) {
	for _, name := range []string{"attention_bias", "mlp_bias", "rope_traditional", "use_sliding_window", "quantize_activations"} {
		if c.flag(name) && !(name == "attention_bias" && family == familyGPTOSS) {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, name, &UnsupportedError{"value", "true", []string{"false"}}))
		}
	}
}

// dense refuses experts in a family that has none.
func (c *config) dense() {
	for _, name := range []string{"num_experts", "num_local_experts", "n_routed_experts"} {
		if v := c.text[name]; v != nil && v != json.Number("0") {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, name, &UnsupportedError{"feed-forward", "mixture of experts", []string{"dense"}}))
		}
	}
}

// window is the sliding_window of a mistral, in every layer, as in transformers
// (modeling_mistral.py, version 5). mlx-lm, which runs a mistral as a llama, and
// whose qwen2, qwen3 and llama without layer_types never look at it, differs there: the
// model was trained with it.
func (c *config) window(d Dimensions) int {
	types := c.text["layer_types"]
	if types == nil {
		if c.values["model_type"] != "mistral" {
			return 0
		}
		return c.integerOr(0, 1, 1<<30, "sliding_window")
	}
	list, ok := types.([]any)
	if !ok || len(list) != d.Layers {
		c.fail(invalidf("%slayer_types is not a list of %d names", c.inside, d.Layers))
		return 0
	}
	for _, v := range list {
		if v != "full_attention" {
			c.fail(fmt.Errorf("%slayer_types: %w", c.inside, &UnsupportedError{"attention", shown(v), []string{"full_attention"}}))
			break
		}
	}
	return 0
}

// tied says whether the embedding is also the head; known is false where
// config.json does not say.
func (c *config) tied() (tied, known bool, err error) {
	v := c.text["tie_word_embeddings"]
	if v == nil {
		v = c.values["tie_word_embeddings"]
	}
	tied, known = v.(bool)
	if !known && v != nil {
		return false, false, invalidf("config.json: tie_word_embeddings is %s, want true or false", shown(v))
	}
	return tied, known, nil
}

package family

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// wrappers maps the model_type of models that hold a decoder and a vision
// encoder to the types that their text_config may name; the first is the
// default. Only the decoder is loaded, as in mlx-lm 0.32.2 (models/gemma3.py
// and models/mistral3.py): its output for text does not depend on the encoder.
func wrappers() map[string][]string {
	return map[string][]string{"gemma3": {"gemma3_text"}, "gemma3n": {"gemma3n_text"}, "gemma4": {"gemma4_text"}, "gemma4_unified": {"gemma4_unified_text", "gemma4_text"}, "kimi_k25": {"deepseek_v3", "kimi_k2"}, "llama4": {"llama4_text"}, "mistral3": {"mistral", "ministral3", "mistral4"}, "qwen3_vl": {"qwen3_vl_text"}, "qwen3_vl_moe": {"qwen3_vl_moe_text"}}
}

// textSection is the key of a wrapper's decoder configuration.
const textSection = "text_config"

// Wrapped reports whether the decoder is nested in a larger model.
func (c *Config) Wrapped() bool {
	kind, _ := c.values["model_type"].(string)
	return wrappers()[kind] != nil
}

// decoder returns the model_type of the decoder: the model's own, or that
// inside a wrapper.
func (c *Config) decoder() (string, error) {
	kind, ok := c.values["model_type"].(string)
	if !ok {
		return "", fmt.Errorf("config.json: model_type: %w", ErrMissing)
	}
	allowed := wrappers()[kind]
	if allowed == nil {
		return kind, nil
	}
	if c.inside != textSection+"." {
		return "", fmt.Errorf("config.json: %s, of a %s: %w", textSection, kind, ErrMissing)
	}
	switch inner := c.value("model_type").(type) {
	case nil:
		return allowed[0], nil
	case string:
		if slices.Contains(allowed, inner) {
			return inner, nil
		}
	}
	return "", fmt.Errorf("config.json: %s.model_type: %w", textSection, &UnsupportedError{"decoder in a " + kind, Shown(c.value("model_type")), allowed})
}

// complete adds the values that the text_config of Google's Gemma models omits,
// with the defaults that both references share (mlx-lm's models/gemma3.py,
// transformers' Gemma3TextConfig, version 5).
func (c *Config) complete() {
	c.counted()
	if c.values["model_type"] != "gemma3" || !c.Wrapped() {
		return
	}
	text := maps.Clone(c.text)
	vocabulary := c.values["vocab_size"]
	if vocabulary == nil {
		vocabulary = json.Number("262208")
	}
	for key, v := range map[string]any{
		"vocab_size": vocabulary, "num_attention_heads": json.Number("8"), "num_key_value_heads": json.Number("4"),
		"head_dim": json.Number("256"), "rms_norm_eps": json.Number("1e-6"),
	} {
		if text[key] == nil {
			text[key] = v
		}
	}
	c.text = text
}

// Decoder returns the configuration of the decoder inside a wrapper, as
// config.json of a folder with only the decoder would have it, including the
// name of its class. It returns nil if values, a config.json, is not a
// wrapper's.
func Decoder(values map[string]any) map[string]any {
	c := NewConfig(values)
	section, ok := values[textSection].(map[string]any)
	if !c.Wrapped() || !ok {
		return nil
	}
	c.text, c.inside = section, textSection+"."
	kind, err := c.decoder()
	if err != nil {
		return nil
	}
	c.complete()
	out := maps.Clone(c.text)
	switch kind {
	case "gemma4_unified_text":
		kind = "gemma4_text"
	case "qwen3_vl_text":
		kind = "qwen3"
	case "qwen3_vl_moe_text":
		kind = "qwen3_moe"
	}
	out["model_type"] = kind
	out["architectures"] = []string{map[string]string{
		"deepseek_v3": "DeepseekV3ForCausalLM", "gemma3_text": "Gemma3ForCausalLM", "gemma3n_text": "Gemma3nForCausalLM", "gemma4_text": "Gemma4ForCausalLM", "kimi_k2": "DeepseekV3ForCausalLM", "llama4_text": "Llama4ForCausalLM",
		"ministral3": "Ministral3ForCausalLM", "mistral4": "Mistral4ForCausalLM", "mistral": "MistralForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
	}[kind]}
	for _, key := range []string{"bos_token_id", "eos_token_id", "pad_token_id"} {
		if out[key] == nil && values[key] != nil {
			out[key] = values[key]
		}
	}
	return out
}

package weights

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// wrappers are models that hold a decoder beside eyes, by their model_type, and
// the types that their text_config may name; the first is meant where it names
// none. The decoder is read alone, as mlx-lm 0.32.2 does (models/gemma3.py and
// models/mistral3.py): what it says to text does not depend on the eyes.
func wrappers() map[string][]string {
	return map[string][]string{"gemma3": {"gemma3_text"}, "mistral3": {"mistral", "ministral3"}}
}

// textSection is where a wrapper keeps the configuration of its decoder.
const textSection = "text_config"

// wrapped says that the model is one of wrappers.
func (c *config) wrapped() bool {
	kind, _ := c.values["model_type"].(string)
	return wrappers()[kind] != nil
}

// decoder is the model_type of the decoder: the model's own, or that inside a
// wrapper.
func (c *config) decoder() (string, error) {
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
	switch inner := c.text["model_type"].(type) {
	case nil:
		return allowed[0], nil
	case string:
		if slices.Contains(allowed, inner) {
			return inner, nil
		}
	}
	return "", fmt.Errorf("config.json: %s.model_type: %w", textSection, &UnsupportedError{"decoder in a " + kind, shown(c.text["model_type"]), allowed})
}

// complete enters what the text_config of a Gemma leaves out, as Google's do,
// and what both references take then (mlx-lm's models/gemma3.py, transformers'
// Gemma3TextConfig, version 5).
func (c *config) complete() {
	if c.values["model_type"] != "gemma3" || !c.wrapped() {
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

// Decoder is the configuration of the decoder inside a wrapper, as a folder has
// it that holds nothing else, and the name of its class; nil where values, a
// config.json, is no wrapper's.
func Decoder(values map[string]any) map[string]any {
	c := &config{values: values}
	section, ok := values[textSection].(map[string]any)
	if !c.wrapped() || !ok {
		return nil
	}
	c.text, c.inside = section, textSection+"."
	kind, err := c.decoder()
	if err != nil {
		return nil
	}
	c.complete()
	out := maps.Clone(c.text)
	out["model_type"] = kind
	out["architectures"] = []string{map[string]string{"gemma3_text": "Gemma3ForCausalLM", "ministral3": "Ministral3ForCausalLM", "mistral": "MistralForCausalLM"}[kind]}
	for _, key := range []string{"bos_token_id", "eos_token_id", "pad_token_id"} {
		if out[key] == nil && values[key] != nil {
			out[key] = values[key]
		}
	}
	return out
}

// beside are the parts of a wrapper that are not read: eyes, and of a Qwen3.5
// what guesses several tokens at once (mlx-lm's models/qwen3_5.py, sanitize).
func (d Dimensions) beside() []string {
	out := []string{"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."}
	if isHybrid(d.Architecture) {
		out = append(out, "model.visual.", "mtp.", "language_model.mtp.")
	}
	return out
}

// plainName is the name that a wrapper's tensor, or layer, has in a folder that
// holds the decoder alone: transformers 4 and mlx-lm write
// language_model.model.layers.0, transformers 5 model.language_model.layers.0.
func plainName(name string) string {
	if rest, ok := strings.CutPrefix(name, "model.language_model."); ok {
		return "model." + rest
	}
	return strings.TrimPrefix(name, "language_model.")
}

// unwrapModel names the tensors of the decoder as if it stood alone, and leaves
// the rest out.
func (c *collection) unwrapModel(d Dimensions) error {
	named := make(map[string]shardTensor, len(c.tensors))
	for _, name := range sortedKeys(c.tensors) {
		if slices.ContainsFunc(d.beside(), func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			c.unread += c.tensors[name].span.bytes
			continue
		}
		plain := plainName(name)
		if _, twice := named[plain]; twice {
			return invalidf("tensor %s exists under two names", quoted(plain))
		}
		named[plain] = c.tensors[name]
	}
	c.tensors = named
	return nil
}

// unwrap names quantised layers as unwrapModel names their tensors.
func (g grouping) unwrap() grouping {
	layers := make(map[string]any, len(g.layers))
	for name, v := range g.layers {
		layers[plainName(name)] = v
	}
	g.layers = layers
	return g
}

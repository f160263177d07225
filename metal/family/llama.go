package family

import "fmt"

// llama is the Llama family: Llama 2 and 3, Mistral, Ministral 3, SmolLM. A
// rotary pair has one element in each half of a head (the original layout);
// GGUF files interleave them.
func llama() Family {
	return Family{
		Name: "llama", Models: "Llama 2 and 3, SmolLM2, Mistral; Mistral Small 3 and Ministral 3, text only", Types: []string{"iquestcoder", "llama", "ministral3", "mistral", "xverse"},
		Contexts: map[string]int{"mistral": 1 << 17, "ministral3": 1 << 18}, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			d.Window = readWindow(c, *d)
			switch c.kind {
			case "ministral3":
				d.Temper = readTemper(c)
			case "mistral": // whose code in transformers has no biases
			default:
				d.Bias, d.FeedBias = c.flag("attention_bias"), c.flag("mlp_bias")
				d.OutBias = d.Bias
			}
		},
		Block: preNorm,
		GGUF:  &GGUF{Name: "llama", Interleaved: true},
	}
}

// readWindow reads sliding_window of a Mistral model, which applies to every layer,
// as in transformers (modeling_mistral.py, version 5) and in training. mlx-lm
// runs Mistral as Llama and ignores the key there, as it does in qwen2 and
// qwen3.
func readWindow(c *Config, d Dimensions) int {
	if c.value("layer_types") != nil {
		c.kinds(d.Layers, "full_attention")
		return 0
	}
	if c.kind == "ministral3" && c.value("sliding_window") != nil {
		// transformers applies it in every layer, mlx-lm in those of
		// layer_types.
		c.fail(fmt.Errorf("%ssliding_window: %w", c.inside, &UnsupportedError{"value", Shown(c.value("sliding_window")), []string{"null"}}))
	}
	if c.kind != "mistral" {
		return 0
	}
	return c.integerOr(0, 1, 1<<30, "sliding_window")
}

// readTemper reads Ministral's position-dependent query scale from rope_parameters.
func readTemper(c *Config) *Temper {
	params, _ := c.value("rope_parameters").(map[string]any)
	r := ropeReader{c: c, key: "rope_parameters", values: params}
	return &Temper{
		Beta:  r.number("llama_4_scaling_beta", nil, 0, 1e3),
		Every: int(r.number("original_max_position_embeddings", nil, 1, 1<<30)),
	}
}

package family

import "fmt"

// ernie45 is dense ERNIE 4.5: Llama's block with interleaved rotary pairs.
func ernie45() Family {
	return Family{
		Name: "ernie4_5", Models: "ERNIE 4.5 dense", Types: []string{"ernie4_5"}, Context: 1 << 17, Theta: 500000, Interleaved: true,
		Read: func(c *Config, d *Dimensions) {
			d.Bias = c.flag("use_bias")
			d.OutBias, d.FeedBias = d.Bias, d.Bias
		},
		Block: preNorm,
	}
}

// ernie45MoE is ERNIE 4.5 with a mixture of experts. Its router adds a bias
// when it chooses experts, as in transformers. mlx-lm drops the bias when it
// converts a model; such a folder is run without it.
func ernie45MoE() Family {
	return Family{
		Name: "ernie4_5_moe", Models: "ERNIE 4.5, mixture of experts", Types: []string{"ernie4_5_moe"}, Context: 1 << 17, Theta: 500000, Interleaved: true,
		Read:  readErnie,
		Block: preNorm,
		Layout: Layout{
			Rename:  []string{".mlp.moe_statics.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"},
			Ignored: []string{"model.mtp_"},
		},
	}
}

func readErnie(c *Config, d *Dimensions) {
	if c.flag("use_bias") {
		c.fail(fmt.Errorf("%suse_bias: %w", c.inside, &UnsupportedError{"value", "true", []string{"false"}}))
	}
	if v := c.value("moe_gate_act"); v != nil && v != "softmax" {
		c.fail(fmt.Errorf("%smoe_gate_act: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"softmax"}}))
	}
	e := Experts{
		Count: c.integer(1, 1<<12, "moe_num_experts"), PerToken: c.integer(1, 1<<12, "moe_k"),
		FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"), Normalized: true, SharedWhole: true,
		Step:   c.integerOr(1, 1, 1<<12, "moe_layer_interval"),
		Router: Router{Bias: "gate.e_score_correction_bias", MayLack: true},
	}
	e.Shared = e.FeedForward * c.integerOr(0, 0, 1<<10, "moe_num_shared_experts")
	e.Dense = denseFirst(d.Layers, c.integerOr(0, 0, 1<<12, "moe_layer_start_index"))
	if v := c.value("moe_layer_end_index"); v != nil {
		last := c.integerOr(d.Layers-1, -1, 1<<12, "moe_layer_end_index")
		for i := last + 1; last >= 0 && i < d.Layers; i++ {
			e.Dense = append(e.Dense, i)
		}
	}
	d.Experts = e
}

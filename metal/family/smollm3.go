package family

// smollm3 is SmolLM3: Llama's block without rotary embeddings in every fourth
// layer.
func smollm3() Family {
	return Family{
		Name: "smollm3", Models: "SmolLM3", Types: []string{"smollm3"}, Context: 1 << 15,
		Read: func(c *Config, d *Dimensions) {
			d.Bias, d.FeedBias = c.flag("attention_bias"), c.flag("mlp_bias")
			d.OutBias = d.Bias
			c.kinds(d.Layers, "full_attention")
			d.Still = everyLayer(d.Layers, c.integerOr(4, 1, 1<<12, "no_rope_layer_interval"))
			if v := c.value("no_rope_layers"); v != nil {
				list, ok := v.([]any)
				for i := range min(len(list), d.Layers) {
					n, whole := WholeNumber(list[i])
					ok = ok && whole && (n == 0 || n == 1)
					d.Still[i] = n == 0 // the list marks layers that are rotated
				}
				if !ok || len(list) != d.Layers {
					c.fail(Invalidf("%sno_rope_layers is not a list of %d numbers 0 or 1", c.inside, d.Layers))
				}
			}
		},
		Block: preNorm,
	}
}

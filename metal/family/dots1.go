package family

// dots1 is dots.llm1: Qwen3's block with the mixture of experts of DeepSeek-V3.
func dots1() Family {
	return Family{
		Name: "dots1", Models: "dots.llm1", Types: []string{"dots1"}, Context: 1 << 11, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			d.Bias, d.FeedBias, d.HeadNorm = c.flag("attention_bias"), c.flag("mlp_bias"), EachHead
			d.OutBias = d.Bias
			c.noAux(d, "sigmoid", "noaux_tc")
		},
		Block: preNorm,
		Layout: Layout{Rename: []string{
			".mlp.experts.gate_proj.", ".mlp.switch_mlp.gate_proj.", ".mlp.experts.up_proj.", ".mlp.switch_mlp.up_proj.",
			".mlp.experts.down_proj.", ".mlp.switch_mlp.down_proj.",
		}},
	}
}

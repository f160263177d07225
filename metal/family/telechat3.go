package family

// telechat3 is TeleChat 3: Llama's block, whose attention has biases everywhere or nowhere.
func telechat3() Family {
	return Family{
		Name: "telechat3", Models: "TeleChat 3", Types: []string{"telechat3"},
		Read: func(c *Config, d *Dimensions) {
			d.Bias, d.FeedBias = c.flag("attention_bias"), c.flag("mlp_bias")
			d.OutBias = d.Bias
		},
		Block: preNorm,
	}
}

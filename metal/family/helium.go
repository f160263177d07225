package family

// helium is Helium (Kyutai): Llama's block, whose rotary embedding takes adjacent
// elements as a pair. Its output projection never has a bias.
func helium() Family {
	return Family{
		Name: "helium", Models: "Helium 1", Types: []string{"helium"}, Context: 1 << 12, Theta: 1e5, Interleaved: true,
		Read: func(c *Config, d *Dimensions) {
			d.Bias, d.FeedBias = c.flag("attention_bias"), c.flag("mlp_bias")
		},
		Block: preNorm,
	}
}

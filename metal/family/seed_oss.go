package family

// seedOSS is Seed-OSS: Llama's block with biases in attention. Whether there are
// any has to be in the file: transformers and mlx-lm assume different things.
func seedOSS() Family {
	return Family{
		Name: "seed_oss", Models: "Seed-OSS", Types: []string{"seed_oss"}, Context: 1 << 19, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			d.Bias, d.OutBias, d.FeedBias = c.must("attention_bias"), c.flag("attention_out_bias"), c.flag("mlp_bias")
		},
		Block: preNorm,
	}
}

package family

// seedOSS is Seed-OSS: Llama's block with biases in attention. The file must
// state whether it has them, because the defaults of transformers and mlx-lm
// differ.
func seedOSS() Family {
	return Family{
		Name: "seed_oss", Models: "Seed-OSS", Types: []string{"seed_oss"}, Context: 1 << 19, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			d.Bias, d.OutBias, d.FeedBias = c.must("attention_bias"), c.flag("attention_out_bias"), c.flag("mlp_bias")
		},
		Block: preNorm,
	}
}

package family

// olmo2 is OLMo 2: only the results of both halves of a block are normed, and
// queries and keys are normed over all their heads together.
func olmo2() Family {
	return Family{
		Name: "olmo2", Models: "OLMo 2", Types: []string{"olmo2"}, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			d.Bias = c.flag("attention_bias")
			d.OutBias, d.HeadNorm = d.Bias, AllHeads
		},
		Block: postNorm,
	}
}

// olmo3 is OLMo 3: OLMo 2 with sliding windows in three of four layers, whose
// rotary embedding is never scaled. transformers (5.23) uses a base of 500000
// regardless of rope_theta; mlx-lm reads the key. Released models have 500000.
func olmo3() Family {
	return Family{
		Name: "olmo3", Models: "OLMo 3", Types: []string{"olmo3"}, Context: 1 << 11, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			d.Bias = c.flag("attention_bias")
			d.OutBias, d.HeadNorm = d.Bias, AllHeads
			c.windows(d, 4)
			d.LocalRope = &Rope{Theta: d.Rope.Theta, Size: d.Rope.Size, Linear: 1, Magnitude: 1}
		},
		Block: postNorm,
	}
}

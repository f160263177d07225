package family

// starcoder2 is StarCoder2: LayerNorm, biases everywhere, and an ungated
// feed-forward. Its GELU is the tanh approximation, as in transformers and in
// training; mlx-lm computes the exact one. transformers applies the file's
// sliding window, mlx-lm does not.
func starcoder2() Family {
	return Family{
		Name: "starcoder2", Models: "StarCoder2", Types: []string{"starcoder2"}, Context: 1 << 12, Theta: 10000, Eps: "norm_epsilon",
		Activations: []string{"gelu_pytorch_tanh"},
		Read: func(c *Config, d *Dimensions) {
			d.MeanNorm, d.NormBias = true, true
			d.Bias = c.flagOr(true, "use_bias")
			d.OutBias, d.FeedBias = d.Bias, d.Bias
			d.Window = c.integerOr(0, 1, 1<<30, "sliding_window")
		},
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			b.Feed.Plain, b.Feed.Activation = true, GELUTanh
			return b
		},
		Layout: Layout{Rename: []string{".mlp.c_fc.", ".mlp.up_proj.", ".mlp.c_proj.", ".mlp.down_proj."}},
	}
}

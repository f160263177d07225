package family

// mistral4 is Mistral 4: latent attention with a position-dependent query
// scale, and a mixture of experts with a softmax router.
func mistral4() Family {
	return Family{
		Name: "mistral4", Models: "Mistral 4, text only", Types: []string{"mistral4"}, Context: 1 << 18, Theta: 10000, Rotary: "qk_rope_head_dim",
		Read: func(c *Config, d *Dimensions) {
			c.latent(d)
			c.noAux(d, "softmax")
			d.Experts.Router.Sigmoid, d.Experts.Router.Bias = false, ""
			d.Experts.Normalized = c.flagOr(true, "norm_topk_prob")
			d.Temper = readTemper(c)
		},
		Block: preNorm,
	}
}

package family

// olmoe is OLMoE: Llama's block with queries and keys normed over all their
// heads and a mixture of experts in every layer.
func olmoe() Family {
	return Family{
		Name: "olmoe", Models: "OLMoE", Types: []string{"olmoe"}, Context: 1 << 12, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			d.Bias, d.HeadNorm = c.flag("attention_bias"), AllHeads
			d.OutBias = d.Bias
			d.Experts = Experts{
				Count: c.integer(1, 1<<12, "num_experts"), PerToken: c.integer(1, 1<<12, "num_experts_per_tok"),
				FeedForward: d.FeedForward, Normalized: c.must("norm_topk_prob"), Step: 1,
			}
		},
		Block: preNorm,
	}
}

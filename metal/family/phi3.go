package family

// phi3 is Phi-3, Phi-3.5 mini and Phi-4: Llama's block with fused projections
// in attention and feed-forward. A sliding window in the file is applied, as in
// transformers and in training; mlx-lm ignores it. longrope uses the long
// factors at every length, as mlx-lm does. transformers switches factors when a
// text grows past the original context, which would invalidate the cache.
func phi3() Family {
	return Family{
		Name: "phi3", Models: "Phi-3, Phi-3.5 mini, Phi-4", Types: []string{"phi3"}, Context: 1 << 12, Theta: 10000, Partial: 1,
		Read: func(c *Config, d *Dimensions) {
			d.Bias = c.flag("attention_bias")
			d.Window = c.integerOr(0, 1, 1<<30, "sliding_window")
		},
		Block: preNorm,
		Layout: Layout{Fused: []Fused{
			{"self_attn.qkv_proj", func(d Dimensions, _ int) []Part {
				q, kv := d.QueryHeads*d.HeadSize, d.KVHeads*d.HeadSize
				return []Part{{"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}}
			}},
			fusedGate(),
		}},
	}
}

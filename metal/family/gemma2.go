package family

import "math"

// gemma2 is Gemma 2: Gemma's block with four norms, soft-capped scores and
// logits, and a sliding window in every second layer. mlx-lm ignores the
// window; transformers applies it, as in training.
func gemma2() Family {
	return Family{
		Name: "gemma2", Models: "Gemma 2", Types: []string{"gemma2"}, Context: 1 << 13, Theta: 10000,
		Activations: []string{"gelu_pytorch_tanh"},
		Read: func(c *Config, d *Dimensions) {
			d.Bias = c.flag("attention_bias")
			d.OutBias = d.Bias
			d.EmbedScale = math.Sqrt(float64(d.Hidden))
			d.QueryScalar = c.number(1, 1<<20, "query_pre_attn_scalar") // the references' defaults differ
			d.ScoreCap = c.cap(50, "attn_logit_softcapping")
			d.LogitCap = c.cap(30, "final_logit_softcapping")
			c.windows(d, 2)
		},
		Block: func(d Dimensions, i int) Block {
			b := sandwich(d, i)
			b.Feed.Activation = GELUTanh
			return b
		},
		Layout: Layout{NormsLessOne: true, Wide: true},
	}
}

package family

import "math"

// gemma is the first Gemma: Llama's block with norms whose weights are stored
// minus one, GELU, and scaled embeddings.
func gemma() Family {
	return Family{
		Name: "gemma", Models: "Gemma 1", Types: []string{"gemma"}, Context: 1 << 13, Theta: 10000,
		// Files name the exact GELU, which mlx-lm and transformers 5 compute;
		// the model was trained with the tanh approximation.
		Activations: []string{"gelu_pytorch_tanh", "gelu"},
		Read: func(c *Config, d *Dimensions) {
			d.Bias = c.flag("attention_bias")
			d.OutBias = d.Bias
			d.EmbedScale = math.Sqrt(float64(d.Hidden))
		},
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			b.Feed.Activation = GELUTanh
			return b
		},
		Layout: Layout{NormsLessOne: true, Wide: true},
	}
}

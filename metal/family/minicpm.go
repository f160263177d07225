package family

import "math"

// minicpm is MiniCPM 1 and 2: Llama's block with multipliers of embeddings, residuals and
// logits. With tied embeddings mlx-lm leaves out the last of them if the file states that they
// are tied; the authors' modeling_minicpm.py always has it. longrope uses the long factors
// at every length, as Phi-3's does.
func minicpm() Family {
	return Family{
		Name: "minicpm", Models: "MiniCPM", Types: []string{"minicpm"},
		Read: func(c *Config, d *Dimensions) {
			d.EmbedScale = c.number(1e-9, 1e9, "scale_emb")
			d.Residual = c.number(1e-9, 1e9, "scale_depth") / math.Sqrt(float64(max(d.Layers, 1)))
			d.LogitScale = float64(c.integer(1, 1<<20, "dim_model_base")) / float64(max(d.Hidden, 1))
		},
		Block: preNorm,
	}
}

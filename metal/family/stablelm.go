package family

import "fmt"

// stableLM is StableLM 2 and StableLM Zephyr: Llama's block with LayerNorm, a
// quarter of each head rotated, and optionally parallel halves.
func stableLM() Family {
	return Family{
		Name: "stablelm", Models: "StableLM 2, StableLM Zephyr", Types: []string{"stablelm"}, Context: 1 << 12, Theta: 10000, Partial: 0.25, Eps: "layer_norm_eps",
		Read: func(c *Config, d *Dimensions) {
			d.MeanNorm, d.NormBias = true, true
			d.Bias, d.Parallel = c.flag("use_qkv_bias"), c.flag("use_parallel_residual")
			if c.flag("qk_layernorm") {
				c.fail(fmt.Errorf("%sqk_layernorm: %w", c.inside, &UnsupportedError{"value", "true", []string{"false"}}))
			}
		},
		Block: func(d Dimensions, i int) Block {
			if d.Parallel {
				return parallelBlock(d, i)
			}
			return preNorm(d, i)
		},
		Layout: Layout{Headed: true},
	}
}

package family

import "fmt"

// internlm3 is InternLM 3: Llama's block. In mlx-lm the bias flag
// covers queries, keys, values and the output projection, in the model's own
// code only the first three; a model that sets it is refused.
func internlm3() Family {
	return Family{
		Name: "internlm3", Models: "InternLM 3", Types: []string{"internlm3"}, Context: 1 << 15, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			for _, name := range []string{"qkv_bias", "bias"} {
				if c.flag(name) {
					c.fail(fmt.Errorf("%s%s: %w", c.inside, name, &UnsupportedError{"value", "true", []string{"false"}}))
				}
			}
		},
		Block: preNorm,
	}
}

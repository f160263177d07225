package family

import "fmt"

// mixtral is Mixtral: Llama's block with a mixture of experts in every layer. A
// sliding window is refused: transformers applies it, mlx-lm does not, and the
// released models have none.
func mixtral() Family {
	return Family{
		Name: "mixtral", Models: "Mixtral", Types: []string{"mixtral"}, Context: 1 << 17, Theta: 1e6,
		Read: func(c *Config, d *Dimensions) {
			if v := c.value("sliding_window"); v != nil {
				c.fail(fmt.Errorf("%ssliding_window: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"null"}}))
			}
			d.Experts = Experts{
				Count: c.integerOr(8, 1, 1<<12, "num_local_experts"), PerToken: c.integerOr(2, 1, 1<<12, "num_experts_per_tok"),
				FeedForward: d.FeedForward, Normalized: true, Step: 1,
			}
		},
		Block:  preNorm,
		Layout: Layout{Rename: []string{".block_sparse_moe.", ".mlp.", ".w1.", ".gate_proj.", ".w2.", ".down_proj.", ".w3.", ".up_proj."}},
	}
}

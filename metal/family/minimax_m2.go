package family

import (
	"encoding/json"
	"fmt"
)

// minimaxM2 is MiniMax M2 (minimax in mlx-lm): queries and keys normed over all
// their heads, a part of each head rotated, and a mixture of experts in every
// layer.
func minimaxM2() Family {
	return Family{
		Name: "minimax_m2", Models: "MiniMax M2", Types: []string{"minimax_m2"}, Context: 1 << 17, Theta: 5e6, Partial: 1,
		Read: func(c *Config, d *Dimensions) {
			if c.flagOr(true, "use_qk_norm") {
				d.HeadNorm = AllHeads
			}
			for _, v := range c.list("attn_type_list") {
				if v != json.Number("1") {
					c.fail(fmt.Errorf("%sattn_type_list: %w", c.inside, &UnsupportedError{"attention", Shown(v), []string{"1"}}))
					break
				}
			}
			if v := c.value("scoring_func"); v != nil && v != "sigmoid" {
				c.fail(fmt.Errorf("%sscoring_func: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"sigmoid"}}))
			}
			d.Experts = Experts{
				Count: c.integer(1, 1<<12, "num_local_experts", "num_experts"), PerToken: c.integer(1, 1<<12, "num_experts_per_tok"),
				FeedForward: d.FeedForward, Normalized: true, Step: 1, Router: Router{Sigmoid: true, Bias: "e_score_correction_bias", Least: leastSum},
			}
		},
		Block:  preNorm,
		Layout: Layout{Rename: []string{".block_sparse_moe.", ".mlp.", ".w1.", ".gate_proj.", ".w2.", ".down_proj.", ".w3.", ".up_proj."}},
	}
}

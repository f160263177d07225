package family

import (
	"fmt"
	"math"
)

// Latent is multi-head latent attention (https://arxiv.org/abs/2405.04434):
// keys and values of all heads are computed from one latent vector, plus a
// rotated part of the key. The cache stores only the vector and the rotated
// part. The matrix that would expand the vector to keys is multiplied into the
// queries, and the one that would expand it to values into the heads' output.
type Latent struct {
	// QueryRank is the width of the latent vector of queries; 0 means that
	// queries are computed from the input.
	QueryRank int
	// Rank is the width of the latent vector of keys and values.
	Rank int
	// Plain and Rotated are the widths of the two parts of a query head, Value
	// the width of a value head.
	Plain, Rotated, Value int
	// Eps is the epsilon of the norms of both vectors.
	Eps float64
	// Bias: the products that compute both vectors have biases, as has the
	// output projection.
	Bias bool
}

// latent reads latent attention. The number and the size of heads are set to
// those of the cached vector.
func (c *Config) latent(d *Dimensions) {
	l := &Latent{
		QueryRank: c.integerOr(0, 1, 1<<16, "q_lora_rank"), Rank: c.integer(1, 1<<16, "kv_lora_rank"), Plain: c.integer(1, 1<<12, "qk_nope_head_dim"),
		Rotated: c.integer(2, 1<<12, "qk_rope_head_dim"), Value: c.integer(1, 1<<12, "v_head_dim"), Eps: 1e-6, Bias: c.flag("attention_bias"),
	}
	d.KVHeads, d.HeadSize, d.Latent = 1, l.Rank+l.Rotated, l
	d.Rope.Interleaved = c.flagOr(true, "rope_interleave")
	d.Scale = c.stretched() / math.Sqrt(float64(max(1, l.Plain+l.Rotated)))
}

// stretched is the factor of scores that yarn adds to the rotation: the square
// of the magnitude that mscale_all_dim gives.
func (c *Config) stretched() float64 {
	params, _ := c.value("rope_scaling").(map[string]any)
	if params == nil {
		params, _ = c.value("rope_parameters").(map[string]any)
	}
	r := ropeReader{c: c, key: "rope_scaling", values: params}
	zero, one := 0.0, 1.0
	all := r.number("mscale_all_dim", &zero, 0, 1e3)
	if all == 0 {
		return 1
	}
	m := yarnMagnitude(r.number("factor", &one, 1, 1e6), all)
	return m * m
}

// latent lists the tensors of latent attention, with mlx-lm's names.
func (s *slots) latent(d Dimensions, l Latent, path string) {
	heads, query := d.QueryHeads, d.QueryHeads*(l.Plain+l.Rotated)
	if l.QueryRank > 0 {
		s.linear(path+"q_a_proj", l.QueryRank, d.Hidden, l.Bias)
		s.add(path+"q_a_layernorm.weight", int64(l.QueryRank))
		s.linear(path+"q_b_proj", query, l.QueryRank, false)
	} else {
		s.linear(path+"q_proj", query, d.Hidden, false)
	}
	s.linear(path+"kv_a_proj_with_mqa", l.Rank+l.Rotated, d.Hidden, l.Bias)
	s.add(path+"kv_a_layernorm.weight", int64(l.Rank))
	s.add(path+"embed_q.weight", int64(heads), int64(l.Rank), int64(l.Plain))
	s.add(path+"unembed_out.weight", int64(heads), int64(l.Value), int64(l.Rank))
	s.linear(path+"o_proj", d.Hidden, heads*l.Value, l.Bias)
}

// deepseekV2 is DeepSeek-V2 and V2-Lite: latent attention, and a mixture of
// experts with an unnormalized softmax.
func deepseekV2() Family {
	return Family{
		Name: "deepseek_v2", Models: "DeepSeek-V2, DeepSeek-Coder-V2", Types: []string{"deepseek_v2"}, Context: 1 << 11, Theta: 10000, Rotary: "qk_rope_head_dim",
		Read: func(c *Config, d *Dimensions) {
			c.latent(d)
			c.noAux(d, "softmax", "greedy", "group_limited_greedy")
			r := &d.Experts.Router
			r.Sigmoid, r.Pairs, r.Bias, d.Experts.Normalized = false, false, "", c.flag("norm_topk_prob")
			if c.value("topk_method") != "group_limited_greedy" {
				r.Groups, r.TopGroups = 1, 1
			}
			if d.Experts.Normalized {
				// transformers and mlx-lm ignore this key; the model's own code
				// does not.
				c.fail(fmt.Errorf("%snorm_topk_prob: %w", c.inside, &UnsupportedError{"value", "true", []string{"false"}}))
			}
		},
		Block: preNorm,
	}
}

// deepseekV3 is DeepSeek-V3 and R1, and Kimi K2, which has the same
// architecture.
func deepseekV3() Family {
	return Family{
		Name: "deepseek_v3", Models: "DeepSeek-V3 and R1; Kimi K2; Kimi K2.5, text only", Types: []string{"deepseek_v3", "kimi_k2"}, Context: 1 << 12, Theta: 10000, Rotary: "qk_rope_head_dim",
		Read: func(c *Config, d *Dimensions) {
			c.latent(d)
			c.noAux(d, "sigmoid", "noaux_tc")
		},
		Block:  preNorm,
		Layout: Layout{Drafts: true},
	}
}

// glm4MoELite is GLM-4.7-Flash: DeepSeek-V3's block. The norms of its latent
// vectors use the epsilon of the file, as in mlx-lm. transformers leaves its
// default of 1e-6 in place, which changes the sixth digit.
func glm4MoELite() Family {
	return Family{
		Name: "glm4_moe_lite", Models: "GLM-4.7-Flash", Types: []string{"glm4_moe_lite"}, Context: 1 << 17, Theta: 10000, Rotary: "qk_rope_head_dim",
		Read: func(c *Config, d *Dimensions) {
			c.latent(d)
			c.noAux(d, "sigmoid", "noaux_tc")
			d.Latent.Eps = d.NormEps
		},
		Block:  preNorm,
		Layout: Layout{Drafts: true},
	}
}

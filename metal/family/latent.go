package family

import (
	"fmt"
	"math"
	"slices"
	"strings"
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
	// Indexer selects the tokens that a layer attends to; nil means all.
	Indexer *Indexer
}

// Indexer is the indexer of sparse attention (tensor.Indexer): Heads of Size
// elements, of which the first are rotated as those of the layer, and the number
// of tokens that it selects.
type Indexer struct {
	Heads, Size, TopK int
	Interleaved       bool
}

// Stored is the width of what the cache keeps of a token: the latent vector, the
// rotated part, and the key of the indexer.
func (l Latent) Stored() int {
	if l.Indexer == nil {
		return l.Rank + l.Rotated
	}
	return l.Rank + l.Rotated + l.Indexer.Size
}

// indexer reads the indexer of latent attention. Layers that reuse the selection
// of an earlier one are refused: mlx-lm ignores these keys.
func (c *Config) indexer(d *Dimensions, interleaved bool) {
	x := &Indexer{Heads: c.integer(1, 1<<10, "index_n_heads"), Size: c.integer(2, 1<<12, "index_head_dim"), TopK: c.integer(1, 1<<20, "index_topk")}
	x.Interleaved = c.flagOr(interleaved, "indexer_rope_interleave")
	if d.Latent.QueryRank == 0 {
		c.integer(1, 1<<16, "q_lora_rank")
	}
	if x.Size%2 != 0 || x.Size < d.Latent.Rotated {
		c.fail(Invalidf("%sindex_head_dim is %d, want an even number from qk_rope_head_dim, %d", c.inside, x.Size, d.Latent.Rotated))
	}
	c.only("index_topk_freq", 1)
	kinds, pattern := c.list("indexer_types"), c.value("index_topk_pattern")
	if text, ok := pattern.(string); pattern != nil && (!ok || strings.Trim(text, "F") != "") {
		c.fail(fmt.Errorf("%sindex_topk_pattern: %w", c.inside, &UnsupportedError{"value", Shown(pattern), []string{"F"}}))
	}
	for _, kind := range kinds {
		if kind != "full" {
			c.fail(fmt.Errorf("%sindexer_types: %w", c.inside, &UnsupportedError{"indexer", Shown(kind), []string{"full"}}))
			break
		}
	}
	if dense, ok := c.denseLayers(d.Layers); ok && !slices.Equal(dense, d.Experts.Dense) {
		c.fail(Invalidf("%smlp_layer_types and first_k_dense_replace contradict each other", c.inside))
	}
	d.Latent.Indexer = x
	d.HeadSize = d.Latent.Stored()
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
	if x := l.Indexer; x != nil {
		s.linear(path+"indexer.wq_b", x.Heads*x.Size, l.QueryRank, false)
		s.linear(path+"indexer.wk", x.Size, d.Hidden, false)
		s.norm(Norm{Path: path + "indexer.k_norm", Mean: true, Bias: true}, x.Size)
		s.linear(path+"indexer.weights_proj", x.Heads, d.Hidden, false)
	}
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
		Block:  preNorm,
		Layout: Layout{Headed: true, KeepsExpansion: true},
	}
}

// deepseekV3 is DeepSeek-V3 and R1, and Kimi K2, which has the same
// architecture.
func deepseekV3() Family {
	return Family{
		Name: "deepseek_v3", Models: "DeepSeek-V3 and R1; Kimi K2; Kimi K2.5, text only", Types: []string{"deepseek_v3", "joyai_llm_flash", "kimi_k2"}, Context: 1 << 12, Theta: 10000, Rotary: "qk_rope_head_dim",
		Read: func(c *Config, d *Dimensions) {
			c.latent(d)
			c.noAux(d, "sigmoid", "noaux_tc")
		},
		Block:  preNorm,
		Layout: Layout{Drafts: true, Headed: true},
	}
}

// deepseekV32 is DeepSeek-V3.2: DeepSeek-V3 with sparse attention. The norm of
// the indexer's keys has the epsilon of transformers and of the model's own code,
// 1e-6; mlx-lm has 1e-5, which can change a selection only between near equals.
func deepseekV32() Family {
	f := deepseekV3()
	f.Name, f.Models, f.Types, f.Context = "deepseek_v32", "DeepSeek-V3.2", []string{"deepseek_v32"}, 1<<11
	f.Read = func(c *Config, d *Dimensions) {
		c.latent(d)
		c.noAux(d, "sigmoid", "noaux_tc")
		c.indexer(d, false)
	}
	return f
}

// glmMoEDSA is GLM-5: DeepSeek-V3.2's block, whose indexer rotates interleaved
// pairs.
func glmMoEDSA() Family {
	f := deepseekV3()
	f.Name, f.Models, f.Types, f.Context = "glm_moe_dsa", "GLM-5", []string{"glm_moe_dsa"}, 202752
	f.Read = func(c *Config, d *Dimensions) {
		c.latent(d)
		c.noAux(d, "sigmoid", "noaux_tc")
		c.indexer(d, true)
	}
	return f
}

// glm4MoELite is GLM-4.7-Flash: DeepSeek-V3's block. The norms of its latent
// vectors use the epsilon of the file, as in mlx-lm. transformers leaves its
// default of 1e-6 in place, which changes the sixth digit.
func glm4MoELite() Family {
	return Family{
		Name: "glm4_moe_lite", Models: "GLM-4.7-Flash", Types: []string{"glm4_moe_lite"}, Context: 1 << 17, Rotary: "qk_rope_head_dim",
		Read: func(c *Config, d *Dimensions) {
			c.latent(d)
			c.noAux(d, "sigmoid", "noaux_tc")
			d.Experts.Router.Scale = c.numberOr(1.8, 1e-9, 1e9, "routed_scaling_factor")
			d.Latent.Eps = d.NormEps
		},
		Block:  preNorm,
		Layout: Layout{Drafts: true, Headed: true},
	}
}

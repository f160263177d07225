package tinymodel

import (
	"fmt"
	"math"
)

// tensor is one tensor of a family, whatever the format it is written in.
type tensor struct {
	// path is its name in Hugging Face's layout, gguf that in a GGUF file;
	// both without their suffix. A tensor without path is in GGUF files alone.
	path, gguf string
	// rows is 0 for a vector.
	rows, cols int
	// stack is how many such matrices it is, each an expert's; 0 means one.
	stack  int
	values values
	// norm weights of a Gemma are less one in folders.
	norm bool
	// silent makes the last row zeros.
	silent bool
	// bias is what its name ends in, in place of weight.
	bias bool
}

func (t tensor) suffix() string {
	if t.bias {
		return ".bias"
	}
	return ".weight"
}

// all is the number of rows of all its matrices.
func (t tensor) all() int { return t.rows * max(1, t.stack) }

// shape of it with so many columns; the outermost dimension comes first.
func (t tensor) shape(cols int) []int {
	switch {
	case t.rows == 0:
		return []int{cols}
	case t.stack > 0:
		return []int{t.stack, t.rows, cols}
	}
	return []int{t.rows, cols}
}

// values says what a tensor holds: random numbers of deviation std around
// mean, or, where rising, 1, 2, 3 and so on.
type values struct {
	mean, std float64
	rising    bool
}

// tensors lists what the model has, in the order of its layers.
func (c Config) tensors() []tensor {
	matrix := func(path, gguf string, rows, cols int, gain float64) tensor {
		return tensor{path: path, gguf: gguf, rows: rows, cols: cols, values: values{std: gain / math.Sqrt(float64(cols))}}
	}
	norm := func(path, gguf string, cols int) tensor {
		return tensor{path: path, gguf: gguf, cols: cols, values: values{mean: 1, std: c.NormSpread / math.Sqrt(3)}, norm: true}
	}
	bias := func(path, gguf string, cols int) tensor {
		return tensor{path: path, gguf: gguf, cols: cols, values: values{std: c.NormSpread}, bias: true}
	}
	q, kv := c.QueryHeads*c.HeadSize, c.KVHeads*c.HeadSize
	embed := matrix("model.embed_tokens", "token_embd", c.Vocabulary, c.Hidden, 3)
	embed.silent = c.Endless
	out := []tensor{embed}
	if c.RopeFactors {
		out = append(out, tensor{gguf: "rope_freqs", cols: c.HeadSize / 2, values: values{rising: true}})
	}
	for i := range c.Layers {
		path := func(s string) string { return fmt.Sprintf("model.layers.%d.%s", i, s) }
		blk := func(s string) string { return fmt.Sprintf("blk.%d.%s", i, s) }
		out = append(out,
			norm(path("input_layernorm"), blk("attn_norm"), c.Hidden),
			matrix(path("self_attn.q_proj"), blk("attn_q"), q, c.Hidden, 2),
			matrix(path("self_attn.k_proj"), blk("attn_k"), kv, c.Hidden, 2),
			matrix(path("self_attn.v_proj"), blk("attn_v"), kv, c.Hidden, 1),
			matrix(path("self_attn.o_proj"), blk("attn_output"), c.Hidden, q, 1))
		if c.Family == Qwen2 {
			out = append(out, bias(path("self_attn.q_proj"), blk("attn_q"), q), bias(path("self_attn.k_proj"), blk("attn_k"), kv), bias(path("self_attn.v_proj"), blk("attn_v"), kv))
		}
		if c.Family == Qwen3 || c.Family == Qwen3MoE || c.Family == Gemma3 {
			out = append(out, norm(path("self_attn.q_norm"), blk("attn_q_norm"), c.HeadSize), norm(path("self_attn.k_norm"), blk("attn_k_norm"), c.HeadSize))
		}
		if c.Family == Gemma3 {
			out = append(out, norm(path("post_attention_layernorm"), blk("post_attention_norm"), c.Hidden),
				norm(path("pre_feedforward_layernorm"), blk("ffn_norm"), c.Hidden), norm(path("post_feedforward_layernorm"), blk("post_ffw_norm"), c.Hidden))
		} else {
			out = append(out, norm(path("post_attention_layernorm"), blk("ffn_norm"), c.Hidden))
		}
		if x := c.Experts; x.in(i) {
			stack := func(p, gguf string, rows, cols int) tensor {
				t := matrix(path("mlp.switch_mlp."+p), blk(gguf), rows, cols, 1)
				t.stack = x.Count
				return t
			}
			out = append(out, matrix(path("mlp.gate"), blk("ffn_gate_inp"), x.Count, c.Hidden, 1),
				stack("gate_proj", "ffn_gate_exps", x.FeedForward, c.Hidden),
				stack("up_proj", "ffn_up_exps", x.FeedForward, c.Hidden),
				stack("down_proj", "ffn_down_exps", c.Hidden, x.FeedForward))
			continue
		}
		out = append(out,
			matrix(path("mlp.gate_proj"), blk("ffn_gate"), c.FeedForward, c.Hidden, 1),
			matrix(path("mlp.up_proj"), blk("ffn_up"), c.FeedForward, c.Hidden, 1),
			matrix(path("mlp.down_proj"), blk("ffn_down"), c.Hidden, c.FeedForward, 1))
	}
	out = append(out, norm("model.norm", "output_norm", c.Hidden))
	if c.Untied {
		out = append(out, matrix("lm_head", "output", c.Vocabulary, c.Hidden, 3))
	}
	return out
}

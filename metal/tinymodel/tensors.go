package tinymodel

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// tensor is one tensor of a family, independent of the format in which it is
// written.
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
	// bias is what its name ends in, in place of weight; bare ends in neither.
	bias, bare bool
	// kernel: the tensor holds the taps of a convolution, which are never
	// quantized.
	kernel bool
	// eye: the tensor belongs to a vision encoder or draft head.
	eye bool
	// published experts are in blocks of mxfp4, under other names.
	published bool
	// table is how many vectors it is, each an expert's; 0 means one.
	table int
	// ones are the numbers of it that its values are not.
	ones []one
}

func (t tensor) suffix() string {
	switch {
	case t.bare:
		return ""
	case t.bias && t.published:
		return "_bias"
	case t.bias:
		return ".bias"
	}
	return ".weight"
}

// all is the number of rows of all its matrices.
func (t tensor) all() int { return t.rows * max(1, t.stack) }

// shape returns the shape for this many columns; the outermost dimension comes
// first.
func (t tensor) shape(cols int) []int {
	switch {
	case t.table > 0:
		return []int{t.table, cols}
	case t.rows == 0:
		return []int{cols}
	case t.stack > 0:
		return []int{t.stack, t.rows, cols}
	}
	return []int{t.rows, cols}
}

// values is the content of a tensor: random numbers of deviation std around
// mean, or, if rising, 1, 2, 3 and so on.
type values struct {
	mean, std float64
	rising    bool
}

// tensors lists what the model has, in the order of its layers.
func (c Config) tensors() []tensor {
	embed := matrix("model.embed_tokens", "token_embd", c.Vocabulary, c.Hidden, 3)
	embed.silent = c.Endless
	out := []tensor{embed}
	if c.RopeFactors {
		out = append(out, tensor{gguf: "rope_freqs", cols: c.HeadSize / 2, values: values{rising: true}})
	}
	for i := range c.Layers {
		for _, t := range slices.Concat(c.mixing(i), c.norms(), c.feedForward(i)) {
			t.path, t.gguf = fmt.Sprintf("model.layers.%d.%s", i, t.path), fmt.Sprintf("blk.%d.%s", i, t.gguf)
			out = append(out, t)
		}
	}
	out = append(out, c.norm("model.norm", "output_norm", c.Hidden))
	if c.Untied {
		out = append(out, matrix("lm_head", "output", c.Vocabulary, c.Hidden, 3))
	}
	out = c.drafted(out)
	if c.Script != nil {
		c.Script.play(out, c.endOfTurn(), c.Hidden)
	}
	if c.Dictation != nil {
		c.Dictation.play(out, c)
	}
	return out
}

func matrix(path, gguf string, rows, cols int, gain float64) tensor {
	return tensor{path: path, gguf: gguf, rows: rows, cols: cols, values: values{std: gain / math.Sqrt(float64(cols))}}
}

// eye is a tensor of what sees.
func eye(path string) tensor {
	t := matrix(path, "", 8, 32, 1)
	t.eye = true
	return t
}

func (c Config) norm(path, gguf string, cols int) tensor {
	return tensor{path: path, gguf: gguf, cols: cols, values: values{mean: 1, std: c.NormSpread / math.Sqrt(3)}, norm: true}
}

func (c Config) bias(path, gguf string, cols int) tensor {
	return tensor{path: path, gguf: gguf, cols: cols, values: values{std: c.NormSpread}, bias: true}
}

// mixing is what lets the tokens of layer i see others.
func (c Config) mixing(i int) []tensor {
	if c.Hybrid.recurs(i) {
		return c.recurrent()
	}
	return c.attention()
}

// attention of one layer, and the norm before it; names lack their prefix.
func (c Config) attention() []tensor {
	q, kv := c.QueryHeads*c.HeadSize, c.KVHeads*c.HeadSize
	out := []tensor{
		c.norm("input_layernorm", "attn_norm", c.Hidden),
		matrix("self_attn.q_proj", "attn_q", q, c.Hidden, 2),
		matrix("self_attn.k_proj", "attn_k", kv, c.Hidden, 2),
		matrix("self_attn.v_proj", "attn_v", kv, c.Hidden, 1),
		matrix("self_attn.o_proj", "attn_output", c.Hidden, q, 1),
	}
	switch c.Family {
	case GPTOSS:
		sinks := tensor{path: "self_attn.sinks", gguf: "attn_sinks", cols: c.QueryHeads, values: values{std: 1}, bare: true}
		return append(out, c.bias("self_attn.q_proj", "attn_q", q), c.bias("self_attn.k_proj", "attn_k", kv), c.bias("self_attn.v_proj", "attn_v", kv), c.bias("self_attn.o_proj", "attn_output", c.Hidden), sinks)
	case Qwen2:
		return append(out, c.bias("self_attn.q_proj", "attn_q", q), c.bias("self_attn.k_proj", "attn_k", kv), c.bias("self_attn.v_proj", "attn_v", kv))
	case Qwen3Next, Qwen35: // a gate for each head
		out[1].rows *= 2
		return append(out, c.norm("self_attn.q_norm", "attn_q_norm", c.HeadSize), c.norm("self_attn.k_norm", "attn_k_norm", c.HeadSize))
	case Qwen3, Qwen3MoE, Gemma3:
		return append(out, c.norm("self_attn.q_norm", "attn_q_norm", c.HeadSize), c.norm("self_attn.k_norm", "attn_k_norm", c.HeadSize))
	}
	return out
}

// norms lists the norms of one layer after its attention.
func (c Config) norms() []tensor {
	if c.Family == GPTOSS {
		return []tensor{c.norm("post_attention_layernorm", "post_attention_norm", c.Hidden)}
	}
	if c.Family != Gemma3 {
		return []tensor{c.norm("post_attention_layernorm", "ffn_norm", c.Hidden)}
	}
	return []tensor{
		c.norm("post_attention_layernorm", "post_attention_norm", c.Hidden),
		c.norm("pre_feedforward_layernorm", "ffn_norm", c.Hidden), c.norm("post_feedforward_layernorm", "post_ffw_norm", c.Hidden),
	}
}

// feedForward of layer i: a dense one, or experts.
func (c Config) feedForward(i int) []tensor {
	x := c.Experts
	if c.Family == GPTOSS {
		return c.biasedExperts()
	}
	if !x.in(i) {
		return []tensor{
			matrix("mlp.gate_proj", "ffn_gate", c.FeedForward, c.Hidden, 1),
			matrix("mlp.up_proj", "ffn_up", c.FeedForward, c.Hidden, 1),
			matrix("mlp.down_proj", "ffn_down", c.Hidden, c.FeedForward, 1),
		}
	}
	stack := func(path, gguf string, rows, cols int) tensor {
		t := matrix("mlp.switch_mlp."+path, gguf, rows, cols, 1)
		t.stack = x.Count
		return t
	}
	return append(c.shared(), []tensor{
		matrix("mlp.gate", "ffn_gate_inp", x.Count, c.Hidden, 1),
		stack("gate_proj", "ffn_gate_exps", x.FeedForward, c.Hidden),
		stack("up_proj", "ffn_up_exps", x.FeedForward, c.Hidden),
		stack("down_proj", "ffn_down_exps", c.Hidden, x.FeedForward),
	}...)
}

// biasedExperts are the router and experts of a GPT-OSS, in the names of mlx-lm.
func (c Config) biasedExperts() []tensor {
	x := c.Experts
	router := matrix("mlp.router", "ffn_gate_inp", x.Count, c.Hidden, 1)
	out := []tensor{router, c.bias("mlp.router", "ffn_gate_inp", x.Count)}
	for _, m := range []struct {
		name, gguf string
		rows, cols int
	}{{"gate_proj", "ffn_gate_exps", c.FeedForward, c.Hidden}, {"up_proj", "ffn_up_exps", c.FeedForward, c.Hidden}, {"down_proj", "ffn_down_exps", c.Hidden, c.FeedForward}} {
		weight, bias := matrix("mlp.experts."+m.name, m.gguf, m.rows, m.cols, 2), c.bias("mlp.experts."+m.name, m.gguf, m.rows)
		weight.stack, bias.table = x.Count, x.Count
		out = append(out, weight, bias)
	}
	return out
}

// published are the experts of a GPT-OSS as OpenAI named them: gate and up are
// one tensor.
func published(all []tensor) []tensor {
	var out []tensor
	for _, t := range all {
		if strings.Contains(t.path, ".mlp.experts.up_proj") {
			continue
		}
		if strings.Contains(t.path, ".mlp.experts.") {
			t.published = true
		}
		if strings.Contains(t.path, ".mlp.experts.gate_proj") {
			t.path = strings.Replace(t.path, "gate_proj", "gate_up_proj", 1)
			if t.rows *= 2; t.bias {
				t.cols *= 2
			}
		}
		out = append(out, t)
	}
	return out
}

package family

import (
	"cmp"
	"fmt"
	"slices"
)

// Experts describes a mixture of experts; the zero value means a dense family.
type Experts struct {
	// Count is the number of experts of a layer, PerToken how many of them each
	// token uses.
	Count, PerToken int
	// FeedForward is the hidden width of one expert.
	FeedForward int
	// Normalized means that the weights of the chosen experts are scaled to add
	// up to 1.
	Normalized bool
	// Only every Step-th layer is a mixture. Layers marked in Dense never are.
	Step  int
	Dense []int
	// Shared is the hidden width of an additional gated expert that every token
	// uses; 0 means none.
	Shared int
	// SharedWhole means that the shared expert has no gate.
	SharedWhole bool
	// Clamped selects the experts of GPT-OSS, whose products have biases and
	// whose gate is clamped.
	Clamped bool
	// Path is where the mixture lies in its layer; empty means mlp.
	Path string
	// Activation of the gate, or of the first product where the experts are Plain; so
	// of the shared one.
	Activation Activation
	Plain      bool
	// Latent is the width of what experts read and return (Nemotron 3 Super): one matrix
	// makes it of the layer's input, another makes the output of their sum. 0 means the
	// model's width. The router and the shared expert read the input.
	Latent int
	// Aside is the mixture of Gemma 4, which stands next to a dense feed-forward of this
	// width; both are normed by themselves.
	Aside int
	// Limit and SharedLimit bound the factors of experts and of the shared expert
	// (Feed.Limit).
	Limit, SharedLimit float64
	// Router selects how experts are chosen; the zero value is a softmax.
	Router Router
}

// Router describes how the scores of experts determine the choice of experts
// and their weights.
type Router struct {
	// Sigmoid replaces the softmax over all experts.
	Sigmoid bool
	// Bias is the path, relative to mlp, of values added to the scores only to
	// choose experts; empty means none.
	Bias string
	// MayLack means that a file may omit the bias, which then is zero.
	MayLack bool
	// Only experts of the best TopGroups of Groups can be chosen. A group ranks
	// by its best expert or, with Pairs, by the sum of its best two. 0 and 1
	// mean no groups.
	Groups, TopGroups int
	Pairs             bool
	// Scale multiplies the weights of the experts; 0 means 1.
	Scale float64
	// Least is added to the sum that shares are divided by.
	Least float64
	// Cap, unless 0, bounds scores: Cap*tanh(score/Cap).
	Cap float64
	// Jitter, unless 0, chooses experts by SparseMixer (tensor.RouteSpec.Jitter).
	Jitter float64
	// Input means that the weight of the one expert of a token multiplies what the
	// expert reads, not what it returns.
	Input bool
}

// leastSum keeps shares finite where all chosen scores underflow.
const leastSum = 1e-20

// Plain reports whether the router is a softmax and nothing else.
func (r Router) Plain() bool { return r == Router{} }

// Prefix is where the tensors of the mixture lie in their layer.
func (e Experts) Prefix() string { return cmp.Or(e.Path, "mlp") }

// SharedName is the path of the shared expert's tensors, relative to the
// mixture.
func (e Experts) SharedName() string {
	if e.SharedWhole {
		return "shared_experts"
	}
	return "shared_expert"
}

// In reports whether a layer is a mixture, by the rule of transformers'
// Qwen3MoeDecoderLayer and mlx-lm.
func (e Experts) In(layer int) bool {
	return e.Count > 0 && (layer+1)%e.Step == 0 && !slices.Contains(e.Dense, layer)
}

// Layers counts the mixtures among the first n layers.
func (e Experts) Layers(n int) int {
	sparse := 0
	for i := range n {
		if e.In(i) {
			sparse++
		}
	}
	return sparse
}

// consistent checks the fields against one another.
func (e Experts) consistent() error {
	if e.PerToken > e.Count {
		return Invalidf("each token uses %d experts, but there are only %d", e.PerToken, e.Count)
	}
	groups, top := e.Router.Groups, e.Router.TopGroups
	if groups < 2 {
		return nil
	}
	if e.Count%groups != 0 || top > groups {
		return Invalidf("n_group: %d experts do not form %d groups, of which a token uses %d", e.Count, groups, top)
	}
	if can := e.Count / groups * top; e.PerToken > can {
		return Invalidf("num_experts_per_tok: each token uses %d experts, but %d of %d groups have only %d", e.PerToken, top, groups, can)
	}
	return nil
}

// experts reads the mixture of a Qwen3. Keys that mlx-lm requires are required;
// for the others the defaults of transformers apply (Qwen3MoeConfig, version
// 5).
func (c *Config) experts(layers int) Experts {
	e := Experts{
		Count:       c.integer(1, 1<<12, "num_experts", "num_local_experts"),
		PerToken:    c.integer(1, 1<<12, "num_experts_per_tok"),
		FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"),
		Normalized:  c.flag("norm_topk_prob"),
		Step:        c.integerOr(1, 1, 1<<12, "decoder_sparse_step"),
	}
	if c.value("norm_topk_prob") == nil {
		c.fail(fmt.Errorf("%snorm_topk_prob: %w", c.inside, ErrMissing))
	}
	for i, dense := range c.listed("mlp_only_layers", layers) {
		if dense {
			e.Dense = append(e.Dense, i)
		}
	}
	return e
}

// listed reads a list of layers, and marks each that is in it once or more.
func (c *Config) listed(key string, layers int) []bool {
	v := c.value(key)
	if v == nil {
		return nil
	}
	list, ok := v.([]any)
	out := make([]bool, layers)
	for _, v := range list {
		n, whole := WholeNumber(v)
		if ok = whole && n >= 0 && n < int64(layers); !ok {
			break
		}
		out[n] = true
	}
	if !ok {
		c.fail(Invalidf("%s%s is not a list of layer numbers less than %d", c.inside, key, layers))
	}
	return out
}

// experts reads the mixture of a GGUF file as llama.cpp does
// (models/qwen3moe.cpp): every layer is a mixture, with a softmax over all
// experts and normalized weights of the chosen ones. Keys that would change
// that are refused.
func (r *keyReader) experts() Experts {
	for key, plain := range map[string]int64{"expert_shared_count": 0, "expert_group_count": 0, "expert_gating_func": 1} {
		if v, ok := r.h.Integer(r.prefix + key); ok && v != plain {
			r.fail(&UnsupportedError{"value of " + r.prefix + key, fmt.Sprint(v), []string{fmt.Sprint(plain)}})
		}
	}
	if v := r.floatOr("expert_weights_scale", 1, 0, 1e6); v != 1 {
		r.fail(&UnsupportedError{"value of " + r.prefix + "expert_weights_scale", fmt.Sprint(v), []string{"1"}})
	}
	return Experts{
		Count: r.integer("expert_count", 1, 1<<12), PerToken: r.integer("expert_used_count", 1, 1<<12),
		FeedForward: r.integer("expert_feed_forward_length", 1, 1<<22), Normalized: true, Step: 1,
	}
}

// denseFirst marks the dense layers that precede the first mixture.
func denseFirst(layers, first int) []int {
	var out []int
	for i := range min(layers, first) {
		out = append(out, i)
	}
	return out
}

// denseLayers reads the layers that mlp_layer_types makes dense; ok is false
// without the key.
func (c *Config) denseLayers(layers int) (dense []int, ok bool) {
	kinds := c.list("mlp_layer_types")
	if len(kinds) == 0 {
		return nil, false
	}
	if len(kinds) != layers {
		c.fail(Invalidf("%smlp_layer_types has %d names, want %d", c.inside, len(kinds), layers))
		return nil, true
	}
	for i, kind := range kinds {
		switch kind {
		case "sparse":
		case "dense":
			dense = append(dense, i)
		default:
			c.fail(fmt.Errorf("%smlp_layer_types: %w", c.inside, &UnsupportedError{"feed-forward", Shown(kind), []string{"dense", "sparse"}}))
		}
	}
	return dense, true
}

// noAux reads the mixture of DeepSeek-V3: sigmoid scores, a bias that only
// affects the choice, groups of experts, scaled weights, shared experts without
// a gate, and dense layers first. The share of a single expert stays its score,
// as in DeepSeek's own code and mlx-lm; transformers makes it 1. Any other score
// function or method is refused.
func (c *Config) noAux(d *Dimensions, score string, methods ...string) {
	e := Experts{
		Count: c.integer(1, 1<<12, "n_routed_experts", "num_experts"), PerToken: c.integer(1, 1<<12, "num_experts_per_tok"),
		FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"), Normalized: c.flagOr(true, "norm_topk_prob"), Step: 1,
		Dense: denseFirst(d.Layers, c.integerOr(0, 0, 1<<12, "first_k_dense_replace")), SharedWhole: true,
		Router: Router{
			Sigmoid: true, Bias: "gate.e_score_correction_bias", Pairs: true, Least: leastSum, Scale: c.numberOr(1, 1e-9, 1e9, "routed_scaling_factor"),
			Groups: c.integerOr(1, 1, 1<<10, "n_group"), TopGroups: c.integerOr(1, 1, 1<<10, "topk_group"),
		},
	}
	e.Normalized = e.Normalized && e.PerToken > 1
	e.Shared = e.FeedForward * c.integerOr(0, 0, 1<<10, "n_shared_experts")
	c.only("moe_layer_freq", 1)
	for key, want := range map[string][]string{"scoring_func": {score}, "topk_method": methods} {
		if v := c.value(key); v != nil && !slices.Contains(want, fmt.Sprint(v)) {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, key, &UnsupportedError{"value", Shown(v), want}))
		}
	}
	d.Experts = e
}

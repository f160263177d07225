package family

import (
	"fmt"
	"slices"
)

// Experts are the numbers of a mixture; the zero value is a dense family.
type Experts struct {
	// Count of experts in a layer, of which a token sees PerToken.
	Count, PerToken int
	// FeedForward is the inner width of one.
	FeedForward int
	// Normalized shares, of those that a token sees, add up to one.
	Normalized bool
	// Step makes only every so-manieth layer a mixture, and Dense lists layers
	// that are none in any case.
	Step  int
	Dense []int
	// Shared is the inner width of one more expert, which every token
	// uses, by a gate of its own; 0 where there is none.
	Shared int
	// SharedWhole experts have no gate: their result is added as it is.
	SharedWhole bool
	// Clamped is the mixture of GPT-OSS, whose products have biases and whose gate
	// ends at a limit.
	Clamped bool
	// Router is how experts are chosen; the zero value is a softmax.
	Router Router
}

// Router is how the scores of experts become a choice and shares.
type Router struct {
	// Sigmoid takes the place of the softmax over all experts.
	Sigmoid bool
	// Bias is the path, under mlp, of numbers that are added to the scores for the
	// choice alone; empty where there are none.
	Bias string
	// MayLack is set where a file without these numbers means zeros.
	MayLack bool
	// Groups of experts, of which only the best TopGroups take part: those whose
	// best expert is best, or, with Pairs, whose two best are. 0 and 1 are none.
	Groups, TopGroups int
	Pairs             bool
	// Scale multiplies the shares; 0 means 1.
	Scale float64
}

// Plain reports whether it is a softmax and nothing else.
func (r Router) Plain() bool { return r == Router{} }

// SharedName is where the tensors of the shared expert lie in the mixture.
func (e Experts) SharedName() string {
	if e.SharedWhole {
		return "shared_experts"
	}
	return "shared_expert"
}

// In says whether a layer is a mixture (transformers' Qwen3MoeDecoderLayer and
// mlx-lm's agree).
func (e Experts) In(layer int) bool {
	return e.Count > 0 && (layer+1)%e.Step == 0 && !slices.Contains(e.Dense, layer)
}

// Layers counts mixtures among the first n layers.
func (e Experts) Layers(n int) int {
	sparse := 0
	for i := range n {
		if e.In(i) {
			sparse++
		}
	}
	return sparse
}

// consistent checks the numbers against one another.
func (e Experts) consistent() error {
	if e.PerToken > e.Count {
		return Invalidf("each token uses %d experts, but there are only %d", e.PerToken, e.Count)
	}
	return nil
}

// experts reads the mixture of a Qwen3. What mlx-lm wants to be said must be;
// the rest is what transformers takes (Qwen3MoeConfig, version 5).
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
	if v := c.value("mlp_only_layers"); v != nil {
		list, ok := v.([]any)
		for _, v := range list {
			n, whole := WholeNumber(v)
			ok = ok && whole && n >= 0 && n < int64(layers)
			e.Dense = append(e.Dense, int(n))
		}
		if !ok {
			c.fail(Invalidf("%smlp_only_layers is not a list of layer numbers less than %d", c.inside, layers))
		}
	}
	return e
}

// experts reads the mixture of a GGUF file as llama.cpp does, which takes the
// softmax first, then norms the shares of those that were chosen, in every
// layer (models/qwen3moe.cpp). What would change that is refused.
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

// denseFirst lists the layers before the first mixture.
func denseFirst(layers, first int) []int {
	var out []int
	for i := range min(layers, first) {
		out = append(out, i)
	}
	return out
}

// noAux reads the mixture that DeepSeek-V3 introduced: sigmoids of the scores, a
// bias for the choice alone, groups of experts, shares that are scaled, shared
// experts without a gate, and dense layers first. A file that names another score or
// method is refused.
func (c *Config) noAux(d *Dimensions, score string, methods ...string) {
	e := Experts{
		Count: c.integer(1, 1<<12, "n_routed_experts", "num_experts"), PerToken: c.integer(1, 1<<12, "num_experts_per_tok"),
		FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"), Normalized: c.flagOr(true, "norm_topk_prob"), Step: 1,
		Dense: denseFirst(d.Layers, c.integerOr(0, 0, 1<<12, "first_k_dense_replace")), SharedWhole: true,
		Router: Router{
			Sigmoid: true, Bias: "gate.e_score_correction_bias", Pairs: true, Scale: c.numberOr(1, 1e-9, 1e9, "routed_scaling_factor"),
			Groups: c.integerOr(1, 1, 1<<10, "n_group"), TopGroups: c.integerOr(1, 1, 1<<10, "topk_group"),
		},
	}
	e.Shared = e.FeedForward * c.integerOr(0, 0, 1<<10, "n_shared_experts")
	c.only("moe_layer_freq", 1)
	for key, want := range map[string][]string{"scoring_func": {score}, "topk_method": methods} {
		if v := c.value(key); v != nil && !slices.Contains(want, fmt.Sprint(v)) {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, key, &UnsupportedError{"value", Shown(v), want}))
		}
	}
	d.Experts = e
}

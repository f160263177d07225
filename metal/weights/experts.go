package weights

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
	// Normalized says that the shares of those that a token sees add up to one.
	Normalized bool
	// Step makes only every so-manieth layer a mixture, and Dense lists layers
	// that are none in any case.
	Step  int
	Dense []int
	// Shared is the inner width of one more expert, which every token goes
	// through by a gate of its own; 0 where there is none.
	Shared int
}

// In says whether a layer is a mixture (transformers' Qwen3MoeDecoderLayer and
// mlx-lm's agree).
func (e Experts) In(layer int) bool {
	return e.Count > 0 && (layer+1)%e.Step == 0 && !slices.Contains(e.Dense, layer)
}

// layers counts mixtures among so many layers.
func (e Experts) layers(n int) int {
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
		return invalidf("each token uses %d experts, but there are only %d", e.PerToken, e.Count)
	}
	return nil
}

// experts reads the mixture of a Qwen3. What mlx-lm wants to be said must be;
// the rest is what transformers takes (Qwen3MoeConfig, version 5).
func (c *config) experts(layers int) Experts {
	e := Experts{
		Count:       c.integer(1, 1<<12, "num_experts", "num_local_experts"),
		PerToken:    c.integer(1, 1<<12, "num_experts_per_tok"),
		FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"),
		Normalized:  c.flag("norm_topk_prob"),
		Step:        c.integerOr(1, 1, 1<<12, "decoder_sparse_step"),
	}
	if c.text["norm_topk_prob"] == nil {
		c.fail(fmt.Errorf("%snorm_topk_prob: %w", c.inside, ErrMissing))
	}
	if v := c.text["mlp_only_layers"]; v != nil {
		list, ok := v.([]any)
		for _, v := range list {
			n, whole := wholeNumber(v)
			ok = ok && whole && n >= 0 && n < int64(layers)
			e.Dense = append(e.Dense, int(n))
		}
		if !ok {
			c.fail(invalidf("%smlp_only_layers is not a list of layer numbers less than %d", c.inside, layers))
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

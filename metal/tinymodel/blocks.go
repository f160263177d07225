package tinymodel

import "metalfleet.dev/metalfleet/metal/weights"

// BlockCases are GGUF files in the types that are rewritten when they are read:
// test/oracle/goldens/kquants records their logits. They are a list of their own, as
// their rows are whole blocks of 256.
func BlockCases() []Case {
	var out []Case
	add := func(family Family, kind, finer weights.Type) {
		c := caseConfig(family, "")
		c.Hidden, c.FeedForward, c.Type, c.Finer = 256, 512, kind, finer
		if family == Qwen3MoE {
			c.Experts.FeedForward = 256
		}
		c.Name = string(family) + "/gguf " + kind.String()
		if finer != 0 {
			c.Name += " with " + finer.String()
		}
		c.Seed = uint64(1000 + len(out))
		out = append(out, Case{Name: c.Name, Config: c})
	}
	for _, kind := range []weights.Type{weights.Q5_0, weights.Q5_1, weights.Q2_K, weights.Q3_K, weights.Q4_K, weights.Q5_K, weights.Q6_K} {
		add(Llama, kind, 0)
	}
	add(Qwen3, weights.Q4_K, weights.Q6_K) // what Q4_K_M is
	add(Qwen3MoE, weights.Q4_K, weights.Q6_K)
	add(Qwen3MoE, weights.Q3_K, weights.Q5_K)
	return out
}

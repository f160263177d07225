package family

// glm is GLM-4-9B-Chat and GLM-Edge: Llama's block with biases of queries, keys
// and values, and half of each head rotated in interleaved pairs. mlx-lm
// ignores partial_rotary_factor and rotates whole heads; transformers is right.
func glm() Family {
	return Family{
		Name: "glm", Models: "GLM-4 9B chat, GLM-Edge", Types: []string{"glm"}, Context: 1 << 17, Theta: 10000, Partial: 0.5, Interleaved: true,
		Read:   func(c *Config, d *Dimensions) { d.Bias = c.flagOr(true, "attention_bias") },
		Block:  preNorm,
		Layout: Layout{Fused: []Fused{fusedGate()}},
	}
}

// glm4 is GLM-4-0414 and GLM-Z1: GLM's block with additional norms after both
// halves. A file may state for mlx-lm that its pairs are not interleaved.
func glm4() Family {
	return Family{
		Name: "glm4", Models: "GLM-4-0414, GLM-Z1", Types: []string{"glm4"}, Context: 1 << 15, Theta: 10000, Partial: 0.5, Interleaved: true,
		Read: func(c *Config, d *Dimensions) {
			d.Bias = c.must("attention_bias")
			d.Rope.Interleaved = c.flagOr(true, "rope_traditional")
		},
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			b.After, b.AfterFeed = rms("post_self_attn_layernorm"), rms("post_mlp_layernorm")
			return b
		},
		Layout: Layout{Fused: []Fused{fusedGate()}, Headed: true},
	}
}

// glm4MoE is GLM-4.5, 4.6 and 4.7: half of each head rotated, and the mixture
// of experts of DeepSeek-V3.
func glm4MoE() Family {
	return Family{
		Name: "glm4_moe", Models: "GLM-4.5, GLM-4.6, GLM-4.7", Types: []string{"glm4_moe"}, Context: 1 << 17, Theta: 10000, Partial: 0.5,
		Read: func(c *Config, d *Dimensions) {
			d.Bias = c.must("attention_bias")
			if c.flag("use_qk_norm") {
				d.HeadNorm = EachHead
			}
			c.noAux(d, "sigmoid", "noaux_tc")
		},
		Block:  preNorm,
		Layout: Layout{Drafts: true, Headed: true},
	}
}

// solarOpen is Solar Open: GLM-4.5's block with whole heads rotated, unless the file says
// otherwise. transformers has a mixture in every layer, mlx-lm dense ones first if the file
// says so; the tensors of the file decide.
func solarOpen() Family {
	f := glm4MoE()
	f.Name, f.Models, f.Types, f.Partial = "solar_open", "Solar Open", []string{"solar_open"}, 1
	return f
}

// fusedGate is a feed-forward that stores its gate and up projections as one
// matrix.
func fusedGate() Fused {
	return Fused{"mlp.gate_up_proj", func(d Dimensions, _ int) []Part {
		return []Part{{"mlp.gate_proj", d.FeedForward}, {"mlp.up_proj", d.FeedForward}}
	}}
}

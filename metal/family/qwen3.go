package family

// qwen3 is the dense Qwen3 family: Llama's block with every head of queries and
// keys normed before the rotation. The head size is independent of the width.
func qwen3() Family {
	return Family{
		Name: "qwen3", Models: "Qwen3 dense; Qwen3-Embedding, Qwen3-Reranker; Qwen3-VL dense, text only", Types: []string{"qwen3", "qwen3_vl_text"}, Context: 1 << 15,
		Read: func(c *Config, d *Dimensions) {
			d.Window = readWindow(c, *d)
			c.tower(d, qwenTower, []int{24, 20, 20})
		},
		Block:  qwen3Block,
		Layout: Layout{Ignored: []string{"model.visual.", "visual."}},
		GGUF:   &GGUF{Name: "qwen3"},
	}
}

// qwen3MoE is the Qwen3 family with a mixture of experts in every layer that
// the configuration does not make dense. Hugging Face stores the experts of
// Qwen3-VL transposed; their shapes are refused.
func qwen3MoE() Family {
	return Family{
		Name: "qwen3_moe", Models: "Qwen3, mixture of experts; Qwen3-VL of experts, text only, as mlx-lm stores it", Types: []string{"qwen3_moe", "qwen3_vl_moe_text"}, Context: 1 << 15,
		Read: func(c *Config, d *Dimensions) {
			d.Window = readWindow(c, *d)
			d.Experts = c.experts(d.Layers)
			c.tower(d, qwenTower, []int{24, 20, 20})
		},
		Block:  qwen3Block,
		Layout: Layout{Ignored: []string{"model.visual.", "visual."}},
		GGUF:   &GGUF{Name: "qwen3moe", Read: func(r *keyReader, d *Dimensions) { d.Experts = r.experts() }},
	}
}

func qwen3Block(d Dimensions, i int) Block {
	b := preNorm(d, i)
	b.Attention.HeadNorm = EachHead
	return b
}

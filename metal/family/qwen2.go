package family

// qwen2 is the dense Qwen2 and Qwen2.5 family: Llama's block with biases of
// queries, keys and values. Files that enable its sliding window are refused.
func qwen2() Family {
	return Family{
		Name: "qwen2", Models: "Qwen2, Qwen2.5", Types: []string{"qwen2"}, Context: 1 << 15,
		Read: func(c *Config, d *Dimensions) { d.Window = readWindow(c, *d) },
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			b.Attention.Bias = true
			return b
		},
		GGUF: &GGUF{Name: "qwen2"},
	}
}

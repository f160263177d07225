package family

import "math"

// hunyuanDense is Hunyuan's dense models: Llama's block with query and key
// heads normed after the rotation, whose base depends on alpha.
func hunyuanDense() Family {
	return Family{
		Name: "hunyuan_v1_dense", Models: "Hunyuan dense", Types: []string{"hunyuan_v1_dense"}, Context: 1 << 15, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			d.Bias = c.flag("attention_bias")
			d.OutBias = d.Bias
			if c.flagOr(true, "use_qk_norm") {
				d.HeadNorm = EachHead
			}
		},
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			b.Attention.NormLast = true
			return b
		},
		Layout: Layout{Rename: []string{".query_layernorm.", ".q_norm.", ".key_layernorm.", ".k_norm."}},
	}
}

// alpha raises the rotary base instead of dividing frequencies. This is
// Hunyuan's dynamic scaling, which does not depend on the length of the text.
func (r *ropeReader) alpha() {
	size := float64(r.out.Size)
	r.out.Theta *= math.Pow(r.number("alpha", nil, 1e-6, 1e9), size/(size-2))
}

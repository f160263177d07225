package family

import "slices"

// exaoneMoE is K-EXAONE: Qwen3's block with the mixture of experts of DeepSeek-V3 in the
// layers that is_moe_layer marks. If some layers have a sliding window, the others do not
// rotate heads, as in EXAONE 4.
func exaoneMoE() Family {
	return Family{
		Name: "exaone_moe", Models: "K-EXAONE", Types: []string{"exaone_moe"}, Context: 1 << 15,
		Read: func(c *Config, d *Dimensions) {
			d.HeadNorm = EachHead
			c.windows(d, 4)
			if slices.Contains(d.Everywhere, false) {
				d.Still = d.Everywhere
			}
			c.number(1e-9, 1e9, "routed_scaling_factor") // the references have different defaults
			c.noAux(d, "sigmoid", "noaux_tc")
			d.Experts.Shared = d.Experts.FeedForward * c.integerOr(0, 0, 1<<10, "num_shared_experts")
			d.Experts.Dense = c.denseMarked(d.Layers)
		},
		Block: preNorm,
		Layout: Layout{
			Rename:  []string{".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"},
			Ignored: []string{"mtp."},
		},
	}
}

// denseMarked reads the layers without experts: those of mlp_layer_types, or those that
// is_moe_layer does not mark.
func (c *Config) denseMarked(layers int) []int {
	if dense, ok := c.denseLayers(layers); ok {
		return dense
	}
	marks := c.list("is_moe_layer")
	if len(marks) != layers {
		c.fail(Invalidf("%sis_moe_layer has %d values, want %d", c.inside, len(marks), layers))
		return nil
	}
	var dense []int
	for i, v := range marks {
		mixture, ok := v.(bool)
		if !ok {
			c.fail(Invalidf("%sis_moe_layer contains %s, want true or false", c.inside, Shown(v)))
		}
		if !mixture {
			dense = append(dense, i)
		}
	}
	return dense
}

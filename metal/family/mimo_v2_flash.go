package family

import (
	"encoding/json"
	"fmt"
	"math"
)

// mimoV2Flash is MiMo-V2-Flash: heads of keys are larger than those of values, layers
// under a window have other heads, another rotation and sinks, and all but some layers
// are mixtures. A token under the window sees sliding_window_size tokens including itself,
// as in mlx-lm; transformers 5.23 counts the token in addition.
func mimoV2Flash() Family {
	return Family{
		Name: "mimo_v2_flash", Models: "MiMo-V2-Flash", Types: []string{"mimo_v2_flash"}, Context: 1 << 18, Theta: 5e6, Eps: "layernorm_epsilon", Partial: 1,
		Read: readMimo,
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			b.Attention.ValueScale, b.Attention.Sinks = d.ValueScale, d.Sinks[min(b.Attention.Window, 1)]
			b.Attention.Scale = 1 / math.Sqrt(float64(b.Attention.HeadSize))
			return b
		},
		Layout: Layout{Headed: true, Ignored: []string{"model.mtp"}, Rename: []string{".attention_sink_bias", ".sinks"}},
	}
}

func readMimo(c *Config, d *Dimensions) {
	d.Window = c.integer(1, 1<<30, "sliding_window_size", "sliding_window")
	d.Everywhere = c.choice("hybrid_layer_pattern", d.Layers, "0")
	d.ValueSize = c.integerOr(d.HeadSize, 2, 1<<12, "v_head_dim")
	d.Local = Heads{
		c.integerOr(d.QueryHeads, 1, 1<<12, "swa_num_attention_heads"), c.integerOr(d.KVHeads, 1, 1<<12, "swa_num_key_value_heads"),
		c.integerOr(d.HeadSize, 2, 1<<12, "swa_head_dim"), c.integerOr(d.ValueSize, 2, 1<<12, "swa_v_head_dim"),
	}
	local := d.Rope
	local.Theta = c.number(1, 1e12, "swa_rope_theta")
	local.Size = int(c.numberOr(1, 0, 1, "partial_rotary_factor") * float64(d.Local.Size))
	d.LocalRope = &local
	if l := d.Local; l.KeyValues > 0 && (l.Queries%l.KeyValues != 0 || local.Size%2 != 0 || local.Size < 2) {
		c.fail(Invalidf("%sswa_num_attention_heads is %d and swa_num_key_value_heads %d, of which %d elements are rotated", c.inside, l.Queries, l.KeyValues, local.Size))
	}
	d.Sinks = [2]bool{c.flag("add_full_attention_sink_bias"), c.flag("add_swa_attention_sink_bias")}
	d.ValueScale = c.numberOr(0, 1e-9, 1e9, "attention_value_scale")
	sparse := c.choice("moe_layer_freq", d.Layers, "1")
	values := c.text["moe_layer_freq"]
	c.text["moe_layer_freq"] = nil // which is a number in other families
	c.noAux(d, "sigmoid", "noaux_tc")
	c.text["moe_layer_freq"] = values
	d.Experts.Dense = nil
	for i, is := range sparse {
		if !is {
			d.Experts.Dense = append(d.Experts.Dense, i)
		}
	}
}

// choice reads a list of 0 and 1 for each layer, and reports which of them are the one.
func (c *Config) choice(name string, layers int, one json.Number) []bool {
	list, out := c.list(name), make([]bool, layers)
	if len(list) != layers {
		c.fail(Invalidf("%s%s is not a list of %d numbers", c.inside, name, layers))
		return out
	}
	for i, v := range list {
		if v != json.Number("0") && v != json.Number("1") {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, name, &UnsupportedError{"layer", Shown(v), []string{"0", "1"}}))
		}
		out[i] = v == one
	}
	return out
}

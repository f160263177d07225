package family

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// step3p5 is Step-3.5-Flash: layers with a window have other numbers of heads,
// every layer may have a rotary embedding of its own, a gate per head multiplies
// what attention returns, and some feed-forwards bound their factors.
// transformers has no such model.
func step3p5() Family {
	return Family{
		Name: "step3p5", Models: "Step-3.5-Flash", Types: []string{"step3p5"}, Context: 1 << 18, Theta: 10000, Partial: 1,
		Prepare: func(text map[string]any) {
			text["num_key_value_heads"] = text["num_attention_groups"]
			if _, byLayer := text["rope_theta"].([]any); byLayer {
				text["rope_theta_by_layer"] = text["rope_theta"]
				delete(text, "rope_theta")
			}
		},
		Read: readStep3p5,
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			b.Attention.HeadNorm, b.Attention.HeadGate = EachHead, d.HeadGate
			if b.Experts != nil {
				e := *b.Experts
				e.Limit, e.SharedLimit = at(d.Limits, i), at(d.SharedLimits, i)
				b.Experts = &e
			} else {
				b.Feed.Limit = at(d.SharedLimits, i)
			}
			return b
		},
		Layout: Layout{
			Drafts: true, Headed: true, Ignored: []string{"model.mtp"}, NormsLessOneInHF: true, Original: ".moe.",
			Rename: []string{
				".mlp.share_expert.", ".mlp.shared_experts.", ".mlp.gate.gate", ".mlp.gate", ".share_expert.", ".mlp.shared_experts.",
				".moe.gate_proj", ".mlp.switch_mlp.gate_proj", ".moe.up_proj", ".mlp.switch_mlp.up_proj", ".moe.down_proj", ".mlp.switch_mlp.down_proj",
				".moe.gate", ".mlp.gate", ".moe.router_bias", ".mlp.gate.router_bias",
			},
		},
	}
}

func readStep3p5(c *Config, d *Dimensions) {
	c.integer(1, 1<<12, "num_attention_groups")
	d.Window = c.integerOr(512, 1, 1<<30, "sliding_window")
	kinds := stepKinds(c, d)
	d.HeadGate = NoGate
	if c.flagOr(true, "use_head_wise_attn_gate") {
		d.HeadGate = SigmoidGate
	}
	if other, ok := c.value("attention_other_setting").(map[string]any); ok {
		within := newSection(other, c.inside+"attention_other_setting.")
		d.Local = Heads{within.integer(1, 1<<12, "num_attention_heads"), within.integer(1, 1<<12, "num_attention_groups"), d.HeadSize, d.HeadSize}
		if within.only("head_dim", float64(d.HeadSize)); within.err == nil && d.Local.Queries%d.Local.KeyValues != 0 {
			within.fail(Invalidf("%snum_attention_heads is %d, want a multiple of num_attention_groups, %d", within.inside, d.Local.Queries, d.Local.KeyValues))
		}
		if within.err != nil {
			c.fail(within.err)
		}
	}
	stepRotations(c, d, kinds)
	d.Limits, d.SharedLimits = c.numbers("swiglu_limits"), c.numbers("swiglu_limits_shared")
	d.Experts = Experts{
		Count: c.integerOr(288, 1, 1<<12, "moe_num_experts"), PerToken: c.integerOr(8, 1, 1<<12, "moe_top_k"), FeedForward: c.integerOr(1280, 1, 1<<22, "moe_intermediate_size"),
		Normalized: c.flagOr(true, "norm_expert_weight"), Step: 1, Shared: c.integerOr(1280, 1, 1<<22, "share_expert_dim"), SharedWhole: true,
		Router: Router{Sigmoid: true, Bias: "gate.router_bias", Least: leastSum, Scale: c.numberOr(3, 1e-9, 1e9, "moe_router_scaling_factor")},
	}
	for i, sparse := range c.stepMixtures(d.Layers) {
		if !sparse {
			d.Experts.Dense = append(d.Experts.Dense, i)
		}
	}
}

// stepMixtures reads which layers are mixtures: those of moe_layers_enum, which may list
// draft heads, too, or all but the first.
func (c *Config) stepMixtures(layers int) []bool {
	out := make([]bool, layers)
	list, _ := c.value("moe_layers_enum").(string)
	if list == "" {
		for i := range out {
			out[i] = i > 0
		}
		return out
	}
	i := 0
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if i++; err != nil {
			c.fail(Invalidf("%smoe_layers_enum is %s, of which number %d is no layer", c.inside, Quoted(list), i))
			break
		}
		if n >= 0 && n < layers {
			out[n] = true
		}
	}
	return out
}

// stepKinds reads which layers have a window, and returns the names by which
// yarn_only_types selects layers. Lists may go on with draft heads.
func stepKinds(c *Config, d *Dimensions) []string {
	kinds, list := make([]string, d.Layers), c.list("layer_types")
	d.Everywhere = make([]bool, d.Layers)
	if len(list) > 0 && len(list) < d.Layers {
		c.fail(Invalidf("%slayer_types has %d names, want %d", c.inside, len(list), d.Layers))
		return kinds
	}
	for i := range kinds {
		kinds[i], d.Everywhere[i] = "full_attention", i%2 != 0
		if len(list) == 0 {
			continue
		}
		switch list[i] {
		case "full_attention", "sliding_attention":
			kinds[i] = list[i].(string)
			d.Everywhere[i] = kinds[i] == "full_attention"
		default:
			c.fail(fmt.Errorf("%slayer_types: %w", c.inside, &UnsupportedError{"attention", Shown(list[i]), []string{"full_attention", "sliding_attention"}}))
		}
	}
	return kinds
}

// maxRotations bounds how many rotary embeddings the layers of a model have, each with a
// factor for every pair. Step-3.5-Flash has two.
const maxRotations = 64

// stepRotation is what a rotary embedding of a layer follows from, as it is written.
type stepRotation struct {
	theta, part string
	scaled      bool
}

// stepRotations reads the rotary embedding of each layer: its base, the fraction
// of a head, and whether it is scaled.
func stepRotations(c *Config, d *Dimensions, kinds []string) {
	thetas, parts, only := c.list("rope_theta_by_layer"), c.list("partial_rotary_factors"), c.list("yarn_only_types")
	if len(thetas) > 0 && len(thetas) < d.Layers {
		c.fail(Invalidf("%srope_theta has %d numbers, want %d", c.inside, len(thetas), d.Layers))
		return
	}
	scaled := map[any]bool{}
	for _, kind := range []any{"full_attention", "sliding_attention"} {
		scaled[kind] = len(only) == 0 || slices.Contains(only, kind)
	}
	f, _ := ofType(c.kind)
	all := map[stepRotation]Rope{}
	for i, kind := range kinds {
		text := map[string]any{"rope_theta": c.value("rope_theta"), "rope_scaling": c.value("rope_scaling")}
		if len(thetas) > 0 {
			text["rope_theta"] = thetas[i]
		}
		if i < len(parts) {
			text["partial_rotary_factor"] = parts[i]
		}
		if !scaled[kind] {
			delete(text, "rope_scaling")
		}
		of := stepRotation{written(text["rope_theta"]), written(text["partial_rotary_factor"]), text["rope_scaling"] != nil}
		if r, known := all[of]; known {
			d.Ropes = append(d.Ropes, r)
			continue
		}
		layer := &Config{values: c.values, kind: c.kind, section: newSection(text, c.inside)}
		maps.Copy(layer.read, c.read)
		r := layer.rope(f, *d)
		if layer.err == nil && (r.Size < 2 || r.Size%2 != 0) {
			layer.fail(Invalidf("%spartial_rotary_factors: %d elements of layer %d are rotated, want an even number", c.inside, r.Size, i))
		}
		if all[of] = r; len(all) > maxRotations {
			layer.fail(&UnsupportedError{"model", fmt.Sprintf("with more than %d rotations", maxRotations), []string{"layers that share rotations"}})
		}
		if layer.err != nil {
			c.fail(layer.err)
			return
		}
		d.Ropes = append(d.Ropes, r)
	}
	d.Rope = d.Ropes[0]
}

// written is a number as it is written. Other values differ only in their kind.
func written(v any) string {
	if n, ok := v.(json.Number); ok {
		return n.String()
	}
	return Shown(v)
}

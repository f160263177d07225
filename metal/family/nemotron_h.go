package family

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strings"
)

// nemotronH is Nemotron-H and Nemotron 3 Nano: every layer is one half of a usual block,
// a state space (Mamba-2), attention that is not rotated, a feed-forward or a mixture,
// both without a gate.
func nemotronH() Family {
	return Family{
		Name: "nemotron_h", Models: "Nemotron-H, Nemotron 3 Nano", Types: []string{"nemotron_h"}, Context: 1 << 12, Theta: 10000, Eps: "layer_norm_epsilon",
		Widths: []string{"moe_intermediate_size"}, // of a model of experts alone
		Read:   readNemotronH,
		Block: func(d Dimensions, i int) Block {
			switch norm := rms("norm"); d.Pattern[i] {
			case 'M':
				return Block{Before: norm, Recurrent: &d.Hybrid}
			case '*':
				a := d.attention(i)
				a.Path, a.Rope = "mixer", nil
				return Block{Before: norm, Attention: a}
			case 'E':
				return Block{BeforeFeed: norm, Experts: &d.Experts}
			default:
				return Block{BeforeFeed: norm, Feed: &Feed{Path: "mixer", Width: d.FeedForward, Plain: true, Activation: ReLU2, Bias: d.FeedBias}}
			}
		},
		Layout: Layout{
			Headed: true, Ignored: []string{"mtp."}, Kernels: []string{".conv1d.weight"},
			Rename: []string{
				"backbone.embeddings", "model.embed_tokens", "backbone.norm_f", "model.norm", "backbone.", "model.", "model.embeddings", "model.embed_tokens", "model.norm_f", "model.norm",
				".switch_mlp.fc1", ".switch_mlp.up_proj", ".switch_mlp.fc2", ".switch_mlp.down_proj", ".experts.up_proj", ".switch_mlp.up_proj.weight", ".experts.down_proj", ".switch_mlp.down_proj.weight",
			},
		},
	}
}

// pattern is what every layer is, a letter for each: hybrid_override_pattern, or the
// names of layers_block_type, which transformers 5 writes.
func (c *Config) pattern() string {
	if v, ok := c.value("hybrid_override_pattern").(string); ok {
		return v
	}
	var out strings.Builder
	_, v := c.find("layers_block_type", "layer_types", "hybrid_override_pattern")
	list, _ := v.([]any)
	for _, v := range list {
		switch v {
		case "linear_attention", "mamba", "M":
			out.WriteByte('M')
		case "full_attention", "attention", "*":
			out.WriteByte('*')
		case "mlp", "-":
			out.WriteByte('-')
		case "moe", "E":
			out.WriteByte('E')
		default:
			out.WriteByte('?')
		}
	}
	return out.String()
}

// counted enters the number of layers, which follows from the pattern.
func (c *Config) counted() {
	if c.kind == "nemotron_h" && c.text["num_hidden_layers"] == nil {
		c.text = maps.Clone(c.text)
		c.text["num_hidden_layers"] = json.Number(fmt.Sprint(len(c.pattern())))
	}
}

func readNemotronH(c *Config, d *Dimensions) {
	d.Pattern = c.pattern()
	if len(d.Pattern) != d.Layers || strings.Trim(d.Pattern, "M*-E") != "" || !strings.Contains(d.Pattern, "*") {
		c.fail(Invalidf("%shybrid_override_pattern is %s, want a letter (M, *, - or E) for each of %d layers, of which one at least is *", c.inside, Quoted(d.Pattern), d.Layers))
		return
	}
	d.Bias, d.FeedBias = c.flag("attention_bias"), c.flag("mlp_bias")
	d.OutBias = d.Bias
	if v := c.value("mlp_hidden_act"); v != nil && v != "relu2" {
		c.fail(fmt.Errorf("%smlp_hidden_act: %w", c.inside, &UnsupportedError{"activation", Shown(v), []string{"relu2"}}))
	}
	bias := c.flag("mamba_proj_bias")
	if c.flag("use_bias") != bias { // transformers reads the one, mlx-lm the other
		c.fail(Invalidf("%suse_bias and mamba_proj_bias contradict each other", c.inside))
	}
	d.Hybrid = c.mamba2(Hybrid{Path: "mixer", Bias: bias, ConvolutionBias: c.flagOr(true, "use_conv_bias")}, [5]string{"mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"})
	d.Hybrid.NormGroups = d.Hybrid.KeyHeads
	for i, kind := range d.Pattern {
		d.Hybrid.Recurring = append(d.Hybrid.Recurring, kind == 'M')
		if kind != 'E' {
			d.Experts.Dense = append(d.Experts.Dense, i)
		}
	}
	if !strings.Contains(d.Pattern, "E") {
		for _, name := range []string{"n_routed_experts", "n_group", "routed_scaling_factor"} {
			c.value(name)
		}
		return
	}
	dense := d.Experts.Dense
	c.noAux(d, "sigmoid", "noaux_tc")
	e := &d.Experts
	e.Dense, e.Path, e.Plain, e.Activation = dense, "mixer", true, ReLU2
	e.Latent = c.integerOr(0, 1, 1<<20, "moe_latent_size")
	c.must("norm_topk_prob") // the references' defaults differ
	if e.Shared > 0 {
		e.Shared = c.integer(1, 1<<22, "moe_shared_expert_intermediate_size")
	}
}

// mamba2 reads a state space, whose keys are those of heads, their size, the size of a
// state, groups and taps.
func (c *Config) mamba2(h Hybrid, keys [5]string) Hybrid {
	h.Rule, h.Low, h.High, h.NormGroups = Mamba2, 0, math.Inf(1), 1
	h.ValueHeads, h.ValueSize = c.integer(1, 1<<10, keys[0]), c.integer(1, 1<<10, keys[1])
	h.KeySize, h.KeyHeads, h.Taps = c.integer(1, 1<<10, keys[2]), c.integer(1, 1<<10, keys[3]), c.integer(2, 64, keys[4])
	if h.KeyHeads > 0 && h.ValueHeads%h.KeyHeads != 0 {
		c.fail(Invalidf("%s%s is %d, want a multiple of %s, %d", c.inside, keys[0], h.ValueHeads, keys[3], h.KeyHeads))
	}
	if limit := c.list("time_step_limit"); len(limit) == 2 {
		low, one := floatNumber(limit[0])
		high, two := floatNumber(limit[1])
		if !one || low < 0 || two && high < low {
			c.fail(Invalidf("%stime_step_limit is not two numbers in order", c.inside))
		}
		if h.Low = low; two { // infinity is no number of JSON
			h.High = high
		}
	}
	return h
}

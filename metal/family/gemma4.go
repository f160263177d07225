package family

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// gemma4 is Gemma 4. Layers that see everything have larger heads than
// those under the window, and their rotation leaves most pairs in place. Small models
// (E2B, E4B) give each layer an embedding of its own, and let the last layers read the
// keys and values of an earlier one; in the large ones keys are the values too, or a
// mixture stands next to the feed-forward.
func gemma4() Family {
	return Family{
		Name: "gemma4", Models: "Gemma 4, text only", Types: []string{"gemma4_text", "gemma4_unified_text"}, Context: 1 << 17, Theta: 1e6, Partial: 1,
		Activations: []string{"gelu_pytorch_tanh"}, Contexts: map[string]int{"gemma4_unified_text": 1 << 18},
		Prepare: rotateGemma4,
		Read:    readGemma4,
		Block: func(d Dimensions, i int) Block {
			b := sandwich(d, i)
			a := b.Attention
			a.HeadNorm, a.ValueNorm, a.Same = EachHead, true, d.SameValues && a.Window == 0
			b.Inner, b.Scaled = d.Inner, true
			if b.Experts != nil {
				b.BeforeFeed = Norm{} // each half has its own
				return b
			}
			b.Feed.Activation = GELUTanh
			if a.Shared && d.WideLenders {
				b.Feed.Width *= 2
			}
			return b
		},
		Layout: Layout{
			Wide: true,
			Ignored: []string{
				"model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio.", "model.vision_embedder.", "model.multi_modal_projector.",
				"vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "vision_embedder.", "multi_modal_projector.",
			},
			Rename: []string{
				".experts.switch_glu", ".mlp.switch_mlp", ".experts.gate_up_proj", ".mlp.experts.gate_up_proj", ".experts.down_proj", ".mlp.experts.down_proj",
				".router.proj", ".mlp.gate", ".router.scale", ".mlp.router_scale", ".router.per_expert_scale", ".mlp.per_expert_scale",
			},
		},
	}
}

// rotateGemma4 enters the rotations of both kinds of layer that a file without any means.
func rotateGemma4(text map[string]any) {
	if text["rope_parameters"] != nil || text["rope_scaling"] != nil || text["rope_theta"] != nil {
		return
	}
	text["rope_parameters"] = map[string]any{
		"full_attention":    map[string]any{"rope_type": "proportional", "partial_rotary_factor": json.Number("0.25"), "rope_theta": json.Number("1000000")},
		"sliding_attention": map[string]any{"rope_type": "default", "rope_theta": json.Number("10000")},
	}
}

func readGemma4(c *Config, d *Dimensions) {
	c.windows(d, 1)
	if c.value("layer_types") == nil { // the references' defaults differ
		c.must("layer_types")
	}
	f, _ := ofType(c.kind)
	params, key := c.rotation("sliding_attention")
	local := c.ropeOf(f, *d, params, key)
	d.LocalRope, d.Local = &local, Heads{d.QueryHeads, d.KVHeads, d.HeadSize, d.HeadSize}
	d.HeadSize = c.integerOr(d.HeadSize, 2, 1<<12, "global_head_dim")
	if d.SameValues = c.flag("attention_k_eq_v"); d.SameValues {
		d.KVHeads = c.integerOr(d.KVHeads, 1, 1<<12, "num_global_key_value_heads")
	}
	params, key = c.rotation("full_attention")
	d.Rope = c.ropeOf(f, *d, params, key)
	d.Scale, d.EmbedScale = 1, math.Sqrt(float64(d.Hidden))
	if _, ok := c.text["final_logit_softcapping"]; !ok { // the references' defaults differ
		c.number(1e-3, 1e6, "final_logit_softcapping")
	}
	d.LogitCap = c.cap(0, "final_logit_softcapping")
	c.borrowed(d, c.integer(0, 1<<12, "num_kv_shared_layers"))
	d.WideLenders = c.flagOr(true, "use_double_wide_mlp")
	c.gatedTower(d)
	if d.Inner = c.integerOr(0, 0, 1<<16, "hidden_size_per_layer_input"); d.Inner > 0 {
		c.only("vocab_size_per_layer_input", float64(d.Vocabulary))
	}
	if !c.flag("enable_moe_block") {
		c.value("num_experts")
		return
	}
	d.Experts = Experts{
		Count: c.integer(1, 1<<12, "num_experts"), PerToken: c.integer(1, 1<<12, "top_k_experts"), FeedForward: c.integer(1, 1<<22, "moe_intermediate_size"),
		Normalized: true, Step: 1, Activation: GELUTanh, Aside: d.FeedForward,
	}
}

// gatedTower reads the vision tower, and whether the tokens of an image attend to one another.
func (c *Config) gatedTower(d *Dimensions) {
	mutual := false
	switch v := c.value("use_bidirectional_attention"); v {
	case nil, false:
	case "vision":
		mutual = true
	default:
		c.fail(fmt.Errorf("%suse_bidirectional_attention: %w", c.inside, &UnsupportedError{"attention", Shown(v), []string{"vision"}}))
	}
	blank := c.integerOr(0, 0, 1<<24, "pad_token_id")
	c.tower(d, func(v *Config) Tower {
		t := gatedTower(v)
		t.Mutual, t.Blank = mutual, int32(blank)
		return t
	}, nil)
}

// borrowed sets which layers read the keys and values of another: the last of them,
// those of the last layer before them that is as wide: with a window, or without.
func (c *Config) borrowed(d *Dimensions, shared int) {
	first := d.Layers - shared
	d.Lenders = make([]int, d.Layers)
	for i := range d.Lenders {
		if d.Lenders[i] = i; i < first || i >= len(d.Everywhere) {
			continue
		}
		lender := slices.Index(d.Everywhere[:max(0, first)], d.Everywhere[i])
		for j := range max(0, first) {
			if d.Everywhere[j] == d.Everywhere[i] {
				lender = j
			}
		}
		if lender < 0 {
			c.fail(Invalidf("%snum_kv_shared_layers is %d, but no layer before them sees as much as layer %d", c.inside, shared, i))
			return
		}
		d.Lenders[i] = lender
	}
}

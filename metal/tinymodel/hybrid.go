package tinymodel

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
)

// Hybrid are the numbers of families of which most layers are recurrent.
type Hybrid struct {
	// Interval: every so-manieth layer attends.
	Interval int
	// KeyHeads of KeySize are shared by ValueHeads of ValueSize.
	KeyHeads, KeySize, ValueHeads, ValueSize int
	// Taps of the convolution.
	Taps int
	// Rotary is the part of a head that is turned.
	Rotary float64
}

// recurs says whether a layer is recurrent.
func (h Hybrid) recurs(layer int) bool { return h.Interval > 0 && (layer+1)%h.Interval != 0 }

func (h Hybrid) keys() int   { return h.KeyHeads * h.KeySize }
func (h Hybrid) values() int { return h.ValueHeads * h.ValueSize }

// hybrid reports whether most layers of a family are recurrent.
func (f Family) hybrid() bool { return f == Qwen3Next || f == Qwen35 }

// validHybrid says whether recurrent layers are what the family has.
func (c Config) validHybrid() bool {
	h := c.Hybrid
	if !c.Family.hybrid() {
		return h == Hybrid{} && c.Experts.Shared == 0
	}
	return h.Interval > 0 && h.Interval <= c.Layers && h.KeyHeads > 0 && h.KeySize > 0 && h.ValueSize > 0 && h.ValueHeads > 0 &&
		h.ValueHeads%h.KeyHeads == 0 && h.Taps > 1 && h.Rotary > 0 && h.Rotary <= 1 && (c.Experts.Count > 0) == (c.Experts.Shared > 0) &&
		(c.Family == Qwen35 || c.Experts.Count > 0)
}

// recurrent are the tensors of a recurrent layer.
func (c Config) recurrent() []tensor {
	h := c.Hybrid
	out := []tensor{c.norm("input_layernorm", "", c.Hidden)}
	if c.Family == Qwen3Next {
		out = append(out, matrix("linear_attn.in_proj_qkvz", "", 2*h.keys()+2*h.values(), c.Hidden, 1), matrix("linear_attn.in_proj_ba", "", 2*h.ValueHeads, c.Hidden, 1))
	} else {
		out = append(out,
			matrix("linear_attn.in_proj_qkv", "", 2*h.keys()+h.values(), c.Hidden, 1), matrix("linear_attn.in_proj_z", "", h.values(), c.Hidden, 1),
			matrix("linear_attn.in_proj_b", "", h.ValueHeads, c.Hidden, 1), matrix("linear_attn.in_proj_a", "", h.ValueHeads, c.Hidden, 1))
	}
	vector := func(name string, n int, v values) tensor {
		return tensor{path: "linear_attn." + name, cols: n, values: v, bare: true}
	}
	gated := c.norm("linear_attn.norm", "", h.ValueSize)
	gated.norm = false // never less one
	kernel := matrix("linear_attn.conv1d", "", 2*h.keys()+h.values(), h.Taps, 1)
	kernel.kernel = true
	return append(out, kernel, vector("dt_bias", h.ValueHeads, values{std: 0.5}), vector("A_log", h.ValueHeads, values{mean: -1, std: 1.5}),
		gated, matrix("linear_attn.out_proj", "", c.Hidden, h.values(), 1))
}

// shared is the expert that every token goes through, and its gate.
func (c Config) shared() []tensor {
	n := c.Experts.Shared
	if n == 0 {
		return nil
	}
	return []tensor{
		matrix("mlp.shared_expert.gate_proj", "", n, c.Hidden, 1), matrix("mlp.shared_expert.up_proj", "", n, c.Hidden, 1),
		matrix("mlp.shared_expert.down_proj", "", c.Hidden, n, 1), matrix("mlp.shared_expert_gate", "", 1, c.Hidden, 1),
	}
}

// hybridConfig is the configuration of a hybrid. That of a Qwen3.5 is nested in
// the configuration of a model with a vision encoder.
func (c Config) hybridConfig(out config, l Layout) any {
	h := c.Hybrid
	out.KeyHeads, out.KeySize, out.ValueHeads, out.ValueSize, out.Taps = h.KeyHeads, h.KeySize, h.ValueHeads, h.ValueSize, h.Taps
	out.Interval, out.Shared = h.Interval, c.Experts.Shared
	if c.Family == Qwen3Next {
		if out.Rope == nil {
			out.Rotary = h.Rotary
		} else {
			out.Rope["partial_rotary_factor"] = h.Rotary
		}
		return out
	}
	kind := "qwen3_5"
	if c.Experts.Count > 0 {
		kind, out.Intermediate = "qwen3_5_moe", 0
		out.SparseStep, out.DenseLayers, out.Normalized = 0, nil, nil
	}
	out.Theta, out.Scaling, out.ModelType = 0, nil, Family(kind+"_text")
	out.Rope = c.Scaling.parameters(c.Theta)
	out.Rope["partial_rotary_factor"], out.Rope["mrope_section"], out.Rope["mrope_interleaved"] = h.Rotary, []int{2, 1, 1}, true
	whole := map[string]any{
		"architectures": []string{map[string]string{"qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration"}[kind]},
		"model_type":    kind, "tie_word_embeddings": out.Tied, "bos_token_id": out.BOS, "eos_token_id": out.EOS, "vision_config": map[string]any{"depth": 1, "hidden_size": 8},
	}
	if q := out.Quantization; q != nil {
		named := map[string]any{}
		for path, v := range q {
			if strings.Contains(path, ".") {
				path = "language_model." + path
			}
			named[path] = v
		}
		whole["quantization"] = named
	}
	out.Architectures, out.Quantization = nil, nil
	whole["text_config"] = out
	return whole
}

// dressed gives the tensors of a hybrid the names and shapes that its folder has.
func (c Config) dressed(parts []part, l Layout) []part {
	quantized := l.Matrices.Quantized()
	for i := range parts {
		if strings.HasSuffix(parts[i].name, "linear_attn.conv1d.weight") {
			channels, taps := parts[i].shape[0], parts[i].shape[1]
			parts[i].shape = []int{channels, 1, taps}
			if quantized {
				parts[i].shape = []int{channels, taps, 1}
			}
		}
	}
	if c.Family == Qwen35 && !quantized {
		parts = fused(parts)
	}
	if c.Family == Qwen35 {
		for i, p := range parts {
			switch {
			case quantized:
				parts[i].name = "language_model." + p.name
			case p.name != "lm_head.weight" && !strings.HasPrefix(p.name, "mtp."):
				parts[i].name = "model.language_" + p.name
			}
		}
	}
	if !l.Extras {
		return parts
	}
	eyes := "model.visual.patch_embed.proj"
	if quantized {
		eyes = "vision_tower.patch_embed.proj"
	}
	for _, path := range []string{eyes, "mtp.fc"} {
		parts = append(parts, matrix(path, "", 4, 32, 1).floats(l.Matrices.Type, 32*l.Matrices.Type.Bytes(), c.Seed))
	}
	return parts
}

// fused joins the experts of a layer as transformers 5 stores those of a
// Qwen3.5: gates and what they gate in one tensor, expert after expert.
func fused(parts []part) []part {
	var out []part
	experts := map[string][]part{}
	for _, p := range parts {
		layer, expert, ok := strings.Cut(p.name, ".mlp.experts.")
		if !ok {
			out = append(out, p)
			continue
		}
		name := layer + ".mlp.experts.gate_up_proj"
		if strings.HasSuffix(expert, ".down_proj.weight") {
			name = layer + ".mlp.experts.down_proj"
		}
		experts[name] = append(experts[name], p)
	}
	for _, name := range slices.Sorted(maps.Keys(experts)) {
		all := experts[name]
		if half := len(all) / 2; strings.HasSuffix(name, "gate_up_proj") { // all gates came first
			var turns []part
			for i := range half {
				turns = append(turns, all[i], all[half+i])
			}
			all = turns
		}
		p := all[0]
		p.name = name
		count, each := len(all), p.shape
		p.shape = []int{count, each[0], each[1]}
		if strings.HasSuffix(name, "gate_up_proj") {
			p.shape = []int{count / 2, 2 * each[0], each[1]}
		}
		p.rows *= count
		p.write = func(w io.Writer) error {
			for _, one := range all {
				if err := one.write(w); err != nil {
					return err
				}
			}
			return nil
		}
		out = append(out, p)
	}
	return out
}

// hybridSeeds are where the seeds of hybrid cases begin: apart from the others,
// so that neither move when one is added.
const hybridSeeds = 1001

// hybridCases are folders: every layout of both families, which layers are
// attention layers, which are mixtures, heads that share keys or do not, short
// convolutions, formats by path, and other parts of a model.
func hybridCases() []Case {
	f32, bf16, packed := quant.DenseOf(quant.Float32), quant.DenseOf(quant.BFloat16), quant.AffineOf(4, 64, quant.BFloat16)
	next := func(special string, f quant.Format, change func(*Config, *Layout)) Case {
		return changed(Qwen3Next, special, f, change)
	}
	newer := func(special string, f quant.Format, change func(*Config, *Layout)) Case {
		return changed(Qwen35, special, f, change)
	}
	mixture := Experts{Count: 6, PerToken: 2, FeedForward: 128, Shared: 64}
	out := []Case{
		next("float32", f32, nil),
		next("bfloat16 sharded", bf16, func(c *Config, l *Layout) { c.Untied, l.ShardBytes = true, 200_000 }),
		next("float16 rope_parameters", quant.DenseOf(quant.Float16), func(c *Config, l *Layout) { l.Modern = true }),
		next("float32 yarn rope", f32, func(c *Config, _ *Layout) {
			c.Scaling, c.Hybrid.Rotary = Scaling{Kind: "yarn", Factor: 4, Original: 128}, 0.5
		}),
		next("float32 dense first layer", f32, func(c *Config, _ *Layout) { c.Experts.Dense, c.Experts.Unnormalized = []int{0}, true }),
		next("float32 every second layer", f32, func(c *Config, _ *Layout) { c.Layers, c.Hybrid.Interval, c.Experts.Step = 4, 2, 2 }),
		next("float32 keys of their own", f32, func(c *Config, _ *Layout) {
			c.Hybrid.KeyHeads, c.Hybrid.ValueHeads, c.Hybrid.KeySize, c.Hybrid.ValueSize, c.Hybrid.Taps = 3, 3, 24, 16, 2
		}),
		next("4 bits by 64 bfloat16", packed, nil),
		next("8 bits by 32 float16", quant.AffineOf(8, 32, quant.Float16), func(c *Config, _ *Layout) { c.Untied = true }),
		next("mixed by path", packed, func(c *Config, l *Layout) {
			l.Overrides = map[string]quant.Format{
				"model.layers.0.linear_attn.in_proj_qkvz": quant.AffineOf(8, 32, quant.BFloat16), "model.layers.1.linear_attn.out_proj": quant.AffineOf(6, 64, quant.BFloat16),
				"model.layers.0.linear_attn.in_proj_ba": bf16, "model.layers.2.self_attn.q_proj": quant.AffineOf(3, 128, quant.BFloat16),
				"model.layers.0.mlp.gate": quant.AffineOf(8, 64, quant.BFloat16), "model.layers.0.mlp.shared_expert_gate": quant.AffineOf(8, 64, quant.BFloat16),
			}
		}),
		newer("float32", f32, nil),
		newer("bfloat16 with eyes", bf16, func(c *Config, l *Layout) { c.Untied, l.Extras, l.ShardBytes = true, true, 300_000 }),
		newer("float32 experts", f32, func(c *Config, _ *Layout) { c.Experts = mixture }),
		newer("4 bits by 64 bfloat16 with eyes", packed, func(c *Config, l *Layout) { l.Extras = true }),
		newer("4 bits by 32 float32 experts", quant.AffineOf(4, 32, quant.Float32), func(c *Config, _ *Layout) { c.Experts, c.Untied = mixture, true }),
		newer("mixed by path", packed, func(c *Config, l *Layout) {
			c.Hybrid.Interval = 4
			l.Overrides = map[string]quant.Format{
				"model.layers.0.linear_attn.in_proj_qkv": quant.AffineOf(8, 32, quant.BFloat16), "model.layers.1.linear_attn.in_proj_a": bf16,
				"model.layers.2.linear_attn.in_proj_z": quant.AffineOf(6, 64, quant.BFloat16), "model.embed_tokens": quant.AffineOf(8, 64, quant.BFloat16),
			}
		}),
	}
	for i := range out {
		out[i].Config.Seed = hybridSeeds + uint64(i)
	}
	return out
}

// changed is a folder with something special.
func changed(family Family, special string, f quant.Format, change func(*Config, *Layout)) Case {
	c := folderCase(family, special, f)
	if change != nil {
		change(&c.Config, c.Layout)
	}
	return c
}

// errHybrid returns the error of an impossible hybrid.
func (c Config) errHybrid() error {
	return fmt.Errorf("tiny model: %s with recurrent layers %+v and experts %+v cannot be", c.Family, c.Hybrid, c.Experts)
}

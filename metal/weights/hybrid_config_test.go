//go:build !race

package weights

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// nextConfig is that of a Qwen3-Next, newerConfig the text of a Qwen3.5.
const (
	nextConfig  = `"model_type":"qwen3_next","hidden_size":2048,"num_hidden_layers":48,"intermediate_size":5120,"num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,"vocab_size":151936,"rms_norm_eps":1e-06,"max_position_embeddings":262144,"rope_theta":10000000,"partial_rotary_factor":0.25,"full_attention_interval":4,"linear_num_key_heads":16,"linear_key_head_dim":128,"linear_num_value_heads":32,"linear_value_head_dim":128,"linear_conv_kernel_dim":4,"num_experts":512,"num_experts_per_tok":10,"moe_intermediate_size":512,"shared_expert_intermediate_size":512,"norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[],"attention_bias":false,"hidden_act":"silu"`
	newerConfig = `"model_type":"qwen3_5_text","hidden_size":4096,"num_hidden_layers":32,"intermediate_size":12288,"num_attention_heads":16,"num_key_value_heads":4,"head_dim":256,"vocab_size":248320,"rms_norm_eps":1e-06,"max_position_embeddings":262144,"rope_parameters":{"rope_type":"default";"rope_theta":10000000;"partial_rotary_factor":0.25;"mrope_section":[11;11;10]},"full_attention_interval":4,"linear_num_key_heads":16,"linear_key_head_dim":128,"linear_num_value_heads":32,"linear_value_head_dim":128,"linear_conv_kernel_dim":4,"attn_output_gate":true,"mtp_num_hidden_layers":1`
)

// newer is newerConfig edited: commas inside its values are written as
// semicolons, which edited does not take for the ends of values.
func newer(changes ...string) string {
	return strings.ReplaceAll(edited(newerConfig, changes...), ";", ",")
}

func TestHybridConfigurationsGiveDimensions(t *testing.T) {
	delta := family.Hybrid{Interval: 4, KeyHeads: 16, KeySize: 128, ValueHeads: 32, ValueSize: 128, Taps: 4}
	joined := delta
	joined.Joined = true
	next := family.Dimensions{Architecture: "qwen3_next", Layers: 48, Hidden: 2048, FeedForward: 5120, QueryHeads: 16, KVHeads: 2, HeadSize: 256,
		Vocabulary: 151936, Context: 262144, NormEps: 1e-6, Rope: family.Rope{Theta: 1e7, Size: 64, Linear: 1, Magnitude: 1}, Hybrid: joined,
		Experts: family.Experts{Count: 512, PerToken: 10, FeedForward: 512, Normalized: true, Step: 1, Shared: 512}}
	dense := family.Dimensions{Architecture: "qwen3_5", Layers: 32, Hidden: 4096, FeedForward: 12288, QueryHeads: 16, KVHeads: 4, HeadSize: 256,
		Vocabulary: 248320, Context: 262144, NormEps: 1e-6, Rope: family.Rope{Theta: 1e7, Size: 64, Linear: 1, Magnitude: 1}, Hybrid: delta}
	with := func(d family.Dimensions, change func(*family.Dimensions)) family.Dimensions { change(&d); return d }
	mixture := []string{"model_type", `"qwen3_5_moe_text"`, "intermediate_size", "", "num_experts", "256", "num_experts_per_tok", "8", "moe_intermediate_size", "512", "shared_expert_intermediate_size", "512"}
	for name, c := range map[string]struct {
		text string
		want family.Dimensions
	}{
		"a Qwen3-Next":                     {text: edited(nextConfig), want: next},
		"a Qwen3-Next without an interval": {text: edited(nextConfig, "full_attention_interval", ""), want: next},
		"a Qwen3-Next that says no part":   {text: edited(nextConfig, "partial_rotary_factor", ""), want: next},
		"a Qwen3-Next that turns half":     {text: edited(nextConfig, "partial_rotary_factor", "0.5"), want: with(next, func(d *family.Dimensions) { d.Rope.Size = 128 })},
		"a Qwen3-Next with dense layers":   {text: edited(nextConfig, "mlp_only_layers", "[1]"), want: with(next, func(d *family.Dimensions) { d.Experts.Dense = []int{1} })},
		"a Qwen3-Next without experts":     {text: edited(nextConfig, "num_experts", "0"), want: with(next, func(d *family.Dimensions) { d.Experts = family.Experts{} })},
		"names for layers":                 {text: edited(nextConfig, "num_hidden_layers", "2", "full_attention_interval", "2", "layer_types", `["linear_attention","full_attention"]`), want: with(next, func(d *family.Dimensions) { d.Layers, d.Hybrid.Interval = 2, 2 })},
		"the text of a Qwen3.5":            {text: newer(), want: dense},
		"a Qwen3.5 with eyes":              {text: `{"model_type":"qwen3_5","vision_config":{"depth":27},"text_config":` + newer() + `}`, want: dense},
		"a Qwen3.5 without a context":      {text: newer("max_position_embeddings", ""), want: with(dense, func(d *family.Dimensions) { d.Context = 32768 })},
		"a Qwen3.5 of experts": {text: newer(mixture...), want: with(dense, func(d *family.Dimensions) {
			d.FeedForward, d.Experts = 512, family.Experts{Count: 256, PerToken: 8, FeedForward: 512, Normalized: true, Step: 1, Shared: 512}
		})},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := dimensionsOf(c.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmpopts.IgnoreFields(family.Dimensions{}, "Tower", "TowerFault")); diff != "" {
				t.Errorf("dimensions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHybridConfigurationsThatCannotBeMeantAreRefused(t *testing.T) {
	next := func(changes ...string) string { return edited(nextConfig, changes...) }
	for name, c := range map[string]struct {
		text string
		want error
		says string
	}{
		"no key heads said":                     {text: next("linear_num_key_heads", ""), want: ErrMissing, says: "linear_num_key_heads"},
		"no taps said":                          {text: next("linear_conv_kernel_dim", ""), want: ErrMissing, says: "linear_conv_kernel_dim"},
		"one tap":                               {text: next("linear_conv_kernel_dim", "1"), want: ErrInvalid, says: "linear_conv_kernel_dim is 1"},
		"very many taps":                        {text: next("linear_conv_kernel_dim", "1000000"), want: ErrInvalid, says: "linear_conv_kernel_dim"},
		"value heads out of proportion":         {text: next("linear_num_value_heads", "33"), want: ErrInvalid, says: "multiple of the 16"},
		"no value heads":                        {text: next("linear_num_value_heads", "0"), want: ErrInvalid, says: "linear_num_value_heads"},
		"heads of a million":                    {text: next("linear_value_head_dim", "1000000"), want: ErrInvalid, says: "linear_value_head_dim"},
		"no layer that attends":                 {text: next("full_attention_interval", "49"), want: ErrInvalid, says: "full_attention_interval is 49"},
		"an interval of nothing":                {text: next("full_attention_interval", "0"), want: ErrInvalid, says: "full_attention_interval"},
		"two opinions about a layer":            {text: next("num_hidden_layers", "2", "full_attention_interval", "2", "layer_types", `["full_attention","full_attention"]`), want: ErrInvalid, says: "contradict each other for layer 0"},
		"another kind of layer":                 {text: next("num_hidden_layers", "1", "full_attention_interval", "1", "layer_types", `["sliding_attention"]`), want: ErrUnsupported, says: "sliding_attention"},
		"too few names of layers":               {text: next("layer_types", `["full_attention"]`), want: ErrInvalid, says: "layer_types"},
		"heads that are turned by no part":      {text: next("partial_rotary_factor", "0"), want: ErrInvalid, says: "partial_rotary_factor"},
		"heads that are turned more than once":  {text: next("partial_rotary_factor", "1.5"), want: ErrInvalid, says: "partial_rotary_factor"},
		"less than a pair is turned":            {text: next("partial_rotary_factor", "0.001"), want: ErrInvalid, says: "rotary"},
		"two opinions about the part":           {text: next("rope_parameters", `{"partial_rotary_factor":0.5}`), want: ErrInvalid, says: "rope_parameters"},
		"no shared expert":                      {text: next("shared_expert_intermediate_size", ""), want: ErrMissing, says: "shared_expert_intermediate_size"},
		"shares that may be normed or not":      {text: next("norm_topk_prob", ""), want: ErrMissing, says: "norm_topk_prob"},
		"a gate that is off":                    {text: newer("attn_output_gate", "false"), want: ErrUnsupported, says: "attn_output_gate"},
		"biases in attention":                   {text: next("attention_bias", "true"), want: ErrUnsupported, says: "attention_bias"},
		"another activation":                    {text: next("hidden_act", `"gelu"`), want: ErrUnsupported, says: "gelu"},
		"no theta":                              {text: next("rope_theta", ""), want: ErrMissing, says: "rope_theta"},
		"a Qwen3.5 whose shares are not normed": {text: newer("num_experts", "4", "num_experts_per_tok", "2", "moe_intermediate_size", "32", "shared_expert_intermediate_size", "32", "norm_topk_prob", "false"), want: ErrUnsupported, says: "norm_topk_prob"},
		"a Qwen3.5 with dense layers":           {text: newer("num_experts", "4", "num_experts_per_tok", "2", "moe_intermediate_size", "32", "shared_expert_intermediate_size", "32", "mlp_only_layers", "[1]"), want: ErrUnsupported, says: "mlp_only_layers"},
		"a Qwen3.5 of every second layer":       {text: newer("num_experts", "4", "num_experts_per_tok", "2", "moe_intermediate_size", "32", "shared_expert_intermediate_size", "32", "decoder_sparse_step", "2"), want: ErrInvalid, says: "decoder_sparse_step"},
		"a Qwen3.5 of no width":                 {text: newer("intermediate_size", ""), want: ErrMissing, says: "intermediate_size"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := dimensionsOf(c.text)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v saying %q", err, c.want, c.says)
			}
		})
	}
}

// gathered is a collection of consecutive tensors with these shapes, 4 bytes
// per number.
func gathered(shapes map[string][]int64) *collection {
	c, at := &collection{tensors: map[string]shardTensor{}, left: newAllowance(&account{budget: NewBudget(HeaderMemory)})}, int64(0)
	for _, name := range sortedKeys(shapes) {
		n := int64(4)
		for _, d := range shapes[name] {
			n *= d
		}
		c.tensors[name] = shardTensor{name: name, shape: shapes[name], span: span{offset: at, bytes: n}}
		at += n
	}
	return c
}

// TestConvolutionsSayWhoStoredAHybrid, by the order of their dimensions.
func TestConvolutionsSayWhoStoredAHybrid(t *testing.T) {
	const a, b = "model.layers.0.linear_attn.conv1d.weight", "model.layers.1.linear_attn.conv1d.weight"
	for name, c := range map[string]struct {
		shapes map[string][]int64
		asMLX  bool
		says   string
	}{
		"Hugging Face":      {shapes: map[string][]int64{a: {8, 1, 4}, b: {8, 1, 4}}},
		"mlx-lm":            {shapes: map[string][]int64{a: {8, 4, 1}, b: {8, 4, 1}}, asMLX: true},
		"both":              {shapes: map[string][]int64{a: {8, 4, 1}, b: {8, 1, 4}}, says: "the layout of Hugging Face"},
		"either":            {shapes: map[string][]int64{a: {8, 1, 1}}, says: "[8 1 1]"},
		"neither":           {shapes: map[string][]int64{a: {8, 2, 2}}, says: "[8 2 2]"},
		"none":              {shapes: map[string][]int64{"model.norm.weight": {8}}},
		"of two dimensions": {shapes: map[string][]int64{a: {8, 4}}},
	} {
		got := gathered(c.shapes)
		asMLX, err := got.kernels([]string{"linear_attn.conv1d.weight"})
		if asMLX != c.asMLX || (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, %v; want %v, an error saying %q", name, asMLX, err, c.asMLX, c.says)
		}
		if err == nil && len(c.shapes[a]) == 3 && !slices.Equal(got.tensors[a].shape, []int64{8, 4}) {
			t.Errorf("%s: taps have shape %v", name, got.tensors[a].shape)
		}
	}
}

// TestTheTextOfAModelThatSees: the vision encoder is ignored in every layout.
func TestTheTextOfAModelThatSees(t *testing.T) {
	one := []int64{1}
	c := gathered(map[string][]int64{
		"model.language_model.norm.weight": one, "lm_head.weight": one, "model.visual.merger.norm.weight": one, "mtp.norm.weight": one,
		"language_model.model.layers.0.mlp.up_proj.weight": one, "language_model.lm_head.scales": one, "vision_tower.merger.weight": one, "language_model.mtp.fc.weight": one,
	})
	if err := c.unwrapModel(family.Dimensions{Architecture: "qwen3_5"}); err != nil {
		t.Fatal(err)
	}
	want := []string{"lm_head.scales", "lm_head.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"}
	if diff := cmp.Diff(want, sortedKeys(c.tensors)); diff != "" {
		t.Errorf("tensors (-want +got):\n%s", diff)
	}
	twice := gathered(map[string][]int64{"model.language_model.norm.weight": one, "model.norm.weight": one})
	if err := twice.unwrapModel(family.Dimensions{Architecture: "qwen3_5"}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "two names") {
		t.Errorf("one name for two tensors: error %v", err)
	}
}

// What a family does not read is left out and counted.
func TestIgnoredTensorsAreLeftOut(t *testing.T) {
	one := []int64{1}
	c := gathered(map[string][]int64{"model.mtp_block.0.weight": one, "model.norm.weight": one})
	c.ignore([]string{"model.mtp_"})
	if got := sortedKeys(c.tensors); !slices.Equal(got, []string{"model.norm.weight"}) || c.unread == 0 {
		t.Errorf("tensors %v are left, %d bytes are unread", got, c.unread)
	}
}

// TestExpertsInOneTensorAreCutApart: gates, then what they gate, for each.
func TestExpertsInOneTensorAreCutApart(t *testing.T) {
	const up, down = "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"
	c := gathered(map[string][]int64{down: {3, 8, 2}, up: {3, 4, 8}})
	begin := c.tensors[up].span.offset
	d := family.Dimensions{Architecture: "qwen3_5", Experts: family.Experts{Count: 3}}
	if err := c.fusedExperts(d); err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]int64{"0.gate_proj": 0, "0.up_proj": 1, "2.gate_proj": 4, "2.up_proj": 5} {
		got := c.tensors["model.layers.0.mlp.experts."+name+".weight"]
		if got.span.offset != begin+at*2*8*4 || got.span.bytes != 2*8*4 || !slices.Equal(got.shape, []int64{2, 8}) {
			t.Errorf("%s is %+v", name, got)
		}
	}
	if got := c.tensors["model.layers.0.mlp.switch_mlp.down_proj.weight"]; len(c.tensors) != 7 || !slices.Equal(got.shape, []int64{3, 8, 2}) {
		t.Errorf("%d tensors, what comes back is %+v", len(c.tensors), got)
	}
	drafts := gathered(map[string][]int64{"model.layers.1.mlp.experts.gate_up_proj": {5, 4, 8}, "model.layers.1.mlp.experts.down_proj": {5, 8, 2}})
	if err := drafts.fusedExperts(family.Dimensions{Architecture: "deepseek_v3", Layers: 1, Experts: d.Experts}); err != nil || len(drafts.tensors) != 2 {
		t.Errorf("experts of a draft layer: %d tensors, error %v", len(drafts.tensors), err)
	}
	for name, shapes := range map[string]map[string][]int64{
		"half of a pair":    {up: {3, 5, 8}, down: {3, 8, 2}},
		"no expert":         {up: {0, 4, 8}, down: {3, 8, 2}},
		"another number":    {up: {4, 4, 8}, down: {3, 8, 2}},
		"of no columns":     {up: {3, 4, 0}, down: {3, 8, 2}},
		"one alone, too":    {up: {3, 4, 8}, down: {3, 8, 2}, "model.layers.0.mlp.experts.1.up_proj.weight": {2, 8}},
		"of two dimensions": {up: {4, 8}, down: {3, 8, 2}},
		"nothing back":      {up: {3, 4, 8}},
	} {
		if err := gathered(shapes).fusedExperts(d); !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrMissing) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestExpertsWithRowsAndColumnsExchangedAreCutApart: gates are the first half of the
// columns, what they gate the second.
func TestExpertsWithRowsAndColumnsExchangedAreCutApart(t *testing.T) {
	const up, down = "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"
	c := gathered(map[string][]int64{down: {3, 2, 8}, up: {3, 8, 4}})
	for name, x := range c.tensors {
		x.kind = element{"F32", 4}
		c.tensors[name] = x
	}
	begin := c.tensors[up].span.offset
	d := family.Dimensions{Architecture: "llama4_text", Experts: family.Experts{Count: 3}}
	if err := c.fusedExperts(d); err != nil {
		t.Fatal(err)
	}
	for name, first := range map[string]int{"gate_proj": 0, "up_proj": 2} {
		e, err := c.stacked(family.Slot{Path: "model.layers.0.mlp.switch_mlp." + name + ".weight", Shape: []int64{3, 2, 8}})
		if err != nil {
			t.Fatal(err)
		}
		if at, columns := e.Taken(); !e.Turned() || at != first || columns != 2 || e.stack[2].offset != begin+2*8*4*4 || e.Held() != 3*2*8*4 {
			t.Errorf("%s are %d columns from %d on, in %+v that hold %d bytes", name, columns, at, e, e.Held())
		}
	}
	e, err := c.stacked(family.Slot{Path: "model.layers.0.mlp.switch_mlp.down_proj.weight", Shape: []int64{3, 8, 2}})
	if at, columns := e.Taken(); err != nil || at != 0 || columns != 8 || !slices.Equal(e.Shape, []int64{3, 2, 8}) {
		t.Errorf("what comes back is %+v: error %v", e, err)
	}
	for name, shapes := range map[string]map[string][]int64{
		"half of a pair": {up: {3, 8, 5}, down: {3, 2, 8}}, "other experts back": {up: {3, 8, 4}, down: {2, 2, 8}}, "of two dimensions": {up: {8, 4}, down: {3, 2, 8}},
		"another number": {up: {4, 8, 4}, down: {4, 2, 8}}, "of no columns": {up: {3, 0, 4}, down: {3, 2, 8}}, "of no width back": {up: {3, 8, 4}, down: {3, 2, 0}},
	} {
		if err := gathered(shapes).fusedExperts(d); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
	}
}

// TestAVectorOfARecurrentLayerWidensNothing: A_log is often float32 in a model
// of bfloat16. Another vector promotes what it meets.
func TestAVectorOfARecurrentLayerWidensNothing(t *testing.T) {
	entries := map[string]Entry{}
	for path, f := range map[string]quant.Format{
		"model.layers.0.linear_attn.A_log": quant.DenseOf(quant.Float32), "model.layers.0.linear_attn.out_proj.weight": quant.DenseOf(quant.BFloat16),
	} {
		e := Entry{Path: path, Format: f, Shape: []int64{8, 8}}
		if !strings.HasSuffix(path, "weight") {
			e.Shape = []int64{8}
		}
		entries[path] = e
	}
	if got := elementBytes(entries, quant.BFloat16); got != 2 {
		t.Errorf("a key has numbers of %d bytes, want 2", got)
	}
	entries["model.layers.0.input_layernorm.weight"] = Entry{Path: "model.layers.0.input_layernorm.weight", Format: quant.DenseOf(quant.Float32), Shape: []int64{8}}
	if got := elementBytes(entries, quant.BFloat16); got != 4 {
		t.Errorf("with a norm in float32 a key has numbers of %d bytes, want 4", got)
	}
}

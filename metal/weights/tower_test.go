//go:build !race

package weights

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

// qwenSeeing is the configuration of a small Qwen3-VL, with pairs of parts replaced.
func qwenSeeing(changes ...string) string {
	return strings.NewReplacer(changes...).Replace(`{"model_type":"qwen3_vl","image_token_id":60,"text_config":{"model_type":"qwen3_vl_text","hidden_size":16,"num_hidden_layers":2,"intermediate_size":32,"num_attention_heads":2,"num_key_value_heads":1,
		"head_dim":12,"vocab_size":64,"rms_norm_eps":1e-6,"rope_theta":10000.0,"max_position_embeddings":64,"rope_scaling":{"rope_type":"default","mrope_section":[2,2,2]}},
		"vision_config":{"depth":1,"hidden_size":8,"num_heads":2,"intermediate_size":12,"patch_size":4,"num_position_embeddings":9,"deepstack_visual_indexes":[0]}}`)
}

// qwenTensors are those of its tower, under a prefix.
func qwenTensors(prefix string, kernel []int64) map[string][]int64 {
	out := map[string][]int64{prefix + "patch_embed.proj.weight": kernel, prefix + "patch_embed.proj.bias": {8}, prefix + "pos_embed.weight": {9, 8}}
	dense := func(name string, rows, columns int64) {
		out[prefix+name+".weight"], out[prefix+name+".bias"] = []int64{rows, columns}, []int64{rows}
	}
	norm := func(name string, width int64) {
		out[prefix+name+".weight"], out[prefix+name+".bias"] = []int64{width}, []int64{width}
	}
	norm("blocks.0.norm1", 8)
	norm("blocks.0.norm2", 8)
	dense("blocks.0.attn.qkv", 24, 8)
	dense("blocks.0.attn.proj", 8, 8)
	dense("blocks.0.mlp.linear_fc1", 12, 8)
	dense("blocks.0.mlp.linear_fc2", 8, 12)
	for name, width := range map[string]int64{"merger": 8, "deepstack_merger_list.0": 32} {
		norm(name+".norm", width)
		dense(name+".linear_fc1", 32, 32)
		dense(name+".linear_fc2", 16, 32)
	}
	return out
}

// floats are tensors of float32.
func floats(shapes map[string][]int64) *collection {
	c := gathered(shapes)
	for name, t := range c.tensors {
		t.kind = element{"F32", 4}
		c.tensors[name] = t
	}
	return c
}

func TestTowersAreFoundAsConvertersStoreThem(t *testing.T) {
	d, err := dimensionsOf(qwenSeeing())
	if err != nil || d.Tower == nil {
		t.Fatalf("no tower: %v, %v", err, d.TowerFault)
	}
	if want := []int{0, 1, 2, 0, 1, 2}; !slices.Equal(d.Tower.Axes, want) {
		t.Errorf("pairs turn by %v, want %v", d.Tower.Axes, want)
	}
	cfg, err := readConfig([]byte(qwenSeeing()))
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"model.visual.", "visual.", "vision_tower."} {
		for _, last := range []bool{false, true} {
			kernel := []int64{8, 3, 2, 4, 4}
			if last {
				kernel = []int64{8, 2, 4, 4, 3}
			}
			entries, channelsLast, err := floats(qwenTensors(prefix, kernel)).tower(*d.Tower, cfg)
			if err != nil || channelsLast != last || len(entries) != len(d.Tower.Slots()) {
				t.Errorf("%s, %v: %d tensors, want %d; channels last is %v (%v)", prefix, kernel, len(entries), len(d.Tower.Slots()), channelsLast, err)
			}
			if e := entries["vision.patch.weight"]; e.Rows() != 8 || e.Columns() != 96 {
				t.Errorf("%s, %v: the kernel is a matrix of %v", prefix, kernel, e.Shape)
			}
		}
	}
	if entries, _, err := floats(map[string][]int64{"model.norm.weight": {16}}).tower(*d.Tower, cfg); err != nil || entries != nil {
		t.Errorf("a folder without a tower: %d tensors (%v)", len(entries), err)
	}
}

func TestTowersThatAreNotTheirFamilysAreFaults(t *testing.T) {
	d, err := dimensionsOf(qwenSeeing())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := readConfig([]byte(qwenSeeing()))
	if err != nil {
		t.Fatal(err)
	}
	good := qwenTensors("visual.", []int64{8, 3, 2, 4, 4})
	for name, c := range map[string]struct {
		change func(all map[string][]int64)
		want   error
		says   string
	}{
		"a missing bias":     {func(all map[string][]int64) { delete(all, "visual.blocks.0.attn.qkv.bias") }, ErrMissing, "qkv.bias"},
		"no kernel":          {func(all map[string][]int64) { delete(all, "visual.patch_embed.proj.weight") }, ErrMissing, "patch.weight"},
		"a kernel of others": {func(all map[string][]int64) { all["visual.patch_embed.proj.weight"] = []int64{8, 4, 2, 4, 3} }, ErrInvalid, "[8 3 2 4 4]"},
		"an unknown tensor":  {func(all map[string][]int64) { all["visual.blocks.0.attn.gate.weight"] = []int64{8} }, ErrUnsupported, "gate"},
		"one under two names": {func(all map[string][]int64) { all["model.visual.pos_embed.weight"] = []int64{9, 8} },
			ErrInvalid, "two names"},
	} {
		all := maps.Clone(good)
		c.change(all)
		if _, _, err := floats(all).tower(*d.Tower, cfg); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want %v with %s", name, err, c.want, c.says)
		}
	}
}

// A model whose tower is not supported is still read as text.
func TestUnsupportedTowersLeaveTheText(t *testing.T) {
	for name, c := range map[string]struct {
		old, now string
		want     error
		says     string
	}{
		"another activation":      {old: `"depth":1`, now: `"depth":1,"hidden_act":"silu"`, want: ErrUnsupported, says: "hidden_act"},
		"four channels":           {old: `"depth":1`, now: `"depth":1,"in_channels":4`, want: ErrUnsupported, says: "in_channels"},
		"places that are no grid": {old: `embeddings":9`, now: `embeddings":10`, want: ErrInvalid, says: "num_position_embeddings"},
		"odd heads":               {old: `"num_heads":2`, now: `"num_heads":3`, want: ErrInvalid, says: "3 heads"},
		"heads of two":            {old: `"num_heads":2`, now: `"num_heads":4`, want: ErrInvalid, says: "rotated"},
		"a layer that is not":     {old: `indexes":[0]`, now: `indexes":[1]`, want: ErrInvalid, says: "deepstack_visual_indexes"},
		"a layer twice":           {old: `indexes":[0]`, now: `indexes":[0,0]`, want: ErrInvalid, says: "deepstack_visual_indexes"},
		"another rotation":        {old: `"depth":1`, now: `"depth":1,"rope_parameters":{"rope_type":"yarn"}`, want: ErrUnsupported, says: "rope_parameters"},
		"a section below none":    {old: `[2,2,2]`, now: `[2,-1,2]`, want: ErrInvalid, says: "mrope_section"},
		"two sections":            {old: `[2,2,2]`, now: `[4,2]`, want: ErrInvalid, says: "mrope_section"},
	} {
		d, err := dimensionsOf(qwenSeeing(c.old, c.now))
		if err != nil || d.Tower != nil || !errors.Is(d.TowerFault, c.want) || !strings.Contains(d.TowerFault.Error(), c.says) {
			t.Errorf("%s: %v; fault %v, want %v with %s", name, err, d.TowerFault, c.want, c.says)
		}
	}
}

// gemmaSeeing is the configuration of a small Gemma 4, with pairs of parts replaced.
func gemmaSeeing(changes ...string) string {
	return strings.NewReplacer(changes...).Replace(`{"model_type":"gemma4","image_token_id":60,"boi_token_id":61,"eoi_token_id":62,"text_config":{"model_type":"gemma4_text","final_logit_softcapping":30.0,"hidden_size":16,
		"num_hidden_layers":2,"intermediate_size":32,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":8,"global_head_dim":16,"vocab_size":64,"rms_norm_eps":1e-6,"max_position_embeddings":64,
		"sliding_window":8,"layer_types":["sliding_attention","full_attention"],"num_kv_shared_layers":0,"pad_token_id":0,"rope_parameters":{
		"full_attention":{"rope_theta":1e6,"rope_type":"proportional","partial_rotary_factor":0.25},"sliding_attention":{"rope_theta":10000.0,"rope_type":"default"}}},
		"vision_config":{"num_hidden_layers":1,"hidden_size":8,"num_attention_heads":2,"num_key_value_heads":2,"head_dim":4,"intermediate_size":12,"patch_size":4,"pooling_kernel_size":3,
		"position_embedding_size":9,"use_clipped_linears":true,"standardize":true,"rope_parameters":{"rope_theta":100.0,"rope_type":"default"}}}`)
}

// gemmaTensors are those of its tower, under a prefix; bounds have a shape.
func gemmaTensors(prefix string, bound []int64) map[string][]int64 {
	out := map[string][]int64{
		prefix + "vision_tower.patch_embedder.input_proj.weight": {8, 48}, prefix + "vision_tower.patch_embedder.position_embedding_table": {2, 9, 8},
		prefix + "vision_tower.std_bias": {8}, prefix + "vision_tower.std_scale": {8}, prefix + "embed_vision.embedding_projection.weight": {16, 8},
	}
	layer := prefix + "vision_tower.encoder.layers.0."
	for _, name := range []string{"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"} {
		out[layer+name+".weight"] = []int64{8}
	}
	out[layer+"self_attn.q_norm.weight"], out[layer+"self_attn.k_norm.weight"] = []int64{4}, []int64{4}
	for name, shape := range map[string][]int64{
		"self_attn.q": {8, 8}, "self_attn.k": {8, 8}, "self_attn.v": {8, 8}, "self_attn.o": {8, 8}, "mlp.gate": {12, 8}, "mlp.up": {12, 8}, "mlp.down": {8, 12},
	} {
		out[layer+name+"_proj.linear.weight"] = shape
		for _, end := range []string{"input_min", "input_max", "output_min", "output_max"} {
			out[layer+name+"_proj."+end] = bound
		}
	}
	return out
}

func TestTowersOfGemma4AreFoundAsConvertersStoreThem(t *testing.T) {
	d, err := dimensionsOf(gemmaSeeing())
	if err != nil || d.Tower == nil {
		t.Fatalf("no tower: %v, %v", err, d.TowerFault)
	}
	cfg, err := readConfig([]byte(gemmaSeeing()))
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"model.", ""} {
		for _, bound := range [][]int64{{}, {1}} {
			all := gemmaTensors(prefix, bound)
			entries, channelsLast, err := floats(all).tower(*d.Tower, cfg)
			if err != nil || channelsLast || len(entries) != len(all) || len(entries) != len(d.Tower.Slots()) {
				t.Errorf("%q, bounds of %v: %d tensors, want %d; channels last is %v (%v)", prefix, bound, len(entries), len(all), channelsLast, err)
			}
			if e := entries["vision.places.weight"]; e.Rows() != 18 || e.Columns() != 8 {
				t.Errorf("%q: the places are a matrix of %v", prefix, e.Shape)
			}
		}
	}
	for name, c := range map[string]struct {
		without string
		shape   []int64
		want    error
		says    string
	}{
		"a missing bound":          {without: "vision_tower.encoder.layers.0.mlp.up_proj.output_max", want: ErrMissing, says: "up.output_max"},
		"one bound for each value": {without: "vision_tower.encoder.layers.0.mlp.up_proj.output_max", shape: []int64{12}, want: ErrInvalid, says: "up.output_max"},
		"places of one side":       {without: "vision_tower.patch_embedder.position_embedding_table", shape: []int64{9, 8}, want: ErrInvalid, says: "[18 8]"},
		"no projection":            {without: "embed_vision.embedding_projection.weight", want: ErrMissing, says: "merger.project"},
	} {
		all := gemmaTensors("", []int64{1})
		if all[c.without] = c.shape; c.shape == nil {
			delete(all, c.without)
		}
		if _, _, err := floats(all).tower(*d.Tower, cfg); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want %v with %s", name, err, c.want, c.says)
		}
	}
}

func TestUnsupportedTowersOfGemma4LeaveTheText(t *testing.T) {
	for name, c := range map[string]struct {
		old, now string
		want     error
		says     string
	}{
		"fewer keys than queries":   {old: `"num_key_value_heads":2`, now: `"num_key_value_heads":1`, want: ErrUnsupported, says: "num_key_value_heads"},
		"another activation":        {old: `"patch_size":4`, now: `"patch_size":4,"hidden_activation":"silu"`, want: ErrUnsupported, says: "hidden_activation"},
		"heads of two":              {old: `"head_dim":4`, now: `"head_dim":2`, want: ErrInvalid, says: "rotated"},
		"another rotation":          {old: `"rope_theta":100.0,"rope_type":"default"`, now: `"rope_type":"yarn"`, want: ErrUnsupported, says: "rope_parameters"},
		"a token not in vocabulary": {old: `"image_token_id":60`, now: `"image_token_id":64`, want: ErrInvalid, says: "vocabulary"},
		"a blank beyond it":         {old: `"pad_token_id":0`, now: `"pad_token_id":70`, want: ErrInvalid, says: "vocabulary"},
	} {
		d, err := dimensionsOf(gemmaSeeing(c.old, c.now))
		if err != nil || d.Tower != nil || !errors.Is(d.TowerFault, c.want) || !strings.Contains(d.TowerFault.Error(), c.says) {
			t.Errorf("%s: %v; fault %v, want %v with %s", name, err, d.TowerFault, c.want, c.says)
		}
	}
}

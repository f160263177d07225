package tinymodel

import (
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// Tokens of images in the models of Seeing: the ones before the last of the vocabulary.
const (
	seeingVocabulary = 512
	beginOfImage     = seeingVocabulary - 5
	placeOfImage     = seeingVocabulary - 4
	endOfImage       = seeingVocabulary - 3
)

// Seeing is a random model with a vision tower, of the model_type qwen3_vl, gemma3 or gemma4.
func Seeing(modelType string) Described {
	decoder := map[string]any{
		"model_type": modelType + "_text", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
		"num_hidden_layers": 3, "vocab_size": seeingVocabulary, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
	}
	m := Described{
		Name: "tiny-" + modelType, Seed: 7, Matrices: quant.DenseOf(quant.Float32),
		Config: map[string]any{"model_type": modelType, "tie_word_embeddings": true, "text_config": decoder},
		Images: map[string]any{"image_mean": []float64{0.5, 0.5, 0.5}, "image_std": []float64{0.5, 0.5, 0.5}, "patch_size": 4},
	}
	switch modelType {
	case "gemma3":
		decoder["sliding_window"], decoder["query_pre_attn_scalar"], decoder["rope_local_base_freq"] = 48, 16, 10000.0
		decoder["layer_types"] = []string{"sliding_attention", "full_attention", "sliding_attention"}
		m.Config["image_token_index"], m.Config["boi_token_index"], m.Config["eoi_token_index"] = placeOfImage, beginOfImage, endOfImage
		m.Config["mm_tokens_per_image"] = 36
		m.Config["vision_config"] = map[string]any{
			"model_type": "siglip_vision_model", "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 3, "num_hidden_layers": 2,
			"image_size": 48, "patch_size": 4, "vision_use_head": false,
		}
		m.Images["image_processor_type"], m.Images["size"] = "Gemma3ImageProcessor", map[string]any{"height": 48, "width": 48}
		return m
	case "gemma4":
		m.seeingGemma4(decoder)
		return m
	}
	decoder["rope_scaling"] = map[string]any{"rope_type": "default", "mrope_interleaved": true, "mrope_section": []int{4, 2, 2}}
	m.Config["image_token_id"], m.Config["vision_start_token_id"], m.Config["vision_end_token_id"] = placeOfImage, beginOfImage, endOfImage
	m.Config["vision_config"] = map[string]any{
		"model_type": modelType, "depth": 3, "hidden_size": 48, "intermediate_size": 64, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2,
		"spatial_merge_size": 2, "out_hidden_size": 64, "num_position_embeddings": 49, "hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []int{0, 2},
	}
	m.Images["image_processor_type"], m.Images["merge_size"], m.Images["temporal_patch_size"] = "Qwen2VLImageProcessorFast", 2, 2
	m.Images["size"] = map[string]any{"shortest_edge": 256, "longest_edge": 16384}
	return m
}

// seeingGemma4 makes a Gemma 4 of a model: its layers have inputs, and images look ahead
// under the window.
func (m *Described) seeingGemma4(decoder map[string]any) {
	for key, v := range map[string]any{
		"sliding_window": 48, "layer_types": []string{"sliding_attention", "full_attention", "sliding_attention"}, "global_head_dim": 32, "num_kv_shared_layers": 0,
		"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": seeingVocabulary, "pad_token_id": 3, "use_bidirectional_attention": "vision", "final_logit_softcapping": nil,
		"rope_parameters": map[string]any{
			"full_attention":    map[string]any{"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25},
			"sliding_attention": map[string]any{"rope_theta": 10000.0, "rope_type": "default"},
		},
	} {
		decoder[key] = v
	}
	delete(decoder, "rope_theta")
	m.Config["image_token_id"], m.Config["boi_token_id"], m.Config["eoi_token_id"] = placeOfImage, beginOfImage, endOfImage
	m.Config["vision_config"] = map[string]any{
		"model_type": "gemma4_vision", "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16, "num_hidden_layers": 2,
		"patch_size": 4, "pooling_kernel_size": 3, "position_embedding_size": 108, "standardize": true,
	}
	m.Images = map[string]any{"image_processor_type": "Gemma4ImageProcessor", "patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 36, "do_normalize": false}
}

// seeingTemplate writes images as templates of Qwen3-VL do, with begin alone as those of
// Gemma 3, or with the place alone as those of Gemma 4.
func seeingTemplate(t family.Tower) string {
	image := "<|vision_start|><|image_pad|><|vision_end|>"
	switch {
	case t.Bare:
		image = "<|image_pad|>"
	case t.Begin != 0:
		image = "<|vision_start|>"
	}
	return `{% for message in messages %}{{ '<|im_start|>' + message['role'] + '
' }}{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '` + image + `' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}`
}

// see gives the vocabulary the tokens of images, and returns the definitions that they
// add.
func (v *vocabulary) see() (added []any) {
	for id, text := range map[int]string{beginOfImage: "<|vision_start|>", placeOfImage: "<|image_pad|>", endOfImage: "<|vision_end|>"} {
		v.tokens[id] = text
		added = append(added, map[string]any{"id": id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	return added
}

// towerParts are the tensors of a vision tower in float32, under the first prefix that
// its family reads, and as Hugging Face shapes them.
func towerParts(t family.Tower, seed uint64) (out []part, err error) {
	for _, s := range t.Slots() {
		turned := strings.HasSuffix(s.Path, ".turned")
		if turned {
			s.Shape = []int64{s.Shape[1], s.Shape[0]}
		}
		s.Path = t.Prefixes[0] + strings.TrimPrefix(s.Path, family.TowerPrefix)
		one := described(s)
		parts, err := one.parts(quant.DenseOf(quant.Float32), seed)
		if err != nil {
			return nil, fmt.Errorf("write vision tower: %w", err)
		}
		if one.path == t.Prefixes[0]+"patch" && !one.bias && !t.Gated {
			parts[0].shape = []int{t.Hidden, 3, t.Frames, t.Patch, t.Patch}
			if t.Frames == 1 {
				parts[0].shape = []int{t.Hidden, 3, t.Patch, t.Patch}
			}
		}
		out = append(out, parts...)
	}
	return out, nil
}

package tinymodel_test

import (
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// The matrices of heads are stacked in one tensor, in every format.
func TestLatentAttentionIsWrittenInEveryFormat(t *testing.T) {
	for _, format := range []quant.Format{quant.DenseOf(quant.Float32), quant.DenseOf(quant.BFloat16), quant.AffineOf(4, 32, quant.BFloat16)} {
		m := tinymodel.Described{Name: "latent", Seed: 1, Matrices: format, Config: map[string]any{
			"model_type": "deepseek_v2", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64, "num_attention_heads": 3, "num_key_value_heads": 3,
			"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 32, "v_head_dim": 16, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1,
			"num_experts_per_tok": 2, "first_k_dense_replace": 1, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
		}}
		path := filepath.Join(t.TempDir(), "model")
		if err := m.Write(path); err != nil {
			t.Fatalf("%v: %v", format, err)
		}
		f, err := weights.Open(path)
		if err != nil {
			t.Fatalf("%v: %v", format, err)
		}
		if _, err := f.Facts(); err != nil {
			t.Errorf("%v: %v", format, err)
		}
		f.Close()
	}
}

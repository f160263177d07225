package tinymodel

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
)

// Adapter is a random low-rank adapter of a model.
type Adapter struct {
	Seed uint64
	Rank int
	// Alpha scales what it adds.
	Alpha float64
}

// Write writes the adapter of a model in the layout of peft. dir must not exist. It
// changes queries and what leads out of each feed-forward.
func (a Adapter) Write(dir string, c Config) error {
	c = c.filled()
	var parts []part
	for i := range c.Layers {
		for _, m := range []struct {
			path    string
			out, in int
		}{
			{"self_attn.q_proj", c.QueryHeads * c.HeadSize, c.Hidden}, {"mlp.down_proj", c.Hidden, c.FeedForward},
		} {
			if strings.HasPrefix(m.path, "self_attn.") && c.Hybrid.recurs(i) {
				continue
			}
			if m.path == "self_attn.q_proj" && c.Family.hybrid() { // a gate for each head
				m.out *= 2
			}
			path := fmt.Sprintf("base_model.model.model.layers.%d.%s", i, m.path)
			parts = append(parts, matrix(path+".lora_A", "", a.Rank, m.in, 1).dense(quant.Float32, 4*m.in, a.Seed)...)
			parts = append(parts, matrix(path+".lora_B", "", m.out, a.Rank, 1).dense(quant.Float32, 4*a.Rank, a.Seed)...)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write tiny adapter: %w", err)
	}
	config := map[string]any{"peft_type": "LORA", "r": a.Rank, "lora_alpha": a.Alpha, "target_modules": []string{"q_proj", "down_proj"}}
	if err := writeJSON(filepath.Join(dir, "adapter_config.json"), config); err != nil {
		return err
	}
	return whole(filepath.Join(dir, "adapter_model.safetensors"), func(f *os.File) error { return writeSafetensors(f, "pt", parts) })
}

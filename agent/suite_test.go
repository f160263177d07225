//go:build !race

package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// The engine is another program, which the race detector does not see.

// The same suite runs against the fake engine.
func TestRealEnginePassesTheEngineSuite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slow.gguf")
	c := tinymodel.Default()
	c.Layers, c.Hidden, c.FeedForward, c.Context = 8, 256, 1024, 4096
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	enginetest.Run(t, enginetest.Program{Path: engineProgram, Env: os.Environ(), ModelPath: path, Context: 4096, Slow: 4000})
}

// Embeddings by an encoder and a decoder, and rerank scores by both.
func TestEmbeddingAndRerankEnginesPassTheEngineSuite(t *testing.T) {
	for _, r := range tinymodel.Readers() {
		if !slices.Contains([]string{"bert mean", "qwen3 embed", "xlm-roberta rerank", "qwen3 rerank"}, r.Name) {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model")
			if err := r.Write(path); err != nil {
				t.Fatal(err)
			}
			limit := int64(64) // what the encoders have positions for
			if r.Family == "qwen3" {
				limit = 1024
			}
			enginetest.RunReader(t, enginetest.Program{Path: engineProgram, Env: os.Environ(), ModelPath: path, Context: limit})
		})
	}
}

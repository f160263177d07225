//go:build !race

package footprint

import (
	"testing"

	"metalfleet.dev/metalfleet/api/model"
)

// Kernels on Metal write no scores of a vision tower. A processor writes those of all heads
// once, as no mask hides any; a back end that is not known is assumed to write two copies.
func TestScoresOfAVisionTower(t *testing.T) {
	const patches, heads, elements = 2048, 6, 15024
	f := model.Facts{VisionPatches: patches, VisionPatchElements: elements, VisionHeads: heads, VisionElements: 1}
	for name, copies := range map[string]int64{MLX: 0, MLXCPU: 1, "another": 2} {
		got, err := ImagePeak(f, KernelsOf(name), patches)
		if err != nil {
			t.Fatal(err)
		}
		if scores := got - 4*(patches*elements+1); scores != copies*heads*patches*patches*4 {
			t.Errorf("%s: scores of an image take %d bytes, want %d copies", name, scores, copies)
		}
	}
	reserved, err := Estimate(with(f), Context{Tokens: 64, Sequences: 1, CacheTokens: 64, Backend: MLXCPU})
	if want := int64(4*patches*elements + 4*heads*patches*patches); err != nil || reserved.Transient != want {
		t.Errorf("an engine reserves %d bytes for the tower, want %d (%v)", reserved.Transient, want, err)
	}
}

// Images that were sent are counted twice: as they are held, and as the messages that they
// came in.
func TestReceivedImagesAreCharged(t *testing.T) {
	f := with(model.Facts{VisionPatches: 64, VisionPatchElements: 64, VisionHeads: 1, VisionElements: 8})
	got, err := Estimate(f, Context{Tokens: 64, Sequences: 1, CacheTokens: 64, Backend: Ref})
	if want := int64(7*MaxImagePixels + HeldImages + 2*EncodedImages + 2*8*4); err != nil || got.Images != want {
		t.Errorf("an engine reserves %d bytes for images, want %d (%v)", got.Images, want, err)
	}
}

// with is a small decoder with the tower of f.
func with(f model.Facts) model.Facts {
	f.Architecture, f.Layers, f.GrowingLayers, f.HiddenSize, f.FeedForwardSize, f.QueryHeads, f.KeyValueHeads = "qwen3", 2, 2, 64, 128, 4, 2
	f.HeadSize, f.VocabularySize, f.ContextTokens, f.KeyValueElementBytes, f.WeightBytes = 16, 512, 1024, 2, 100_000
	return f
}

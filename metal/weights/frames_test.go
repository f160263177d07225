//go:build !race

package weights_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// A processor that cuts patches of more frames than the tower has would take several times the
// memory that is promised for an image.
func TestAProcessorHasTheFramesOfItsTower(t *testing.T) {
	for frames, fits := range map[int]bool{1: false, 2: true, 8: false} {
		m, path := tinymodel.Seeing("qwen3_vl"), filepath.Join(t.TempDir(), "model")
		m.Images["temporal_patch_size"] = frames
		if err := m.Write(path); err != nil {
			t.Fatal(err)
		}
		f, err := weights.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Processor()
		if fits && err != nil || !fits && (!errors.Is(err, weights.ErrInvalid) || !strings.Contains(err.Error(), "frames")) {
			t.Errorf("%d frames: %v", frames, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

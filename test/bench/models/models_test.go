//go:build !race

package models

import (
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
)

func TestAModelIsWrittenOnceAndNamedByItsSize(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bench")
	first, err := Sized(dir, 1, 256)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	if files, err := filepath.Glob(filepath.Join(first, "*.safetensors")); err != nil || len(files) != 1 {
		t.Errorf("files %v, %v", files, err)
	}
	again, err := Sized(dir, 1, 256)
	if err != nil || again != first {
		t.Fatal(again, err)
	}
	if after, err := os.Stat(again); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("written twice, or %v", err)
	}
	if c := tinymodel.Sized(4e9, perWeight); c.Layers < 100 {
		t.Errorf("4 GB are %d layers", c.Layers)
	}
}

func TestUnknownModels(t *testing.T) {
	if _, err := Shape(t.TempDir(), "no-such-shape"); err == nil {
		t.Error("an unknown shape was written")
	}
	if _, err := Fetch(t.Context(), "no-such-model"); err == nil {
		t.Error("an unknown model was fetched")
	}
}

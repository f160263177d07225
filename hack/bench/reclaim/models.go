package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"metalfleet.dev/metalfleet/hack/tinymodel"
)

// The models of the Mac's folder: one is evicted, one of two streams, and one
// has many engines.
const (
	largeFile = "large.gguf"
	manyFile  = "many.gguf"
	manyBytes = 48 << 20
	// streamContext is long enough for a stream that no round ends.
	streamContext = 16384
)

// streaming is a model that never ends by itself. Its layers decide how long a
// token takes: MLX's processor back end is slower than ref with quantised
// matrices, so it is given fewer.
func streaming(layers int) tinymodel.Config {
	c := tinymodel.Default()
	c.Name, c.Seed, c.Context, c.Endless, c.Vocabulary = "stream", 3, streamContext, true, 8192
	c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize = layers, 768, 2048, 12, 2, 64
	return c
}

// writeModels writes what is not there yet. The files' names say what they are
// for and their sizes are checked, so that another -bytes writes anew.
func writeModels(dir string, bytes int64) error {
	if err := checkRoom(bytes); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	for name, c := range map[string]tinymodel.Config{
		largeFile: tinymodel.Large(bytes), manyFile: tinymodel.Large(manyBytes),
		"stream-ref.gguf": streaming(12), "stream-mlx.gguf": streaming(4),
	} {
		if err := writeModel(filepath.Join(dir, name), c); err != nil {
			return err
		}
	}
	return nil
}

// writeModel keeps a file whose shape was the same, as a note beside it says.
func writeModel(path string, c tinymodel.Config) error {
	shape, note := fmt.Sprintf("%+v\n", c), path+".shape"
	had, err := os.ReadFile(note)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("model: %w", err)
	}
	if _, err := os.Stat(path); err == nil && string(had) == shape {
		return nil
	}
	fmt.Fprintln(os.Stderr, "writing", path)
	if err := tinymodel.Write(path, c); err != nil {
		return err
	}
	if err := os.WriteFile(note, []byte(shape), 0o644); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return nil
}

// checkRoom refuses to load models that would push others out of memory.
func checkRoom(bytes int64) error {
	const beside = 3 << 30
	free, err := available()
	if err != nil {
		return err
	}
	if want := 2*bytes + beside; free < want {
		return fmt.Errorf("%d bytes of memory are free, want %d", free, want)
	}
	return nil
}

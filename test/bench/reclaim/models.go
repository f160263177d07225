package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"metalfleet.dev/metalfleet/test/tinymodel"
)

// The models of the Mac's folder: one is evicted, one has many engines, and a
// real one streams, because a random model writes half characters that are held
// back.
const (
	streamFile = "stream.gguf"
	largeFile  = "large.gguf"
	manyFile   = "many.gguf"
	manyBytes  = 48 << 20
	// streamContext holds a prompt and answerTokens. Answers are short, so that
	// tokens take as long after as before: one in a long context takes longer.
	streamContext = 256
	answerTokens  = 64
)

// writeModels writes what is not there yet. The files' names say what they are
// for and their sizes are checked, so that another -bytes writes anew.
func writeModels(dir, stream string, bytes int64) error {
	if err := checkRoom(bytes); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	for name, c := range map[string]tinymodel.Config{
		largeFile: tinymodel.Large(bytes), manyFile: tinymodel.Large(manyBytes),
	} {
		if err := writeModel(filepath.Join(dir, name), c); err != nil {
			return err
		}
	}
	return copyModel(stream, filepath.Join(dir, streamFile))
}

// copyModel copies a file unless it was copied before.
func copyModel(from, to string) error {
	want, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("the model that streams is missing, run hack/models/fetch.sh smollm2: %w", err)
	}
	if had, err := os.Stat(to); err == nil && had.Size() == want.Size() {
		return nil
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if err := os.WriteFile(to, b, 0o644); err != nil {
		return fmt.Errorf("model: %w", err)
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

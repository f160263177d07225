// Package models makes models ready for benchmarks: real weights that are
// fetched, other formats of them, and random weights.
//
// It owns the folders that it writes and keeps, each named by what is in it. It
// writes nothing twice.
//
// Start reading at Fetch and Write.
package models

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// Fetch downloads real weights once and returns their path. Names are those of
// hack/models/fetch.sh.
func Fetch(ctx context.Context, name string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", filepath.Join("hack", "models", "fetch.sh"), name)
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("fetch the model %s: %w", name, err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	path := lines[len(lines)-1]
	if path == "" {
		return "", fmt.Errorf("fetch the model %s: hack/models/fetch.sh printed no path", name)
	}
	return path, nil
}

// SmolLM2 fetches the GGUF file in Q4_1 and returns it with a folder that holds
// the same weights in MLX's layout, as `engine convert` writes it.
func SmolLM2(ctx context.Context, engine, cache string) (gguf, folder string, err error) {
	if gguf, err = Fetch(ctx, "smollm2"); err != nil {
		return "", "", err
	}
	folder, err = Convert(ctx, engine, gguf, filepath.Join(cache, "smollm2"))
	return gguf, folder, err
}

// Convert runs `engine convert` unless it did so before.
func Convert(ctx context.Context, engine, from, to string, args ...string) (string, error) {
	return to, once(to, func(to string) error {
		args = append([]string{"convert", "--model", from, "--out", to}, args...)
		if out, err := exec.CommandContext(ctx, engine, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("convert %s: %w\n%s", from, err, out)
		}
		return nil
	})
}

// Write writes random weights as a folder, or as a GGUF file if layout is nil,
// unless they are there.
func Write(path string, c tinymodel.Config, layout *tinymodel.Layout) (string, error) {
	return path, once(path, func(path string) error {
		if layout == nil {
			return tinymodel.Write(path, c)
		}
		return tinymodel.WriteFolder(path, c, *layout)
	})
}

// WriteReader writes a random embedding model or reranker unless it is there.
func WriteReader(path string, r tinymodel.Reader) (string, error) {
	return path, once(path, r.Write)
}

// WriteDescribed writes a random model of any decoder family unless it is there.
func WriteDescribed(path string, m tinymodel.Described) (string, error) {
	return path, once(path, m.Write)
}

// bits and group are those that MLX uses by default.
const (
	bits  = 4
	group = 64
	// perWeight counts the scale and the bias of a group, 16 bits each.
	perWeight = bits + 2*16.0/group
)

// Packed is 4 bits in groups of 64 with scales in bfloat16.
func Packed() *tinymodel.Layout {
	return &tinymodel.Layout{Matrices: quant.AffineOf(bits, group, quant.BFloat16), ShardBytes: 5e9}
}

// Shape writes random packed weights of a published model's shape.
func Shape(cache, name string) (string, error) {
	if m, ok, err := describe(name); ok {
		if err != nil {
			return "", err
		}
		return WriteDescribed(filepath.Join(cache, name), m)
	}
	c, err := tinymodel.Shape(name, perWeight)
	if err != nil {
		return "", err
	}
	c.Seed = 1
	return Write(filepath.Join(cache, name), c, Packed())
}

// Sized writes a random packed Llama of about the given size.
func Sized(cache string, bytes int64, context int) (string, error) {
	c := tinymodel.Sized(bytes, perWeight)
	c.Context = context
	return Write(filepath.Join(cache, fmt.Sprintf("llama-%d-layers-of-%d-context-%d", c.Layers, c.Hidden, context)), c, Packed())
}

// once makes a path unless it exists. Writers of models move what they wrote to
// its place when it is complete.
func once(path string, write func(path string) error) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fmt.Fprintln(os.Stderr, "writing", path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write a model: %w", err)
	}
	return write(path)
}

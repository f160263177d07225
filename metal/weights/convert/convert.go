// Package convert writes a model as a folder in MLX's safetensors, which this
// engine, mlx-lm and transformers load.
//
// It owns what is written: how matrices are quantised (Plan), the formats of the tensors, config.json, and for
// GGUF sources the tokenizer files. Block formats of GGUF become affine ones
// without loss: the values that the folder means are those of the file, bit by
// bit, as their scales are written in float32 (but for Q2_K and Q6_K, which no
// layout holds: there they are what package weights reads). It refuses to write over
// anything: the folder appears whole, under its name, or not at all. It refuses
// values that a type cannot hold, what is quantised already unless that is
// asked for, and models whose configuration or tokenizer
// cannot be said in the words of the folder.
//
// Start reading at Run.
package convert

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Sentinels that callers branch on.
var (
	// ErrOptions means that the options cannot be satisfied.
	ErrOptions = errors.New("unsupported conversion options")
	// ErrExists means that the destination is not an empty folder.
	ErrExists = errors.New("is not an empty folder")
	// errSpace means that the disk is full.
	errSpace = errors.New("no space left on the disk")
	// errRange means that a type cannot represent a value.
	errRange = errors.New("value is out of range")
)

// shardBytes is the largest file of weights, as mlx-lm writes them
// (MAX_FILE_SIZE_GB).
const shardBytes = 5 << 30

// Options configure a conversion.
type Options struct {
	// Out is the folder to make; it may exist if it is empty.
	Out string
	// Plan selects what is quantized, and how.
	Plan Plan
	// Type of dense tensors, scales and biases; nil keeps that of the source.
	// The halves of a GGUF file count as float32, and its scales become
	// float32.
	Type *quant.Type

	// shard bounds a file of weights; 0 means shardBytes.
	shard int64
	// create makes a file; nil means os.OpenFile.
	create func(path string) (sink, error)
}

// Report describes what was written.
type Report struct {
	// Files of weights, and the bytes in them.
	Files int
	Bytes int64
	// Tensors counts those of the model, scales and biases aside, and Weights
	// their elements.
	Tensors int
	Weights int64
	// Formats are bytes by format.
	Formats map[string]int64
}

// BitsPerWeight is the average size of a weight, including scales and biases.
func (r Report) BitsPerWeight() float64 { return 8 * float64(r.Bytes) / float64(max(1, r.Weights)) }

// Run converts f. After an error nothing is left behind.
func Run(ctx context.Context, f *weights.File, o Options) (Report, error) {
	if err := o.check(); err != nil {
		return Report{}, err
	}
	// Poolings of an encoder are configured in other folders, which are not
	// written.
	if f.Dim.Encoder != nil {
		return Report{}, &weights.UnsupportedError{Subject: "conversion of an encoder", Value: f.Dim.Architecture, Supported: []string{"decoders"}}
	}
	if l := f.Dim.Layout(); len(l.Rename)+len(l.Fused) > 0 && f.Folder() != nil {
		// Its tensors would be written under names that mlx-lm does not know.
		return Report{}, &weights.UnsupportedError{Subject: "conversion of family", Value: f.Dim.Architecture, Supported: []string{"quantisation by mlx-lm"}}
	}
	if err := vacant(o.Out); err != nil {
		return Report{}, err
	}
	f.DropDraft() // as mlx-lm does
	p, err := newPlan(f, o)
	if err != nil {
		return Report{}, err
	}
	files, err := sideFiles(ctx, f, p)
	if err != nil {
		return Report{}, err
	}
	parent := filepath.Dir(filepath.Clean(o.Out))
	if err := room(parent, p.bytes); err != nil {
		return Report{}, err
	}
	work, err := os.MkdirTemp(parent, ".convert-*")
	if err != nil {
		return Report{}, fmt.Errorf("create a folder for the model: %w", err)
	}
	defer os.RemoveAll(work)
	w := writer{dir: work, create: o.create, need: p.bytes}
	if err := w.all(ctx, f, p, files); err != nil {
		return Report{}, err
	}
	if err := publish(work, o.Out); err != nil {
		return Report{}, err
	}
	return p.report(), nil
}

func (o Options) check() error {
	if o.Out == "" {
		return fmt.Errorf("no output folder: %w", ErrOptions)
	}
	return o.Plan.check()
}

// vacant wants nothing at path, or an empty folder.
func vacant(path string) error {
	names, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%s %w: %w", path, ErrExists, err)
	case len(names) > 0:
		return fmt.Errorf("%s %w; use another one", path, ErrExists)
	}
	return nil
}

// publish gives the finished folder its name. An empty folder of that name
// makes way; the system refuses to remove another, or to rename over it.
func publish(work, out string) error {
	if err := os.Chmod(work, 0o755); err != nil {
		return fmt.Errorf("publish the model: %w", err)
	}
	if err := unix.Rmdir(out); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s %w: %w", out, ErrExists, err)
	}
	if err := os.Rename(work, out); err != nil {
		return fmt.Errorf("publish the model: %w", err)
	}
	return syncFolder(filepath.Dir(filepath.Clean(out)))
}

// syncFolder makes a rename last.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("publish the model: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("publish the model: %w", err)
	}
	return nil
}

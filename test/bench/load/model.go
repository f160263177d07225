package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/test/bench/pagecache"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

// bits and group are MLX's usual ones.
const (
	bits  = 4
	group = 64
)

// model is a folder that was written, and its files of weights.
type model struct {
	dir   string
	files []string
	bytes int64 // of the files
}

// write writes a random model of about so many bytes, or finds the one that was
// written before: its folder is named by all that decides what is in it.
func write(dir string, bytes int64) (model, error) {
	c, layout := shape(bytes)
	m := model{dir: filepath.Join(dir, fmt.Sprintf("%s-%d-layers-of-%d-%d-bits-by-%d-%v-seed-%d", c.Family, c.Layers, c.Hidden, bits, group, layout.Matrices.Type, c.Seed))}
	if _, err := os.Stat(m.dir); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "writing %s\n", m.dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return m, fmt.Errorf("write the model: %w", err)
		}
		if err := tinymodel.WriteFolder(m.dir, c, layout); err != nil {
			return m, err
		}
	}
	return m, m.list()
}

// shape is a Llama of about so many bytes.
func shape(bytes int64) (tinymodel.Config, tinymodel.Layout) {
	format := quant.AffineOf(bits, group, quant.BFloat16)
	c := tinymodel.Sized(bytes, bits+2*16.0/group)
	c.Context = contextTokens
	return c, tinymodel.Layout{Matrices: format, ShardBytes: 5e9}
}

// list finds the files of weights.
func (m *model) list() error {
	var err error
	if m.files, err = filepath.Glob(filepath.Join(m.dir, "*.safetensors")); err != nil {
		return err
	}
	if len(m.files) == 0 {
		return fmt.Errorf("%s holds no weights: remove the folder and run this again", m.dir)
	}
	slices.Sort(m.files)
	for _, f := range m.files {
		info, err := os.Stat(f)
		if err != nil {
			return err
		}
		m.bytes += info.Size()
	}
	return nil
}

// mostLeft is how much of the files may still lie in the page cache for a
// reading to count as one from the disk.
const mostLeft = 0.01

// drop drops every page of the weights from the page cache, and looks.
func (m model) drop() error {
	var left int64
	for _, f := range m.files {
		if err := pagecache.Forget(f); err != nil {
			return err
		}
		in, _, err := pagecache.Resident(f)
		if err != nil {
			return err
		}
		left += in
	}
	return m.checkDropped(left)
}

func (m model) checkDropped(left int64) error {
	if float64(left) > mostLeft*float64(m.bytes) {
		return fmt.Errorf("%d of %d bytes of %s stay in the page cache: does another program have them mapped?", left, m.bytes, m.dir)
	}
	return nil
}

// checkRoom refuses to load a model that would push others out of memory.
func (m model) checkRoom(free int64) error {
	const beside = 2 << 30
	if want := mostMemory(m.bytes) + beside; free < want {
		return fmt.Errorf("%d bytes of memory are free, want %d: the model is loaded whole", free, want)
	}
	return nil
}

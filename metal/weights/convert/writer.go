package convert

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// sink is a file that is written.
type sink interface {
	io.WriterAt
	Sync() error
	Close() error
}

func createFile(path string) (sink, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
}

// room refuses to begin what cannot end.
func room(dir string, need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("free space of %s: %w", dir, err)
	}
	if free := uint64(st.Bavail) * uint64(st.Bsize); free < uint64(need) {
		return fmt.Errorf("%w: the model needs %d bytes, %s has %d", errSpace, need, dir, free)
	}
	return nil
}

// writer fills a folder.
type writer struct {
	dir    string
	create func(path string) (sink, error)
	// need is the bytes of the weights, for messages.
	need  int64
	files []sink
	// data is where the data of each file begins.
	data []int64
}

// fault adds to the error of a full disk how much space is missing.
func (w *writer) fault(name string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("write %s: %w: the model needs %d bytes: %w", name, errSpace, w.need, err)
	}
	return fmt.Errorf("write %s: %w", name, err)
}

func (w *writer) all(ctx context.Context, f *weights.File, p *plan, files map[string]content) (err error) {
	if w.create == nil {
		w.create = createFile
	}
	defer func() {
		for _, s := range w.files {
			if closed := s.Close(); err == nil && closed != nil {
				err = w.fault("weights", closed)
			}
		}
	}()
	for _, s := range p.shards {
		if err := w.header(s); err != nil {
			return err
		}
	}
	for _, t := range p.tensors {
		if err := w.tensor(ctx, f, t); err != nil {
			return err
		}
	}
	for i, s := range w.files {
		if err := s.Sync(); err != nil {
			return w.fault(p.shards[i].name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.whole(ctx, name, files[name]); err != nil {
			return err
		}
	}
	return syncFolder(w.dir)
}

// header begins a file of weights.
func (w *writer) header(s shard) error {
	type array struct {
		Kind    string   `json:"dtype"`
		Shape   []int64  `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	head := map[string]any{"__metadata__": map[string]string{"format": "mlx"}}
	for _, p := range s.parts {
		head[p.name] = array{p.kind, p.shape, [2]int64{p.offset, p.offset + p.bytes()}}
	}
	text, err := json.Marshal(head)
	if err != nil {
		return fmt.Errorf("header of %s: %w", s.name, err)
	}
	for len(text)%8 != 0 {
		text = append(text, ' ') // so that the data is aligned, as the format asks
	}
	file, err := w.create(filepath.Join(w.dir, s.name))
	if err != nil {
		return w.fault(s.name, err)
	}
	w.files = append(w.files, file)
	w.data = append(w.data, int64(8+len(text)))
	if _, err := file.WriteAt(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), 0); err != nil {
		return w.fault(s.name, err)
	}
	return nil
}

// tensor writes one tensor, by two goroutines.
func (w *writer) tensor(ctx context.Context, f *weights.File, t tensor) error {
	sizes, err := t.entry.Format.Sizes(t.entry.Columns())
	if err != nil {
		return fmt.Errorf("convert: %w", err)
	}
	var free sync.Pool // of converters; each holds a row
	err = f.Place(ctx, t.entry, func(first int, r quant.Row) error {
		c, ok := free.Get().(*converter)
		if !ok {
			var err error
			if c, err = newConverter(t); err != nil {
				return err
			}
		}
		defer free.Put(c)
		for i := range len(r.Raw) / sizes.Raw {
			out, err := c.row(r.At(i, sizes))
			if err != nil {
				return fmt.Errorf("row %d: %w", first+i, err)
			}
			if err := w.row(t, first+i, out); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("convert: %w", err)
	}
	return nil
}

func (w *writer) row(t tensor, row int, r quant.Row) error {
	for i, b := range [][]byte{r.Raw, r.Scales, r.Biases} {
		if len(b) == 0 {
			continue
		}
		p := t.parts[i]
		if _, err := w.files[p.file].WriteAt(b, w.data[p.file]+p.offset+int64(row)*p.row); err != nil {
			return w.fault(p.name, err)
		}
	}
	return nil
}

// content opens what one of the other files holds.
type content func() (io.ReadCloser, error)

func textContent(text []byte) content {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
}

// whole writes one of the other files.
func (w *writer) whole(ctx context.Context, name string, open content) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	from, err := open()
	if err != nil {
		return err
	}
	defer from.Close()
	path := filepath.Join(w.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return w.fault(name, err)
	}
	file, err := w.create(path)
	if err != nil {
		return w.fault(name, err)
	}
	_, err = io.Copy(io.NewOffsetWriter(file, 0), from)
	if err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return w.fault(name, err)
	}
	return nil
}

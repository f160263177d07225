package weights

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"

	"metalfleet.dev/metalfleet/metal/quant"
)

// ErrNoModel says that a path holds no model this package can open.
var ErrNoModel = errors.New("no model file")

// File is a model opened for loading.
type File struct {
	*Header
	// Dim are the checked dimensions of the model.
	Dim Dimensions

	entries map[string]Entry
	source  *os.File
}

// Open opens the GGUF file at path, or the only one in the folder at path, and
// checks its header whole. The caller closes it.
func Open(path string) (*File, error) {
	path, err := Locate(path)
	if err != nil {
		return nil, err
	}
	src, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	f, err := open(src)
	if err != nil {
		src.Close()
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return f, nil
}

func open(src *os.File) (*File, error) {
	st, err := src.Stat()
	if err != nil {
		return nil, err
	}
	h, err := ReadHeader(src, st.Size())
	if err != nil {
		return nil, err
	}
	dim, err := h.Dimensions()
	if err != nil {
		return nil, err
	}
	entries, err := h.inventory(dim)
	if err != nil {
		return nil, err
	}
	return &File{Header: h, Dim: dim, entries: entries, source: src}, nil
}

// Locate turns a model path (a GGUF file or a folder that holds exactly one)
// into the path of the file.
func Locate(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoModel, err)
	}
	if st.Mode().IsRegular() {
		return path, nil
	}
	if !st.IsDir() {
		return "", fmt.Errorf("%w: %s is neither a file nor a folder", ErrNoModel, path)
	}
	found, err := filepath.Glob(filepath.Join(escapeGlob(path), "*.gguf"))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoModel, err)
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%w: folder %s holds %d .gguf files, want 1", ErrNoModel, path, len(found))
	}
	return found[0], nil
}

func escapeGlob(path string) string {
	out := make([]byte, 0, len(path))
	for i := range len(path) {
		switch path[i] {
		case '*', '?', '[', '\\':
			out = append(out, '\\')
		}
		out = append(out, path[i])
	}
	return string(out)
}

// Precision is how fine activations must be for the file's values to count as
// they are written. GGUF means its halves as float32.
func (f *File) Precision() quant.Type { return quant.Float32 }

// Close closes the file.
func (f *File) Close() error { return f.source.Close() }

// Entry finds a tensor by its canonical path.
func (f *File) Entry(path string) (Entry, bool) {
	e, ok := f.entries[path]
	return e, ok
}

// Entries returns all tensors, in the order of the file.
func (f *File) Entries() []Entry {
	out := make([]Entry, 0, len(f.entries))
	for _, e := range f.entries {
		out = append(out, e)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Offset < out[j].Offset })
	return out
}

// Rows reads a tensor front to back and hands out each row under its canonical
// index, in the entry's format. The bytes are valid during the call.
func (f *File) Rows(ctx context.Context, e Entry, emit func(row int, r quant.Row) error) error {
	split := quant.Row{}
	if e.Format.Quantized() {
		var err error
		if split, err = e.Format.NewRow(int(e.Shape[len(e.Shape)-1])); err != nil {
			return fmt.Errorf("tensor %s: %w: %w", e.Name, ErrInvalid, err)
		}
	}
	return f.raw(ctx, e, func(row int, raw []byte) error {
		if !e.Format.Quantized() {
			return emit(row, quant.Row{Raw: raw})
		}
		e.Type.Split(raw, split)
		return emit(row, split)
	})
}

func (f *File) raw(ctx context.Context, e Entry, emit func(row int, raw []byte) error) error {
	rowBytes, ok := e.Type.RowBytes(e.Shape[len(e.Shape)-1])
	if !ok || e.Bytes%rowBytes != 0 {
		return invalidf("tensor %s is not whole rows", e.Name)
	}
	perRead := max(1, readAhead/rowBytes)
	buf := make([]byte, min(perRead*rowBytes, e.Bytes))
	row := 0
	for done := int64(0); done < e.Bytes; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("load tensor %s: %w", e.Name, err)
		}
		piece := buf[:min(int64(len(buf)), e.Bytes-done)]
		if _, err := f.source.ReadAt(piece, e.Offset+done); err != nil {
			if errors.Is(err, io.EOF) {
				return &FormatError{ErrTruncated, e.Offset + done, "data of tensor " + e.Name}
			}
			return fmt.Errorf("read tensor %s: %w", e.Name, err)
		}
		for at := int64(0); at < int64(len(piece)); at += rowBytes {
			if err := emit(e.canonicalRow(row), piece[at:at+rowBytes]); err != nil {
				return fmt.Errorf("load tensor %s: %w", e.Name, err)
			}
			row++
		}
		done += int64(len(piece))
	}
	return nil
}

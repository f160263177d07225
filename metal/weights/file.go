package weights

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/quant"
)

// ErrNoModel means that a path has no model that this package can open.
var ErrNoModel = errors.New("no model found")

// File is a model opened for loading: a GGUF file, or the safetensors files of
// a folder. Its methods may be used at once.
type File struct {
	// Dim are the checked dimensions of the model.
	Dim family.Dimensions
	// Metadata is that of a GGUF file (see Header.Metadata); nil for folders.
	Metadata map[string]any

	header  *Header
	dir     *folder.Folder
	entries map[string]Entry
	sources []*os.File
	bytes   int64
	unread  int64
	precise quant.Type
	// lessOne: the weights of norms are stored minus one.
	lessOne bool
	// tower is the part that holds a vision tower; nil if there is none. channelsLast is
	// set in it if its patches have their channels last.
	tower        *File
	channelsLast bool
	// held is the memory of the headers, which release gives back to their budget; nil for a
	// tower.
	held    int64
	release func()

	// mu guards pieces that were read into and are free.
	mu    sync.Mutex
	spare [][]byte
}

// Open opens the model at path and checks everything that its headers say. path
// is a GGUF file, a folder that holds exactly one, or a folder with config.json
// and model*.safetensors, of which no file lies outside. The caller closes it.
//
// Errors are ErrNoModel, ErrNotGGUF, ErrTruncated, ErrInvalid, ErrUnsupported
// or ErrMissing.
func Open(path string) (*File, error) { return NewBudget(HeaderMemory).Open(path) }

// Open is Open within the budget, which has what the headers take back when the file is closed. The
// error is ErrBusy where others that are in use left too little.
func (b *Budget) Open(path string) (*File, error) {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNoModel, err)
	case st.Mode().IsRegular():
		src, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("open model: %w", err)
		}
		return b.openGGUF(src, path)
	case !st.IsDir():
		return nil, fmt.Errorf("%w: %s is neither a file nor a folder", ErrNoModel, path)
	}
	dir, err := folder.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoModel, err)
	}
	f, err := b.openFolder(dir)
	if err != nil || f.dir == nil {
		dir.Close()
	}
	return f, err
}

// openFolder opens what a folder holds; a folder around a GGUF file is of no
// more use once that is open.
func (b *Budget) openFolder(dir *folder.Folder) (*File, error) {
	ggufs, err := dir.Names(".gguf")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoModel, err)
	}
	hasConfig := dir.Has(configFile)
	switch {
	case hasConfig && len(ggufs) == 0:
		memory := account{budget: b}
		defer memory.close()
		f, err := openSafetensors(dir, &memory)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", dir.Path(), err)
		}
		f.held = memory.used
		f.release = memory.keep()
		return f, nil
	case len(ggufs) == 1 && !hasSafetensors(dir):
		src, err := dir.File(ggufs[0])
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", dir.Path(), folderError(err))
		}
		return b.openGGUF(src, filepath.Join(dir.Path(), ggufs[0]))
	case len(ggufs) > 0:
		return nil, fmt.Errorf("%w: folder %s contains %d .gguf files, and either several of them or also safetensors; name the file to load", ErrNoModel, dir.Path(), len(ggufs))
	}
	return nil, fmt.Errorf("%w: folder %s contains neither a .gguf file nor a config.json with model*.safetensors", ErrNoModel, dir.Path())
}

func hasSafetensors(dir *folder.Folder) bool {
	names, err := dir.Names(".safetensors")
	return err != nil || len(names) > 0
}

func (b *Budget) openGGUF(src *os.File, path string) (*File, error) {
	f, err := b.readGGUF(src)
	if err != nil {
		src.Close()
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return f, nil
}

func (b *Budget) readGGUF(src *os.File) (*File, error) {
	st, err := src.Stat()
	if err != nil {
		return nil, err
	}
	h, release, err := b.ReadHeader(src, st.Size())
	if err != nil {
		return nil, err
	}
	dim, err := h.Dimensions()
	if err != nil {
		release()
		return nil, err
	}
	entries, err := h.inventory(dim)
	if err != nil {
		release()
		return nil, err
	}
	// In GGUF, halves count as float32 regardless of how they are stored.
	return &File{Dim: dim, Metadata: h.Metadata, header: h, entries: entries, sources: []*os.File{src}, bytes: h.Size, unread: h.unread(), precise: quant.Float32, release: release}, nil
}

func openSafetensors(dir *folder.Folder, memory *account) (*File, error) {
	text, err := dir.Read(configFile, maxConfigBytes)
	if err != nil {
		return nil, folderError(err)
	}
	values := valuesMemory(text)
	if err := memory.take(values, 0); err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	defer memory.free(values)
	cfg, err := readConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	dim, err := cfg.Dimensions()
	if err != nil {
		return nil, err
	}
	c, err := openCollection(dir, memory)
	if err != nil {
		return nil, err
	}
	layout := dim.Layout()
	asMLX, err := c.kernels(layout.Kernels)
	if err != nil {
		c.close()
		return nil, err
	}
	lessOne := layout.NormsLessOne || layout.NormsLessOneInHF && !asMLX && c.named(layout.Original)
	f := &File{Dim: dim, dir: dir, sources: c.sources, bytes: c.bytes, lessOne: lessOne}
	draft, err := map[string]Entry(nil), f.openTower(c, cfg) // first: the inventory leaves it out
	if err == nil {
		draft, err = c.draft(dim, cfg)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	entries, err := c.inventory(dim, cfg)
	if err != nil {
		c.close()
		return nil, c.explainMissing(dir, memory, err)
	}
	f.entries, f.unread, f.precise = entries, c.unread, fineEnough(dim, entries)
	f.addDraft(draft)
	if f.tower != nil {
		f.tower.precise = f.precise
	}
	return f, nil
}

// fineEnough is the precision of a folder. Where residuals exceed what float16
// holds it is float32.
func fineEnough(d family.Dimensions, entries map[string]Entry) quant.Type {
	t, wide := precision(entries), d.Layout().Wide
	for _, e := range entries {
		if wide && e.Format.Type == quant.Float16 {
			return quant.Float32
		}
	}
	return t
}

// Precision is the minimum precision of activations for the model: float32 for
// GGUF, whose halves count as float32; for a folder the coarsest float type of
// its weights, so that nothing is widened beyond the folder's types.
func (f *File) Precision() quant.Type { return f.precise }

// NormsLessOne reports whether the file stores the weights of norms minus one:
// those of a Gemma, and those of a recurrent hybrid in Hugging Face's layout
// (except the norms inside recurrent layers). GGUF files and mlx-lm's hybrids
// store the weights themselves.
func (f *File) NormsLessOne() bool { return f.lessOne }

// Header is the header of a GGUF file; nil for folders.
func (f *File) Header() *Header { return f.header }

// Folder is the open folder of a model in safetensors; nil for GGUF. It closes
// with the file.
func (f *File) Folder() *folder.Folder { return f.dir }

// Bytes is the size of the model's files of weights on disk.
func (f *File) Bytes() int64 { return f.bytes }

// Unread is the size of tensors in the files that are never loaded: the vision
// encoder of a model that is loaded as text only.
func (f *File) Unread() int64 { return f.unread }

// Close closes the files.
func (f *File) Close() error {
	if f.release != nil {
		f.release()
	}
	var errs []error
	for _, s := range f.sources {
		errs = append(errs, s.Close())
	}
	if f.dir != nil {
		errs = append(errs, f.dir.Close())
	}
	return errors.Join(errs...)
}

// Entry finds a tensor by its canonical path.
func (f *File) Entry(path string) (Entry, bool) {
	e, ok := f.entries[path]
	return e, ok
}

// Entries returns all tensors, in the order of the files.
func (f *File) Entries() []Entry {
	out := make([]Entry, 0, len(f.entries))
	for _, e := range f.entries {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return a.weight.compare(b.weight) })
	return out
}

// Facts returns the numbers for placement and memory estimates.
func (f *File) Facts() (model.Facts, error) {
	if f.header != nil {
		return f.header.Facts()
	}
	kinds := map[string]int64{}
	for _, e := range f.entries {
		kinds[quantization(e.Format)] += e.Bytes
	}
	out, err := facts(f.Dim, "", largest(kinds), f.entries, f.precise)
	if err != nil {
		return out, err
	}
	f.addVision(&out)
	if err := checkUnread(f.bytes, out.WeightBytes); err != nil {
		return out, err
	}
	task, err := f.Task()
	out.SetTask(task)
	return out, err
}

// quantization names a format without the type of its scales.
func quantization(f quant.Format) string {
	if f.Quantized() && !f.BlockFloat() {
		return fmt.Sprintf("affine %d-bit group %d", f.Bits, f.Group)
	}
	return f.String()
}

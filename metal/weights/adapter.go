package weights

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/quant"
)

const (
	// maxRank bounds an adapter's rank; no useful one comes near it.
	maxRank = 4096
	// maxModuleBytes bounds the name of a module, which patterns are matched with.
	maxModuleBytes = 512
)

// Adapter is a low-rank adapter (LoRA) of a model, opened for loading.
type Adapter struct {
	// Changes are what it adds to the products of layers, sorted by layer.
	Changes []Change
	source  *os.File
	// Bytes of all factors in memory.
	Bytes int64
}

// Change adds Scale * B(A(x)) to the product of a layer with x, where A is [Rank, In] and
// B [Out, Rank]. In a layer of experts each expert has both.
type Change struct {
	// Layer is the canonical path of the weight, without ".weight".
	Layer string
	// Experts that are stacked; 0 in other layers.
	Experts       int
	Rank, In, Out int
	Scale         float32

	a, b factor
}

// factor is where a factor lies. A turned one lies with rows and columns exchanged. rows
// of it, from first on, are used: those of one part of a layer that the file does not
// divide. Where stack is not nil, it has a factor for each expert, of which those without
// a tensor are zeros.
type factor struct {
	tensor      shardTensor
	turned      bool
	first, rows int
	stack       []factor
}

// Rows are the rows of a factor, one after another, of all experts.
type Rows struct {
	Type          quant.Type
	Rows, Columns int

	of     factor
	source *os.File
	layer  string
}

// OpenAdapter opens the adapter in a folder, in the layout of peft or in that of mlx-lm,
// and checks that it is one of the model. The end of the context ends that. The caller
// closes the adapter.
//
// Errors are ErrNoModel, ErrTruncated, ErrInvalid, ErrUnsupported, ErrMissing or the
// context's.
func OpenAdapter(ctx context.Context, path string, of *File) (*Adapter, error) {
	return NewBudget(HeaderMemory).OpenAdapter(ctx, path, of)
}

// OpenAdapter is the function OpenAdapter within the budget, of which it keeps nothing when it
// returns. The error is ErrBusy if other headers that are being read leave too little of it.
func (b *Budget) OpenAdapter(ctx context.Context, path string, of *File) (*Adapter, error) {
	a, err := b.openAdapter(ctx, path, of)
	if err != nil {
		return nil, fmt.Errorf("adapter %s: %w", path, err)
	}
	return a, nil
}

func (b *Budget) openAdapter(ctx context.Context, path string, of *File) (*Adapter, error) {
	if of.header != nil {
		return nil, family.Unsupported("model with an adapter", "GGUF", []string{"a folder of safetensors, as Hugging Face and mlx-lm write it"})
	}
	if of.Dim.Encoder != nil {
		return nil, family.Unsupported("model with an adapter", of.Dim.Architecture, []string{"models that generate text"})
	}
	dir, err := folder.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoModel, err)
	}
	defer dir.Close()
	text, err := dir.Read(AdapterConfigFile, maxAdapterConfig)
	if err != nil {
		return nil, folderError(err)
	}
	memory := b.with(of)
	defer memory.close()
	values := valuesMemory(text)
	if err := memory.take(values, 0); err != nil {
		return nil, fmt.Errorf("%s: %w", AdapterConfigFile, err)
	}
	config, err := ParseAdapterConfig(text)
	memory.free(values)
	if err != nil {
		return nil, err
	}
	source, err := dir.File(config.File)
	if err != nil {
		return nil, folderError(err)
	}
	a := &Adapter{source: source}
	if err := a.read(ctx, &memory, &config, of); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", config.File, err), source.Close())
	}
	return a, nil
}

// Close closes the file.
func (a *Adapter) Close() error { return a.source.Close() }

func (a *Adapter) read(ctx context.Context, memory *account, config *AdapterConfig, of *File) error {
	st, err := a.source.Stat()
	if err != nil {
		return fmt.Errorf("size: %w", err)
	}
	tensors, err := readShard(a.source, st.Size(), newAllowance(memory))
	if err != nil {
		return err
	}
	modules, err := factorPairs(config, tensors)
	if err != nil {
		return err
	}
	if a.Changes, err = newChangeReader(config, of, memory).read(ctx, modules); err != nil {
		return err
	}
	if len(a.Changes) == 0 {
		return family.Invalidf("it has no factors")
	}
	slices.SortFunc(a.Changes, func(x, y Change) int { return strings.Compare(x.Layer, y.Layer) })
	counted := map[string]bool{}
	for i, c := range a.Changes {
		if i > 0 && c.Layer == a.Changes[i-1].Layer {
			return family.Invalidf("layer %s has factors under two names", family.Quoted(c.Layer))
		}
		a.Bytes += c.b.bytes(c.Experts)
		if shared := c.Shared(); shared == "" || !counted[shared] {
			a.Bytes += c.a.bytes(c.Experts)
			counted[shared] = true
		}
	}
	return nil
}

// factorPairs are both factors of each module, by its name in the model that was trained.
func factorPairs(config *AdapterConfig, tensors []shardTensor) (map[string]*[2]shardTensor, error) {
	ends := [][]string{{".lora_a"}, {".lora_b"}}
	if config.peft {
		ends = [][]string{{".lora_A.weight", ".lora_A.default.weight"}, {".lora_B.weight", ".lora_B.default.weight"}}
	}
	modules := map[string]*[2]shardTensor{}
	for _, t := range tensors {
		module, side := "", 0
		for i, of := range ends {
			for _, end := range of {
				if m, found := strings.CutSuffix(t.name, end); found {
					module, side = m, i
				}
			}
		}
		if module == "" && config.peft && strings.Contains(t.name, ".base_layer.") {
			return nil, family.Unsupported("matrix of the model in an adapter", clipped(t.name), []string{"an adapter that was saved with save_embedding_layers=False"})
		}
		if module == "" {
			return nil, family.Unsupported("tensor of an adapter", clipped(t.name[strings.LastIndex(t.name, ".layers.")+1:]), []string{"names that end in " + ends[0][0] + " and " + ends[1][0]})
		}
		if len(module) > maxModuleBytes {
			return nil, family.Unsupported("name of a layer with an adapter", clipped(module), []string{fmt.Sprintf("names of at most %d bytes", maxModuleBytes)})
		}
		if config.peft {
			module = strings.TrimPrefix(module, "base_model.model.")
		}
		if modules[module] == nil {
			modules[module] = new([2]shardTensor)
		}
		if modules[module][side].name != "" {
			return nil, family.Invalidf("layer %s has a factor under two names", family.Quoted(module))
		}
		modules[module][side] = t
	}
	for name, pair := range modules {
		if pair[0].name == "" || pair[1].name == "" {
			return nil, fmt.Errorf("one factor of layer %s: %w", family.Quoted(name), ErrMissing)
		}
	}
	return modules, nil
}

// columns of the factor as it is loaded.
func (f factor) columns() int64 {
	if f.turned {
		return f.tensor.shape[0]
	}
	return f.tensor.shape[len(f.tensor.shape)-1]
}

// bytes that the factor takes as it is loaded.
func (f factor) bytes(experts int) int64 {
	return int64(max(1, experts)) * int64(f.rows) * f.columns() * f.tensor.kind.bytes
}

// Factors returns both factors of a change: A [Rank, In] and B [Out, Rank].
func (a *Adapter) Factors(c Change) (first, second Rows, err error) {
	kind, err := c.a.tensor.kind.float()
	if err != nil {
		return first, second, fmt.Errorf("layer %s: %w", family.Quoted(c.Layer), err)
	}
	other, err := c.b.tensor.kind.float()
	if err != nil {
		return first, second, fmt.Errorf("layer %s: %w", family.Quoted(c.Layer), err)
	}
	rows := func(f factor, kind quant.Type) Rows {
		return Rows{Type: kind, Rows: max(1, c.Experts) * f.rows, Columns: int(f.columns()), of: f, source: a.source, layer: c.Layer}
	}
	return rows(c.a, kind), rows(c.b, other), nil
}

// Shared identifies the first factor of a change, which is that of all parts of a layer that the
// file does not divide; empty in a stack of experts of which some have none.
func (c Change) Shared() string {
	if c.a.stack != nil {
		return ""
	}
	return c.a.tensor.name
}

// tileBytes is how much of a factor is in memory while it is read, or one row of it.
const tileBytes = 16 << 20

// Each reads the rows, several at once: put gets those from first on, which are valid until it
// returns.
func (r Rows) Each(put func(first int, raw []byte) error) error {
	err := r.each(put)
	if err != nil {
		return fmt.Errorf("layer %s: %w", family.Quoted(r.layer), err)
	}
	return nil
}

func (r Rows) each(put func(first int, raw []byte) error) error {
	if r.of.stack == nil {
		return r.of.tiles(r.source, r.Rows, tileBytes, put)
	}
	for i, one := range r.of.stack {
		if one.tensor.name == "" { // it is zeros, in the shape of the others
			one.tensor, one.turned, one.rows = shardTensor{shape: r.of.tensor.shape, kind: r.of.tensor.kind}, r.of.turned, r.of.rows
		}
		err := one.tiles(r.source, one.rows, tileBytes, func(first int, raw []byte) error { return put(i*one.rows+first, raw) })
		if err != nil {
			return err
		}
	}
	return nil
}

// tiles reads this many rows of a factor, as many at once as take no more than most bytes.
func (f factor) tiles(source *os.File, rows, most int, put func(first int, raw []byte) error) error {
	row := int(f.columns() * f.tensor.kind.bytes)
	each := min(rows, max(1, most/row))
	tile := make([]byte, each*row)
	for first := 0; first < rows; first += each {
		tile := tile[:min(each, rows-first)*row]
		if err := f.read(source, f.first+first, tile, most); err != nil {
			return err
		}
		if err := put(first, tile); err != nil {
			return err
		}
	}
	return nil
}

// read fills a tile with the rows from first on. A turned factor is read whole where it has no more
// than most bytes.
func (f factor) read(source *os.File, first int, tile []byte, most int) error {
	t, size := f.tensor, int(f.tensor.kind.bytes)
	switch {
	case t.name == "":
		clear(tile)
		return nil
	case !f.turned:
		return readAt(source, tile, t.span.offset+int64(first)*f.columns()*t.kind.bytes, t.name)
	}
	columns, all := int(t.shape[0]), int(t.shape[1])
	rows := len(tile) / (columns * size)
	// Columns lie one after another, with a number for each row: of a large factor only those
	// of the wanted rows are read.
	together, stride, start := 1, rows, first
	if columns*all*size <= most {
		together, stride, start = columns, all, 0
	}
	raw := make([]byte, together*stride*size)
	for c := 0; c < columns; c += together {
		if err := readAt(source, raw, t.span.offset+int64(c*all+start)*t.kind.bytes, t.name); err != nil {
			return err
		}
		for k := range together {
			for r := range rows {
				copy(tile[(r*columns+c+k)*size:][:size], raw[(k*stride+first-start+r)*size:])
			}
		}
	}
	return nil
}

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
	Raw           []byte
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
	config, err := ParseAdapterConfig(text)
	if err != nil {
		return nil, err
	}
	source, err := dir.File(config.File)
	if err != nil {
		return nil, folderError(err)
	}
	a := &Adapter{source: source}
	if err := a.read(ctx, b, &config, of); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", config.File, err), source.Close())
	}
	return a, nil
}

// Close closes the file.
func (a *Adapter) Close() error { return a.source.Close() }

func (a *Adapter) read(ctx context.Context, b *Budget, config *AdapterConfig, of *File) error {
	st, err := a.source.Stat()
	if err != nil {
		return fmt.Errorf("size: %w", err)
	}
	memory := b.with(of)
	defer memory.close()
	tensors, err := readShard(a.source, st.Size(), newAllowance(&memory))
	if err != nil {
		return err
	}
	modules, err := factorPairs(config, tensors)
	if err != nil {
		return err
	}
	if a.Changes, err = newChangeReader(config, of, &memory).read(ctx, modules); err != nil {
		return err
	}
	if len(a.Changes) == 0 {
		return family.Invalidf("it has no factors")
	}
	slices.SortFunc(a.Changes, func(x, y Change) int { return strings.Compare(x.Layer, y.Layer) })
	for i, c := range a.Changes {
		if i > 0 && c.Layer == a.Changes[i-1].Layer {
			return family.Invalidf("layer %s has factors under two names", family.Quoted(c.Layer))
		}
		a.Bytes += c.a.bytes(c.Experts) + c.b.bytes(c.Experts)
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

// bytes that the factor takes as it is loaded.
func (f factor) bytes(experts int) int64 {
	columns := f.tensor.shape[len(f.tensor.shape)-1]
	if f.turned {
		columns = f.tensor.shape[0]
	}
	return int64(max(1, experts)) * int64(f.rows) * columns * f.tensor.kind.bytes
}

// Read returns the rows of both factors of a change: those of A [Rank, In], then those of
// B [Out, Rank].
func (a *Adapter) Read(c Change) (first, second Rows, err error) {
	if first, err = c.a.read(a.source, c.Experts); err != nil {
		return first, second, fmt.Errorf("layer %s: %w", family.Quoted(c.Layer), err)
	}
	if second, err = c.b.read(a.source, c.Experts); err != nil {
		return first, second, fmt.Errorf("layer %s: %w", family.Quoted(c.Layer), err)
	}
	return first, second, nil
}

func (f factor) read(source *os.File, experts int) (Rows, error) {
	t := f.tensor
	kind, err := t.kind.float()
	if err != nil {
		return Rows{}, err
	}
	if f.stack != nil {
		return f.readStack(source, kind)
	}
	raw := make([]byte, t.span.bytes)
	if err := readAt(source, raw, t.span.offset, t.name); err != nil {
		return Rows{}, err
	}
	size := int(t.kind.bytes)
	if f.turned {
		columns, rows := int(t.shape[0]), int(t.shape[1])
		out := make([]byte, 0, f.rows*columns*size)
		for r := f.first; r < f.first+f.rows; r++ {
			for c := range columns {
				at := (c*rows + r) * size
				out = append(out, raw[at:at+size]...)
			}
		}
		return Rows{kind, f.rows, columns, out}, nil
	}
	columns := int(t.shape[len(t.shape)-1])
	row := columns * size
	if experts > 0 {
		return Rows{kind, experts * f.rows, columns, raw}, nil
	}
	return Rows{kind, f.rows, columns, raw[f.first*row : (f.first+f.rows)*row]}, nil
}

// readStack reads the factors of all experts, one after another.
func (f factor) readStack(source *os.File, kind quant.Type) (Rows, error) {
	each := f.bytes(1)
	out := Rows{kind, len(f.stack) * f.rows, int(each) / f.rows / kind.Bytes(), make([]byte, int64(len(f.stack))*each)}
	for i, one := range f.stack {
		if one.tensor.name == "" {
			continue
		}
		rows, err := one.read(source, 0)
		if err != nil {
			return Rows{}, err
		}
		copy(out.Raw[int64(i)*each:], rows.Raw)
	}
	return out, nil
}

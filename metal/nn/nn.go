// Package nn is the layers that model families are made of: what holds weights
// and how they are loaded from a file under their canonical paths.
//
// It owns the step from a file's rows to a back end's matrices, load progress,
// and the release of both. It refuses a tensor whose type a layer cannot use.
// It knows no family: those live in arch.
//
// Start reading at Loader.
package nn

import (
	"context"
	"fmt"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Loader turns tensors of a file into layers on a back end. Everything it made
// is released by Release, whether or not loading went through.
type Loader struct {
	backend  tensor.Backend
	file     *weights.File
	progress func(bytes int64)
	matrices []tensor.Matrix
	vectors  []tensor.Array
}

// NewLoader prepares loading; progress is told the bytes of each piece read.
func NewLoader(b tensor.Backend, f *weights.File, progress func(bytes int64)) *Loader {
	if progress == nil {
		progress = func(int64) {}
	}
	b.SetPrecision(f.Precision())
	return &Loader{backend: b, file: f, progress: progress}
}

// Release frees everything this loader made.
func (l *Loader) Release() {
	for _, m := range l.matrices {
		m.Release()
	}
	sc := l.backend.NewScope(context.Background())
	for _, v := range l.vectors {
		sc.Release(v)
	}
	sc.Close()
	l.matrices, l.vectors = nil, nil
}

// Has reports whether the file holds the weight of a layer.
func (l *Loader) Has(path string) bool {
	_, ok := l.file.Entry(path + ".weight")
	return ok
}

// Linear is a product with a weight matrix, dense or quantised.
type Linear struct{ Matrix tensor.Matrix }

// Apply multiplies x [T, in].
func (l Linear) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	return s.Linear(x, l.Matrix)[0]
}

// Linear loads the matrix path+".weight".
func (l *Loader) Linear(ctx context.Context, path string) (Linear, error) {
	e, err := l.entry(path, 2)
	if err != nil {
		return Linear{}, err
	}
	m, err := l.backend.LoadMatrix(e.Format, int(e.Shape[0]), int(e.Shape[1]), func(put func(int, quant.Row) error) error {
		return l.file.Rows(ctx, e, func(row int, r quant.Row) error {
			l.progress(int64(len(r.Raw) + len(r.Scales) + len(r.Biases)))
			return put(row, r)
		})
	})
	if err != nil {
		return Linear{}, fmt.Errorf("load %s: %w", path, err)
	}
	l.matrices = append(l.matrices, m)
	return Linear{m}, nil
}

func (l *Loader) entry(path string, dims int) (weights.Entry, error) {
	e, ok := l.file.Entry(path + ".weight")
	if !ok {
		return e, fmt.Errorf("tensor %s.weight: %w", path, weights.ErrMissing)
	}
	if len(e.Shape) != dims {
		return e, fmt.Errorf("tensor %s.weight has shape %v, want %d dimensions: %w", path, e.Shape, dims, weights.ErrInvalid)
	}
	return e, nil
}

// vector loads path+".weight" as a kept array.
func (l *Loader) vector(ctx context.Context, path string) (tensor.Array, error) {
	e, err := l.entry(path, 1)
	if err != nil {
		return nil, err
	}
	var v tensor.Array
	err = l.file.Rows(ctx, e, func(_ int, r quant.Row) error {
		l.progress(int64(len(r.Raw)))
		v, err = l.backend.LoadVector(e.Format.Type, r.Raw)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	l.vectors = append(l.vectors, v)
	return v, nil
}

// Values reads path+".weight" as float32 values on the host.
func (l *Loader) Values(ctx context.Context, path string) ([]float32, error) {
	e, err := l.entry(path, 1)
	if err != nil {
		return nil, err
	}
	values := make([]float32, e.Shape[0])
	err = l.file.Rows(ctx, e, func(_ int, r quant.Row) error {
		l.progress(int64(len(r.Raw)))
		return e.Format.Dequantize(r, values)
	})
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	return values, nil
}

// RMSNorm scales runs of elements to unit root mean square and by its weight.
type RMSNorm struct {
	Weight tensor.Array
	Eps    float32
}

// Apply normalises x [T, D].
func (n RMSNorm) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	return s.RMSNorm(x, n.Weight, n.Eps)
}

// RMSNorm loads the norm path+".weight".
func (l *Loader) RMSNorm(ctx context.Context, path string, eps float64) (RMSNorm, error) {
	w, err := l.vector(ctx, path)
	return RMSNorm{Weight: w, Eps: float32(eps)}, err
}

// Embedding gathers rows by token id. Its matrix may also be the output head.
type Embedding struct{ Linear }

// Lookup gives the rows of ids.
func (e Embedding) Lookup(s tensor.Scope, ids tensor.Array) tensor.Array {
	return s.Embed(e.Matrix, ids)
}

// Embedding loads path+".weight".
func (l *Loader) Embedding(ctx context.Context, path string) (Embedding, error) {
	lin, err := l.Linear(ctx, path)
	return Embedding{lin}, err
}

// GatedMLP is down(silu(gate(x)) * up(x)).
type GatedMLP struct{ Gate, Up, Down Linear }

// Apply runs the block on x [T, D].
func (m GatedMLP) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	gu := s.Linear(x, m.Gate.Matrix, m.Up.Matrix)
	return m.Down.Apply(s, s.SwiGLU(gu[0], gu[1]))
}

// GatedMLP loads gate_proj, up_proj and down_proj below path.
func (l *Loader) GatedMLP(ctx context.Context, path string) (GatedMLP, error) {
	var m GatedMLP
	for _, p := range []struct {
		name string
		to   *Linear
	}{{".gate_proj", &m.Gate}, {".up_proj", &m.Up}, {".down_proj", &m.Down}} {
		lin, err := l.Linear(ctx, path+p.name)
		if err != nil {
			return m, err
		}
		*p.to = lin
	}
	return m, nil
}

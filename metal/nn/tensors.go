package nn

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// tensors reads the declared tensors of a file into matrices and vectors of a
// back end, and owns them.
type tensors struct {
	backend  tensor.Backend
	file     *weights.File
	progress func(bytes int64)
	// place is where each tensor stands in the file.
	place    map[string]int
	declared []piece
	fault    error // the first tensor that cannot be what was declared
	late     error // an error after a tensor was read
	matrices []tensor.Matrix
	vectors  []tensor.Array
	// layers are the matrices whose products an adapter can change, by path.
	layers map[string]tensor.Matrix
}

// piece is a declared tensor and how it is read.
type piece struct {
	place int
	entry weights.Entry
	read  func(r *weights.Reading) error
}

// Load reads the declared tensors in the order of the file. If a declaration
// failed, it returns that error and reads nothing.
func (t *tensors) Load(ctx context.Context) error {
	if t.fault != nil {
		return t.fault
	}
	slices.SortStableFunc(t.declared, func(a, b piece) int { return cmp.Compare(a.place, b.place) })
	var entries []weights.Entry
	for _, p := range t.declared {
		entries = append(entries, p.entry)
	}
	reading := t.file.Read(ctx, entries)
	defer reading.Close()
	for _, p := range t.declared {
		if err := p.read(reading); err != nil {
			return err
		}
		if t.late != nil {
			return t.late
		}
	}
	// The model outlives the file: its metadata and the pieces it was read in
	// must not stay with it.
	t.declared, t.file, t.place = nil, nil, nil
	return nil
}

// Release frees everything this loader made.
func (t *tensors) Release() {
	for _, m := range t.matrices {
		m.Release()
	}
	sc := t.backend.NewScope(context.Background())
	for _, v := range t.vectors {
		sc.Release(v)
	}
	sc.Close()
	t.matrices, t.vectors, t.layers = nil, nil, nil
}

// Has reports whether the file holds the weight of a layer.
func (t *tensors) Has(path string) bool {
	_, ok := t.file.Entry(path + ".weight")
	return ok
}

// holds reports whether a tensor is to be declared: it must be there, or it is.
func (t *tensors) holds(name string, must bool) bool {
	_, ok := t.file.Entry(name)
	return must || ok
}

func (t *tensors) declare(name string, dims int, read func(r *weights.Reading, e weights.Entry) error) {
	e, err := t.entry(name, dims)
	if err != nil {
		if t.fault == nil {
			t.fault = err
		}
		return
	}
	t.declared = append(t.declared, piece{t.place[e.Path], e, func(r *weights.Reading) error {
		if err := read(r, e); err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
		return nil
	}})
}

func (t *tensors) entry(name string, dims int) (weights.Entry, error) {
	e, ok := t.file.Entry(name)
	if !ok {
		return e, fmt.Errorf("tensor %s: %w", name, weights.ErrMissing)
	}
	if len(e.Shape) != dims {
		return e, fmt.Errorf("tensor %s has shape %v, want %d dimensions: %w", name, e.Shape, dims, weights.ErrInvalid)
	}
	return e, nil
}

// matrix declares path+".weight" as a matrix [out, in]; a tensor of three
// dimensions as stacked matrices.
func (t *tensors) matrix(path string, dims int, set func(tensor.Matrix)) {
	t.whole(path+".weight", dims, set)
}

// fill loads a matrix.
func (t *tensors) fill(reading *weights.Reading, e weights.Entry, set func(tensor.Matrix)) error {
	if _, remade := e.Made(); remade || e.Turned() {
		return t.remake(reading, e, set)
	}
	m, err := t.backend.LoadMatrix(e.Format, e.Rows(), e.Columns(), func(put func(int, quant.Row) error) error {
		return reading.Place(e, func(first int, r quant.Row) error {
			t.progress(int64(len(r.Raw) + len(r.Scales) + len(r.Biases)))
			return put(first, r)
		})
	})
	if err != nil {
		return err
	}
	t.matrices = append(t.matrices, m)
	set(m)
	return nil
}

// vector declares a tensor as a kept array.
func (t *tensors) vector(name string, set func(tensor.Array)) {
	t.declare(name, 1, func(reading *weights.Reading, e weights.Entry) error {
		return reading.Rows(e, func(_ int, r quant.Row) error {
			t.progress(int64(len(r.Raw)))
			v, err := t.backend.LoadVector(e.Format.Type, r.Raw)
			if err != nil {
				return err
			}
			t.vectors = append(t.vectors, v)
			set(v)
			return nil
		})
	})
}

// plusOne replaces the latest vector by one more than it.
func (t *tensors) plusOne(v tensor.Array) tensor.Array { return t.scaled(v, 1, 1) }

// scaled replaces the latest vector by scale times it, and shift more, in the type
// that the back end keeps it in.
func (t *tensors) scaled(v tensor.Array, scale, shift float32) tensor.Array {
	s := t.backend.NewScope(context.Background())
	defer s.Close()
	more := s.Map(v, tensor.ScaleShift{Scale: scale, Shift: shift})
	s.Wait(more)
	if err := s.Err(); err != nil {
		t.late = errors.Join(t.late, err)
		return v
	}
	more = s.Keep(more)
	s.Release(v)
	t.vectors[len(t.vectors)-1] = more
	return more
}

// values reads path+".weight" at once, as float32 values on the host.
func (t *tensors) values(ctx context.Context, path string) ([]float32, error) {
	e, err := t.entry(path+".weight", 1)
	if err != nil {
		return nil, err
	}
	values := make([]float32, e.Shape[0])
	err = t.file.Rows(ctx, e, func(_ int, r quant.Row) error {
		t.progress(int64(len(r.Raw)))
		return e.Format.Dequantize(r, values)
	})
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	return values, nil
}

// zeros is a kept vector of n zeros.
func (t *tensors) zeros(n int) tensor.Array { return t.constant(n, 0) }

// ones is a kept vector of n ones.
func (t *tensors) ones(n int) tensor.Array { return t.constant(n, 1) }

// constant has the type of the embedding, which is that of what layers compute: a vector
// in float32 would make float32 of all that comes after it.
func (t *tensors) constant(n int, value float32) tensor.Array {
	kind := quant.Float32
	if e, ok := t.file.Entry("model.embed_tokens.weight"); ok {
		kind = e.Format.Type
	}
	raw := make([]byte, n*kind.Bytes())
	for i := range n {
		kind.Put(raw, i, value)
	}
	v, err := t.backend.LoadVector(kind, raw)
	if err != nil {
		t.late = errors.Join(t.late, err)
		return nil
	}
	t.vectors = append(t.vectors, v)
	return v
}

// rawFloats are values as a file has them.
func rawFloats(values []float32) []byte {
	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return raw
}

// pair loads two matrices [out, in] at once, so that what both lie in is read
// once.
func (t *tensors) pair(e weights.Entry, out, in int, first, second *Linear, fill func(put [2]putRows) error) error {
	var err error
	var inner tensor.Matrix
	outer, err := t.backend.LoadMatrix(e.Format, out, in, func(one func(int, quant.Row) error) error {
		inner, err = t.backend.LoadMatrix(e.Format, out, in, func(other func(int, quant.Row) error) error {
			return fill([2]putRows{one, other})
		})
		return err
	})
	for _, m := range []tensor.Matrix{outer, inner} {
		if m != nil {
			t.matrices = append(t.matrices, m)
		}
	}
	if err != nil {
		return err
	}
	first.Matrix, second.Matrix = outer, inner
	return nil
}

// whole declares a tensor as a matrix under its whole name.
func (t *tensors) whole(name string, dims int, set func(tensor.Matrix)) {
	t.declare(name, dims, func(reading *weights.Reading, e weights.Entry) error {
		return t.fill(reading, e, set)
	})
}

// host declares a vector that stays with the caller as float32 values.
func (t *tensors) host(name string, to *[]float32) {
	t.declare(name, 1, func(reading *weights.Reading, e weights.Entry) error {
		*to = make([]float32, e.Shape[0])
		return reading.Rows(e, func(_ int, r quant.Row) error {
			t.progress(int64(len(r.Raw)))
			return e.Format.Dequantize(r, *to)
		})
	})
}

// maxOnHost is how large a matrix of a small model may be, in bytes, that is arranged in memory which
// no promise counts. That of a large one, such as an expert of Llama 4 as transformers stores it, may
// have this part of the model's bytes: both are within the slack of an engine's limit.
const (
	maxOnHost  = 32 << 20
	partOnHost = 64
)

// onHost refuses a matrix that is too large to be arranged in a model of this many bytes.
func onHost(e weights.Entry, model int64) error {
	numbers := int64(e.Rows()) * int64(e.Columns())
	if e.Turned() { // one matrix of a stack at a time
		_, taken := e.Taken()
		numbers = e.Shape[1] * int64(taken)
	}
	if n, most := numbers*int64(e.Format.Type.Bytes()), max(maxOnHost, model/partOnHost); n > most {
		return fmt.Errorf("a matrix of %d bytes is stored in another order, want at most %d: %w", n, most, weights.ErrUnsupported)
	}
	return nil
}

// flat declares a matrix as a kept array of all its rows, one after another.
func (t *tensors) flat(name string, set func(tensor.Array)) {
	t.arranged([]string{name}, 2, nil, set)
}

// arranged declares tensors with this number of dimensions as one kept array of all their
// rows. Where parts is not nil, the rows of the one tensor, or the numbers of a vector,
// are cut into parts of these lengths, which then follow one another from the last to
// the first.
func (t *tensors) arranged(names []string, dims int, parts []int, set func(tensor.Array)) {
	all, left := make([][]byte, len(names)), len(names)
	for at, name := range names {
		t.declare(name, dims, func(reading *weights.Reading, e weights.Entry) error {
			if err := onHost(e, t.file.Bytes()); err != nil {
				return err
			}
			row, unit := e.Columns()*e.Format.Type.Bytes(), e.Format.Type.Bytes()
			if dims > 1 {
				unit = row
			}
			all[at] = make([]byte, e.Rows()*row)
			err := reading.Rows(e, func(i int, r quant.Row) error {
				t.progress(int64(len(r.Raw)))
				copy(all[at][i*row:(i+1)*row], r.Raw)
				return nil
			})
			if left--; err != nil || left > 0 {
				return err
			}
			raw := slices.Concat(all...)
			if parts != nil {
				raw = backwards(raw, unit, parts)
			}
			v, err := t.backend.LoadVector(e.Format.Type, raw)
			if err != nil {
				return err
			}
			t.vectors = append(t.vectors, v)
			set(v)
			return nil
		})
	}
}

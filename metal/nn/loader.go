package nn

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Loader builds layers on a back end from the tensors of a file, in two steps:
// a family declares its layers, then Load reads their tensors in the order of
// the file. Release releases everything the loader made, also after an error.
type Loader struct {
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
	// normsLessOne: the weights of norms are stored minus one.
	normsLessOne bool
	// factors divide the frequencies of all rotations; nil where the file has none.
	factors []float32
}

// piece is a declared tensor and how it is read.
type piece struct {
	place int
	entry weights.Entry
	read  func(r *weights.Reading) error
}

// NewLoader prepares loading. It calls progress with the bytes of each row
// read, from two goroutines at once.
func NewLoader(b tensor.Backend, f *weights.File, progress func(bytes int64)) *Loader {
	if progress == nil {
		progress = func(int64) {}
	}
	b.SetPrecision(f.Precision())
	l := &Loader{backend: b, file: f, progress: progress, place: map[string]int{}}
	l.normsLessOne = f.NormsLessOne()
	for i, e := range f.Entries() {
		l.place[e.Path] = i
	}
	return l
}

// Load reads the declared tensors in the order of the file. If a declaration
// failed, it returns that error and reads nothing.
func (l *Loader) Load(ctx context.Context) error {
	if l.fault != nil {
		return l.fault
	}
	slices.SortStableFunc(l.declared, func(a, b piece) int { return cmp.Compare(a.place, b.place) })
	var entries []weights.Entry
	for _, p := range l.declared {
		entries = append(entries, p.entry)
	}
	reading := l.file.Read(ctx, entries)
	defer reading.Close()
	for _, p := range l.declared {
		if err := p.read(reading); err != nil {
			return err
		}
		if l.late != nil {
			return l.late
		}
	}
	// The model outlives the file: its metadata and the pieces it was read in
	// must not stay with it.
	l.declared, l.file, l.place = nil, nil, nil
	return nil
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

// holds reports whether a tensor is to be declared: it must be there, or it is.
func (l *Loader) holds(name string, must bool) bool {
	_, ok := l.file.Entry(name)
	return must || ok
}

func (l *Loader) declare(name string, dims int, read func(r *weights.Reading, e weights.Entry) error) {
	e, err := l.entry(name, dims)
	if err != nil {
		if l.fault == nil {
			l.fault = err
		}
		return
	}
	l.declared = append(l.declared, piece{l.place[e.Path], e, func(r *weights.Reading) error {
		if err := read(r, e); err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
		return nil
	}})
}

func (l *Loader) entry(name string, dims int) (weights.Entry, error) {
	e, ok := l.file.Entry(name)
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
func (l *Loader) matrix(path string, dims int, set func(tensor.Matrix)) {
	l.whole(path+".weight", dims, set)
}

// fill loads a matrix.
func (l *Loader) fill(reading *weights.Reading, e weights.Entry, set func(tensor.Matrix)) error {
	if e.Turned() {
		return l.turn(reading, e, set)
	}
	m, err := l.backend.LoadMatrix(e.Format, e.Rows(), e.Columns(), func(put func(int, quant.Row) error) error {
		return reading.Place(e, func(first int, r quant.Row) error {
			l.progress(int64(len(r.Raw) + len(r.Scales) + len(r.Biases)))
			return put(first, r)
		})
	})
	if err != nil {
		return err
	}
	l.matrices = append(l.matrices, m)
	set(m)
	return nil
}

// vector declares a tensor as a kept array.
func (l *Loader) vector(name string, set func(tensor.Array)) {
	l.declare(name, 1, func(reading *weights.Reading, e weights.Entry) error {
		return reading.Rows(e, func(_ int, r quant.Row) error {
			l.progress(int64(len(r.Raw)))
			v, err := l.backend.LoadVector(e.Format.Type, r.Raw)
			if err != nil {
				return err
			}
			l.vectors = append(l.vectors, v)
			set(v)
			return nil
		})
	})
}

// plusOne replaces the latest vector by one more than it.
func (l *Loader) plusOne(v tensor.Array) tensor.Array { return l.scaled(v, 1, 1) }

// scaled replaces the latest vector by scale times it, and shift more, in the type
// that the back end keeps it in.
func (l *Loader) scaled(v tensor.Array, scale, shift float32) tensor.Array {
	s := l.backend.NewScope(context.Background())
	defer s.Close()
	more := s.ScaleShift(v, scale, shift)
	s.Wait(more)
	if err := s.Err(); err != nil {
		l.late = errors.Join(l.late, err)
		return v
	}
	more = s.Keep(more)
	s.Release(v)
	l.vectors[len(l.vectors)-1] = more
	return more
}

// values reads path+".weight" at once, as float32 values on the host.
func (l *Loader) values(ctx context.Context, path string) ([]float32, error) {
	e, err := l.entry(path+".weight", 1)
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

// rotations reads the frequency divisors that a file may hold as a tensor (GGUF's
// llama3 scaling).
func (l *Loader) rotations(ctx context.Context) (err error) {
	const factors = "model.rope_freqs"
	if l.Has(factors) {
		l.factors, err = l.values(ctx, factors)
	}
	return err
}

// rope is how heads are rotated: as the dimensions say, or with the divisors that
// the file holds.
func (l *Loader) rope(r family.Rope) tensor.RopeSpec {
	spec := tensor.RopeSpec{Theta: r.Theta, Size: r.Size, Linear: r.Linear, Magnitude: r.Magnitude, Factors: r.Factors, Interleaved: r.Interleaved}
	if l.factors != nil {
		spec.Factors = l.factors
	}
	return spec
}

// zeros is a kept vector of n zeros.
func (l *Loader) zeros(n int) tensor.Array { return l.constant(n, 0) }

// ones is a kept vector of n ones.
func (l *Loader) ones(n int) tensor.Array { return l.constant(n, 1) }

func (l *Loader) constant(n int, value float32) tensor.Array {
	raw := make([]byte, 0, 4*n)
	for range n {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(value))
	}
	v, err := l.backend.LoadVector(quant.Float32, raw)
	if err != nil {
		l.late = errors.Join(l.late, err)
		return nil
	}
	l.vectors = append(l.vectors, v)
	return v
}

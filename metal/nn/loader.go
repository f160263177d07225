package nn

import (
	"context"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Loader builds layers on a back end from the tensors of a file, in two steps:
// a family declares its layers, then Load reads their tensors in the order of
// the file. Release releases everything the loader made, also after an error.
//
// Its methods declare single tensors and the parameters of one product or norm;
// newBlock, newAttention, newExperts and the other constructors declare whole
// layers with them.
type Loader struct {
	tensors
	// normsLessOne: the weights of norms are stored minus one.
	normsLessOne bool
	// factors divide the frequencies of all rotations; nil where the file has none.
	factors []float32
}

// NewLoader prepares loading. It calls progress with the bytes of each row
// read, from two goroutines at once.
func NewLoader(b tensor.Backend, f *weights.File, progress func(bytes int64)) *Loader {
	if progress == nil {
		progress = func(int64) {}
	}
	b.SetPrecision(f.Precision())
	l := &Loader{tensors: tensors{backend: b, file: f, progress: progress, place: map[string]int{}, layers: map[string]tensor.Matrix{}}}
	l.normsLessOne = f.NormsLessOne()
	for i, e := range f.Entries() {
		l.place[e.Path] = i
	}
	return l
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

package ref_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// benchFormats are those that models come in most.
func benchFormats() []quant.Format {
	return []quant.Format{
		quant.AffineOf(4, 32, quant.Float16), quant.SymmetricOf(4, 32, quant.Float16),
		quant.AffineOf(8, 32, quant.Float16), quant.SymmetricOf(8, 32, quant.Float16),
		quant.AffineOf(4, 64, quant.BFloat16), quant.AffineOf(4, 64, quant.Float32), quant.AffineOf(2, 64, quant.BFloat16), quant.AffineOf(3, 64, quant.BFloat16),
		quant.AffineOf(5, 64, quant.BFloat16), quant.AffineOf(6, 64, quant.BFloat16), quant.AffineOf(8, 64, quant.BFloat16),
		quant.DenseOf(quant.BFloat16), quant.DenseOf(quant.Float16), quant.DenseOf(quant.Float32),
	}
}

// randomMatrix loads random rows whose scales and biases are small.
func randomMatrix(b testing.TB, be tensor.Backend, f quant.Format, out, in int) tensor.Matrix {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	row, err := f.NewRow(in)
	if err != nil {
		b.Fatal(err)
	}
	m, err := be.LoadMatrix(f, out, in, func(put func(int, quant.Row) error) error {
		for i := range out {
			randomRow(rng, f, row)
			if err := put(i, row); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return m
}

func randomRow(rng *rand.Rand, f quant.Format, row quant.Row) {
	if !f.Quantized() {
		for i := range len(row.Raw) / f.Type.Bytes() {
			f.Type.Put(row.Raw, i, float32(rng.NormFloat64()))
		}
		return
	}
	for i := range row.Raw {
		row.Raw[i] = byte(rng.Uint32())
	}
	for g := range len(row.Scales) / f.Type.Bytes() {
		f.Type.Put(row.Scales, g, rng.Float32()*0.01)
		if f.Mode == quant.Affine {
			f.Type.Put(row.Biases, g, -rng.Float32()*0.1)
		}
	}
}

// BenchmarkLinear multiplies as one feed-forward layer of SmolLM2 does, on one
// thread; ns/weight is the time of one weight for one token.
func BenchmarkLinear(b *testing.B) {
	const out, in = 1536, 576
	for _, f := range benchFormats() {
		for _, tokens := range []int{1, 2, 64} {
			b.Run(fmt.Sprintf("%v/tokens=%d", f, tokens), func(b *testing.B) {
				be := ref.New(ref.Options{Threads: 1})
				defer be.Close()
				m := randomMatrix(b, be, f, out, in)
				defer m.Release()
				x := make([]float32, tokens*in)
				for i := range x {
					x[i] = float32(i%17) - 8.5
				}
				for b.Loop() {
					s := be.NewScope(context.Background())
					s.Linear(s.From(x, tokens, in), m)
					if err := s.Err(); err != nil {
						b.Fatal(err)
					}
					s.Close()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(tokens*out*in), "ns/weight")
			})
		}
	}
}

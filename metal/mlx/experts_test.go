//go:build mlx

package mlx

import (
	"context"
	"errors"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// The framework gathers dense matrices in float32 alone on a processor
// (GatherMM::eval), and would say so in the middle of a step.
func TestDenseExpertsInHalfPrecisionAreRefusedOnAProcessor(t *testing.T) {
	b := New(Options{})
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	if b.GPU() {
		t.Skip("a GPU has them in every type")
	}
	f := quant.DenseOf(quant.BFloat16)
	m, err := b.LoadMatrix(f, 4, 8, func(put func(int, quant.Row) error) error {
		return put(0, quant.Row{Raw: make([]byte, 4*8*2)})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	s := b.NewScope(context.Background())
	defer s.Close()
	s.LinearOf(s.From(make([]float32, 8), 1, 8), s.IDs([]int32{1}), 2, m)
	if err := s.Err(); !errors.Is(err, tensor.ErrUnsupported) {
		t.Errorf("error %v, want ErrUnsupported", err)
	}
}

package ref_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
)

// BenchmarkPut loads one matrix from memory again and again; GB/s counts the
// bytes of its rows.
func BenchmarkPut(b *testing.B) {
	const out, in = 4096, 4096
	for _, f := range []quant.Format{
		quant.AffineOf(4, 64, quant.BFloat16), quant.AffineOf(4, 32, quant.Float16), quant.AffineOf(8, 64, quant.BFloat16),
		quant.AffineOf(3, 64, quant.BFloat16), quant.AffineOf(6, 64, quant.BFloat16), quant.DenseOf(quant.BFloat16),
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		rows := make([]quant.Row, 64) // as many as a reader has at hand
		for i := range rows {
			var err error
			if rows[i], err = f.NewRow(in); err != nil {
				b.Fatal(err)
			}
			randomRow(rng, f, rows[i])
		}
		sizes, _ := f.Sizes(in)
		for _, readers := range []int{1, 2} {
			b.Run(fmt.Sprintf("%v/readers=%d", f, readers), func(b *testing.B) {
				be := ref.New(ref.Options{Threads: 1})
				defer be.Close()
				for b.Loop() {
					m, err := be.LoadMatrix(f, out, in, func(put func(int, quant.Row) error) error {
						return parallel(readers, out, func(row int) error { return put(row, rows[row%len(rows)]) })
					})
					if err != nil {
						b.Fatal(err)
					}
					m.Release()
				}
				b.SetBytes(int64(out * sizes.Sum()))
			})
		}
	}
}

// parallel shares rows among goroutines in ranges.
func parallel(readers, rows int, do func(row int) error) error {
	errs := make([]error, readers)
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			for row := rows * i / readers; row < rows*(i+1)/readers && errs[i] == nil; row++ {
				errs[i] = do(row)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

package selftest

import (
	"fmt"
	"math"
	"time"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// speeds are measured with one matrix, 4 bits in groups of 64 with bfloat16
// scales. They have no limit: they are for comparing machines.
func speeds() []check {
	return []check{
		{"speed: 1 token by 4-bit weights", func(x *bench) {
			const size = 8192
			x.speed(size, 1)
			x.Value, x.Unit = x.Value*4.5/8/1e9, "GB/s" // 4 bits, and 2 numbers of 16 bits for 64
		}},
		{"speed: 128 tokens by 4-bit weights", func(x *bench) {
			const size = 2048
			x.speed(size, 128)
			x.Value, x.Unit = x.Value*2*128/1e9, "GFLOP/s"
		}},
	}
}

// speed multiplies tokens by a square matrix again and again, each product by
// the one before, until that takes long enough to measure. Value is how many
// weights went through in a second.
func (x *bench) speed(size, tokens int) {
	const enough, most = 300 * time.Millisecond, 1 << 14
	if !x.start(native()) {
		return
	}
	f := quant.AffineOf(4, 64, quant.BFloat16)
	some, _ := x.rows(f, 64, size)
	// What a row of q - 7.5 has a spread of, so that products neither grow nor
	// vanish.
	scale := float32(1 / (4.61 * math.Sqrt(float64(size))))
	for _, r := range some {
		for g := range size / f.Group {
			f.Type.Put(r.Scales, g, scale)
			f.Type.Put(r.Biases, g, -7.5*scale)
		}
	}
	rows := make([]quant.Row, size)
	for i := range rows {
		rows[i] = some[i*31%len(some)]
	}
	m := x.load(f, rows, size)
	if m == nil {
		return
	}
	values := x.random(tokens * size)
	var took time.Duration
	products := 1
	for n := 1; ; n *= 4 { // the first round warms up
		began := time.Now()
		x.chain(m, values, tokens, size, n)
		took, products = time.Since(began), n
		if x.failed() || took > enough || n >= most {
			break
		}
	}
	x.Value = float64(products) * float64(size) * float64(size) / took.Seconds()
	x.Note = fmt.Sprintf("%d products with %d x %d in %d ms", products, size, size, took.Milliseconds())
}

// chain computes n products, each of the one before.
func (x *bench) chain(m tensor.Matrix, values []float32, tokens, size, n int) {
	s := x.b.NewScope(x.ctx)
	defer s.Close()
	a := s.From(values, tokens, size)
	for range n {
		next := s.Linear(a, m)[0]
		s.Release(a)
		a = next
	}
	s.Wait(a)
	x.fail(s.Err())
}

package selftest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// bench is one check while it runs: a back end once it was started, a scope on
// it, and the result so far. After its first fault nothing more counts.
type bench struct {
	Result
	ctx       context.Context
	open      func() (tensor.Backend, error)
	tolerance tolerance
	mode      mode

	b        tensor.Backend
	s        tensor.Scope
	rng      *rand.Rand
	matrices []tensor.Matrix
	vectors  []tensor.Array
	caches   []tensor.Cache
}

func (x *bench) fail(err error) {
	if err != nil && x.Error == "" {
		x.Error = err.Error()
	}
}

func (x *bench) failed() bool { return x.Error != "" }

// start opens the back end for weights of a mode, and a scope.
func (x *bench) start(m mode) bool {
	b, err := x.open()
	if err != nil {
		x.fail(err)
		return false
	}
	if err := b.Attach(); err != nil {
		x.fail(errors.Join(fmt.Errorf("attach: %w", err), b.Close()))
		return false
	}
	b.SetPrecision(m.t)
	x.b, x.mode, x.s, x.rng = b, m, b.NewScope(x.ctx), rand.New(rand.NewPCG(1, 2))
	return true
}

// stop gives everything back, and wants the gauges at zero then.
func (x *bench) stop() {
	if x.b == nil {
		return
	}
	x.fail(x.s.Err())
	for _, c := range x.caches {
		c.Release()
	}
	for _, m := range x.matrices {
		m.Release()
	}
	for _, v := range x.vectors {
		x.s.Release(v)
	}
	x.s.Close()
	x.fail(x.b.Trim()) // a GPU lets go of what it read only once it ended
	if m := x.b.Memory(); m.Active() != 0 || m.Live != 0 {
		x.fail(fmt.Errorf("after everything was released, the gauges report %d bytes of weights, %d of KV, %d in %d arrays", m.Weights, m.KV, m.Arrays, m.Live))
	}
	x.fail(x.b.Close())
	x.b, x.matrices, x.vectors, x.caches = nil, nil, nil, nil
}

// random numbers as the mode's type has them.
func (x *bench) random(n int) []float32 {
	v, raw := make([]float32, n), make([]byte, 4)
	for i := range v {
		x.mode.t.Put(raw, 0, float32(x.rng.NormFloat64()))
		v[i] = x.mode.t.At(raw, 0)
	}
	return v
}

// array is what a back end makes of values [rows, width] in the mode's type.
// Arrays that the host hands over are float32: others come out of a matrix.
func (x *bench) array(values []float32, rows, width int) tensor.Array {
	if x.mode.t == quant.Float32 {
		return x.s.From(values, rows, width)
	}
	m := x.dense(values, rows, width)
	ids := make([]int32, rows)
	for i := range ids {
		ids[i] = int32(i)
	}
	if m == nil {
		return x.s.From(values, rows, width)
	}
	return x.s.Embed(m, x.s.IDs(ids))
}

// dense loads values as a matrix in the mode's type; nil after a fault.
func (x *bench) dense(values []float32, rows, width int) tensor.Matrix {
	all := make([]quant.Row, rows)
	for r := range all {
		all[r].Raw = make([]byte, width*x.mode.t.Bytes())
		for i := range width {
			x.mode.t.Put(all[r].Raw, i, values[r*width+i])
		}
	}
	return x.load(quant.DenseOf(x.mode.t), all, width)
}

// load makes a matrix of rows, which lives as long as the back end; nil after a
// fault.
func (x *bench) load(f quant.Format, rows []quant.Row, width int) tensor.Matrix {
	m, err := x.b.LoadMatrix(f, len(rows), width, func(put func(int, quant.Row) error) error {
		for i, r := range rows {
			if err := put(i, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		x.fail(fmt.Errorf("load %v [%d, %d]: %w", f, len(rows), width, err))
		return nil
	}
	x.matrices = append(x.matrices, m)
	return m
}

// vector loads values in the mode's type.
func (x *bench) vector(values []float32) tensor.Array {
	raw := make([]byte, len(values)*x.mode.t.Bytes())
	for i, v := range values {
		x.mode.t.Put(raw, i, v)
	}
	a, err := x.b.LoadVector(x.mode.t, raw)
	if err != nil {
		x.fail(fmt.Errorf("load a vector of %v: %w", x.mode.t, err))
		return x.s.From(values, len(values))
	}
	x.vectors = append(x.vectors, a)
	return a
}

// read computes an array of n numbers.
func (x *bench) read(a tensor.Array, n int) []float32 {
	out := make([]float32, n)
	x.s.Read(a, out)
	x.fail(x.s.Err())
	return out
}

// near compares with an oracle. The figure is the largest error of all, as a
// part of the largest value of its case; limit is the most it may be.
func (x *bench) near(what string, got []float32, want []float64, limit float64) {
	x.Unit, x.Limit = "relative error", max(x.Limit, limit)
	if x.failed() {
		return
	}
	if len(got) != len(want) {
		x.fail(fmt.Errorf("%s: %d values, want %d", what, len(got), len(want)))
		return
	}
	top := 1e-30
	for _, v := range want {
		top = max(top, math.Abs(v))
	}
	for i := range got {
		e := math.Abs(float64(got[i])-want[i]) / top
		if e > x.Value {
			x.Value = e
		}
		if !(e <= limit) {
			x.fail(fmt.Errorf("%s: value %d is %v, want %v: error of %.3g relative to the largest value, want at most %.3g", what, i, got[i], want[i], e, limit))
			return
		}
	}
}

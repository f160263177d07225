package tensortest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// operation makes its operands, and gives what is to be computed of them.
type operation func(x *bench, sc tensor.Scope) func() tensor.Array

// Operations under a limit have results, or caches, of 1 MiB and more.
const limitRows, limitWidth = 64, 4096

// operations on what has its own kinds of operands.
func operations() map[string]operation {
	return map[string]operation{
		"From": func(_ *bench, sc tensor.Scope) func() tensor.Array {
			return func() tensor.Array { return sc.From(make([]float32, limitRows*limitWidth), limitRows, limitWidth) }
		},
		"IDs": func(_ *bench, sc tensor.Scope) func() tensor.Array {
			return func() tensor.Array { return sc.IDs(make([]int32, limitRows*limitWidth)) }
		},
		"Embed": func(x *bench, sc tensor.Scope) func() tensor.Array {
			m, _ := x.matrix(quant.DenseOf(quant.Float16), 3, limitWidth)
			ids := sc.IDs(make([]int32, 2*limitRows))
			return func() tensor.Array { return sc.Embed(m, ids) }
		},
		"Linear": func(x *bench, sc tensor.Scope) func() tensor.Array {
			m, _ := x.matrix(quant.AffineOf(4, 64, quant.BFloat16), limitWidth, 64)
			a := sc.From(make([]float32, 2*limitRows*64), 2*limitRows, 64)
			return func() tensor.Array { return sc.Linear(a, m)[0] }
		},
		"LinearOf": func(x *bench, sc tensor.Scope) func() tensor.Array {
			m, _ := x.matrix(quant.AffineOf(4, 64, quant.BFloat16), 2*limitWidth, 64)
			a, ids := sc.From(make([]float32, 2*limitRows*64), 2*limitRows, 64), sc.IDs(make([]int32, 2*limitRows))
			return func() tensor.Array { return sc.LinearOf(a, ids, 2, m)[0] }
		},
		"LinearBias": func(x *bench, sc tensor.Scope) func() tensor.Array {
			m, _ := x.matrix(quant.DenseOf(quant.Float32), limitWidth, 8)
			a, bias := sc.From(make([]float32, 2*limitRows*8), 2*limitRows, 8), sc.From(make([]float32, limitWidth), limitWidth)
			return func() tensor.Array { return sc.LinearBias(a, []tensor.Matrix{m}, []tensor.Array{bias})[0] }
		},
		"Linear, dense": func(x *bench, sc tensor.Scope) func() tensor.Array {
			m, _ := x.matrix(quant.DenseOf(quant.Float32), limitWidth, 8)
			a := sc.From(make([]float32, 2*limitRows*8), 2*limitRows, 8)
			return func() tensor.Array { return sc.Linear(a, m)[0] }
		},
		"Argmax": func(_ *bench, sc tensor.Scope) func() tensor.Array {
			a := sc.From(make([]float32, limitRows*limitWidth), limitRows*limitWidth, 1)
			return func() tensor.Array { return sc.Argmax(a, 1) }
		},
		"Recur": recurOperation,
		"AppendAttend": func(x *bench, sc tensor.Scope) func() tensor.Array {
			cache, err := x.b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: 64, BlockTokens: limitWidth})
			if err != nil {
				x.t.Fatal(err)
			}
			x.t.Cleanup(cache.Release)
			a, one := sc.From(make([]float32, 64), 1, 64), []tensor.Segment{{Request: 1, Length: 1}}
			return func() tensor.Array {
				return sc.AppendAttend(tensor.AttendSpec{Cache: cache, Segments: one, Q: a, K: a, V: a, Scale: 1})
			}
		},
	}
}

// recurOperation has a state of 1 MiB and more; its other arrays are small.
func recurOperation(x *bench, sc tensor.Scope) func() tensor.Array {
	c := recurCase{RecurrentSpec: tensor.RecurrentSpec{Layers: 1, KeyHeads: 1, KeySize: 64, ValueHeads: 8, ValueSize: limitWidth / 8, Taps: 2}}
	cache := x.recurrentCache(c)
	x.t.Cleanup(cache.Release)
	spec := x.recurOperands(sc, c, 1).spec
	spec.Cache, spec.Segments = cache, []tensor.Segment{{Request: 1, Length: 1}}
	return func() tensor.Array { return sc.Recur(spec) }
}

// onOneArrayOfStreams are operations of parallel residuals on one array.
func onOneArrayOfStreams() map[string]func(sc tensor.Scope, a tensor.Array) tensor.Array {
	return map[string]func(sc tensor.Scope, a tensor.Array) tensor.Array{
		"Exceed": func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Exceed(a, 1) },
		"MixRuns": func(sc tensor.Scope, a tensor.Array) tensor.Array {
			return sc.MixRuns(a, sc.From(make([]float32, limitRows), limitRows, 1), 1)
		},
		"Level": func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Level(a, a, 0) },
	}
}

// onOneArrayByValue are those that take a function, a gate or a router.
func onOneArrayByValue() map[string]func(sc tensor.Scope, a tensor.Array) tensor.Array {
	all := map[string]func(sc tensor.Scope, a tensor.Array) tensor.Array{}
	for _, f := range []tensor.Function{tensor.SiLU{}, tensor.Softplus{}, tensor.ReLU2{}, tensor.XIELU{Positive: 1, Negative: 1, Beta: 0.5}, tensor.ScaleShift{Scale: 2, Shift: 1}} {
		all[f.Function()] = func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Map(a, f) }
	}
	for _, g := range []tensor.GLU{tensor.SwiGLU{}, tensor.GeGLU{}, tensor.LimitedSwiGLU{Limit: 7}, tensor.ClampedSwiGLU{Alpha: 1.702, Limit: 7}} {
		all[g.GLU()] = func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.GLU(a, a, g) }
	}
	for name, spec := range map[string]tensor.RouteSpec{
		"Route": {K: limitWidth, Normalized: true, Rounded: true}, "RouteTop": {K: limitWidth, SoftmaxLast: true}, "RouteBy": {K: limitWidth, Sigmoid: true},
	} {
		all[name] = func(sc tensor.Scope, a tensor.Array) tensor.Array {
			_, shares := sc.Route(a, spec)
			return shares
		}
	}
	return all
}

// onOneArray are operations on one array [64, 4096].
func onOneArray() map[string]func(sc tensor.Scope, a tensor.Array) tensor.Array {
	return map[string]func(sc tensor.Scope, a tensor.Array) tensor.Array{
		"Rows": func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Rows(a, make([]int, 2*limitRows)) },
		"Place": func(sc tensor.Scope, a tensor.Array) tensor.Array {
			return sc.Place(a, make([]int, 1), sc.Rows(a, []int{0}))
		},
		"Add":      func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Add(a, a) },
		"Multiply": func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Multiply(a, a) },
		"Combine": func(sc tensor.Scope, a tensor.Array) tensor.Array {
			return sc.Combine(a, sc.From(make([]float32, limitRows), limitRows, 1))
		},
		"RMSNorm": func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.RMSNorm(a, sc.From([]float32{1}, 1), 1) },
		"Split":   func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Split(a, limitWidth/2, limitWidth/2)[0] },
		"Join": func(sc tensor.Scope, a tensor.Array) tensor.Array {
			return sc.Join([]tensor.Array{a, a}, limitWidth, limitWidth)
		},
		"SigmoidGate": func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.SigmoidGate(a, a) },
		"AddGated": func(sc tensor.Scope, a tensor.Array) tensor.Array {
			return sc.AddGated(a, a, sc.From(make([]float32, limitRows), limitRows, 1))
		},
		"RMSNormGate": func(sc tensor.Scope, a tensor.Array) tensor.Array {
			return sc.RMSNormGate(a, a, sc.From([]float32{1}, 1), 1)
		},
		"Unit": func(sc tensor.Scope, a tensor.Array) tensor.Array { return sc.Unit(a) },
		"Rope": func(sc tensor.Scope, a tensor.Array) tensor.Array {
			return sc.Rope(a, []tensor.Segment{{Request: 1, Length: limitRows}}, 64, tensor.RopeSpec{Theta: 1e4, Size: 64})
		},
		"Mean": func(sc tensor.Scope, a tensor.Array) tensor.Array {
			segments := make([]tensor.Segment, limitRows)
			for i := range segments {
				segments[i] = tensor.Segment{Request: tensor.RequestID(i), Length: 1}
			}
			return sc.Mean(a, segments, nil)
		},
	}
}

// limits wants each operation to be refused where its result does not fit, to
// leave nothing behind, and to work once there is room.
func (s Suite) limits(t *testing.T) {
	all, onOne := operations(), onOneArray()
	maps.Copy(onOne, onOneArrayByValue())
	maps.Copy(onOne, onOneArrayOfEncoders())
	maps.Copy(onOne, onOneArrayOfStreams())
	for name, run := range onOne {
		all[name] = func(_ *bench, sc tensor.Scope) func() tensor.Array {
			a := sc.From(make([]float32, limitRows*limitWidth), limitRows, limitWidth)
			return func() tensor.Array { return run(sc, a) }
		}
	}
	for name, prepare := range all {
		t.Run(name, func(t *testing.T) {
			x := s.open(t)
			sc := x.b.NewScope(context.Background())
			run := prepare(x, sc)
			sc.Wait()
			if err := sc.Err(); err != nil {
				t.Fatal(err)
			}
			before := x.b.Memory()
			x.b.SetLimits(before.Active()+200<<10, 0)
			sc.Wait(run())
			if err := sc.Err(); !errors.Is(err, tensor.ErrMemory) {
				t.Errorf("under a limit: error %v, want ErrMemory", err)
			}
			if after := x.b.Memory(); after.KV != 0 {
				t.Errorf("refused operations left %d bytes of KV", after.KV)
			}
			sc.Close()
			if after := x.b.Memory(); after.Live != 0 || after.Arrays > before.Arrays {
				t.Errorf("%d arrays of %d bytes are left", after.Live, after.Arrays)
			}
			x.b.SetLimits(0, 0)
			again := x.b.NewScope(context.Background())
			defer again.Close()
			again.Wait(prepare(x, again)())
			if err := again.Err(); err != nil {
				t.Errorf("without a limit: %v", err)
			}
		})
	}
}

// trim returns what is pooled, and nothing that is in use.
func (s Suite) trim(t *testing.T) {
	x := s.open(t)
	kept := x.s.From([]float32{1, 2, 3}, 3)
	gone := x.s.From(make([]float32, 1<<20), 1<<20)
	x.s.Wait(gone, kept)
	x.s.Release(gone)
	before := x.b.Memory()
	if err := x.b.Trim(); err != nil {
		t.Fatal(err)
	}
	if after := x.b.Memory(); after.Pooled != 0 || after.Active() > before.Active() || after.Live != before.Live {
		t.Errorf("after a trim memory is %+v, was %+v", after, before)
	}
	if got := x.read(kept); got[0] != 1 || got[2] != 3 {
		t.Errorf("an array in use is %v after a trim", got)
	}
}

// peak runs many layers as families do, which release a layer's arrays when it
// ends. Two dozen layers must fit in the memory of four.
func (s Suite) peak(t *testing.T) {
	x := s.open(t)
	const layers, tokens, hidden, inner = 24, 32, 256, 512
	// What a layer makes, in float32: a norm, gate and up, their product, and
	// what comes back.
	const layerBytes = 4 * tokens * (hidden + 3*inner + 2*hidden)
	f := quant.AffineOf(4, 64, quant.BFloat16)
	gate, _ := x.matrix(f, inner, hidden)
	up, _ := x.matrix(f, inner, hidden)
	down, _ := x.matrix(f, hidden, inner)
	weights := x.b.Memory().Weights
	x.b.SetLimits(weights+4*layerBytes, 0)

	sc := x.b.NewScope(context.Background())
	defer sc.Close()
	one := sc.From([]float32{1}, 1)
	h := sc.From(x.random(tokens*hidden), tokens, hidden)
	for range layers {
		child := sc.Child()
		gu := child.Linear(child.RMSNorm(h, one, 1e-5), gate, up)
		next := child.Keep(child.Add(h, child.Linear(child.GLU(gu[0], gu[1], tensor.SwiGLU{}), down)[0]))
		child.Close()
		sc.Release(h)
		h = next
	}
	sc.Read(h, make([]float32, tokens*hidden))
	if err := sc.Err(); err != nil {
		t.Fatalf("%d layers under a limit of four: %v", layers, err)
	}
	if m := x.b.Memory(); m.Live != 2 {
		t.Errorf("%d arrays are alive after the last layer, want 2", m.Live)
	}
	if p, ok := x.b.(interface{ Peak() int64 }); ok && p.Peak() > weights+4*layerBytes {
		t.Errorf("the peak is %d bytes, weights are %d and a layer's arrays %d", p.Peak(), weights, layerBytes)
	}
}

// released arrays, matrices and scopes are refused wherever they are used.
func (s Suite) released(t *testing.T) {
	x := s.open(t)
	gone, err := x.b.LoadMatrix(quant.DenseOf(quant.Float32), 1, 4, func(put func(int, quant.Row) error) error {
		return put(0, quant.Row{Raw: make([]byte, 16)})
	})
	if err != nil {
		t.Fatal(err)
	}
	gone.Release()
	gone.Release()
	m, _ := x.matrix(quant.DenseOf(quant.Float32), 5, 4)
	seg := []tensor.Segment{{Request: 1, Length: 1}}
	all := releasedOfExperts(m, gone)
	maps.Copy(all, releasedOfEncoders())
	maps.Copy(all, map[string]func(sc tensor.Scope, a tensor.Array){
		"Add":         func(sc tensor.Scope, a tensor.Array) { sc.Add(sc.From(make([]float32, 4), 1, 4), a) },
		"SwiGLU":      func(sc tensor.Scope, a tensor.Array) { sc.GLU(a, sc.From(make([]float32, 4), 1, 4), tensor.SwiGLU{}) },
		"SiLU":        func(sc tensor.Scope, a tensor.Array) { sc.Map(a, tensor.SiLU{}) },
		"Rows":        func(sc tensor.Scope, a tensor.Array) { sc.Rows(a, []int{0}) },
		"Argmax":      func(sc tensor.Scope, a tensor.Array) { sc.Argmax(a, 1) },
		"Mean":        func(sc tensor.Scope, a tensor.Array) { sc.Mean(a, seg, nil) },
		"Unit":        func(sc tensor.Scope, a tensor.Array) { sc.Unit(a) },
		"RMSNorm":     func(sc tensor.Scope, a tensor.Array) { sc.RMSNorm(a, sc.From([]float32{1}, 1), 0) },
		"Rope":        func(sc tensor.Scope, a tensor.Array) { sc.Rope(a, seg, 4, tensor.RopeSpec{Theta: 10, Size: 4}) },
		"Split":       func(sc tensor.Scope, a tensor.Array) { sc.Split(a, 2, 2) },
		"SigmoidGate": func(sc tensor.Scope, a tensor.Array) { sc.SigmoidGate(sc.From(make([]float32, 4), 1, 4), a) },
		"AddGated":    func(sc tensor.Scope, a tensor.Array) { sc.AddGated(a, a, sc.From([]float32{1}, 1, 1)) },
		"RMSNormGate": func(sc tensor.Scope, a tensor.Array) { sc.RMSNormGate(a, a, sc.From([]float32{1}, 1), 0) },
		"Read":        func(sc tensor.Scope, a tensor.Array) { sc.Read(a, make([]float32, 4)) },
		"Embed":       func(sc tensor.Scope, a tensor.Array) { sc.Embed(m, a) },
		"Linear":      func(sc tensor.Scope, a tensor.Array) { sc.Linear(a, m) },
		"Keep":        func(sc tensor.Scope, a tensor.Array) { sc.Keep(a) },
		"Keep twice": func(sc tensor.Scope, _ tensor.Array) {
			b := sc.From([]float32{1}, 1)
			defer sc.Release(b)
			sc.Keep(sc.Keep(b))
		},
		"gone matrix": func(sc tensor.Scope, _ tensor.Array) { sc.Linear(sc.From(make([]float32, 4), 1, 4), gone) },
		"gone table":  func(sc tensor.Scope, _ tensor.Array) { sc.Embed(gone, sc.IDs([]int32{0})) },
		"no array":    func(sc tensor.Scope, _ tensor.Array) { sc.Map(nil, tensor.SiLU{}) },
		"no matrix":   func(sc tensor.Scope, _ tensor.Array) { sc.Linear(sc.From(make([]float32, 4), 1, 4), nil) },
		"closed scope": func(sc tensor.Scope, _ tensor.Array) {
			sc.Close()
			sc.From([]float32{1}, 1)
		},
	})
	for name, run := range all {
		sc := x.b.NewScope(context.Background())
		a := sc.From(make([]float32, 4), 1, 4)
		sc.Release(a)
		run(sc, a)
		if err := sc.Err(); !errors.Is(err, tensor.ErrReleased) {
			t.Errorf("%s: error %v, want ErrReleased", name, err)
		}
		sc.Close()
		if n := x.b.Memory().Live; n != 0 {
			t.Fatalf("%s: %d arrays are left", name, n)
		}
	}
}

// thread attaches from a goroutine that did not make the back end. A third
// goroutine is refused, or works as well if the back end allows any thread; the
// first one continues to work.
func (s Suite) thread(t *testing.T) {
	b := s.New(t)
	attached, tried := make(chan error), make(chan struct{})
	ended := make(chan error)
	double := func() error {
		sc := b.NewScope(context.Background())
		defer sc.Close()
		a, got := sc.From([]float32{3}, 1), make([]float32, 1)
		sc.Read(sc.Add(a, a), got)
		if err := sc.Err(); err != nil {
			return err
		}
		if got[0] != 6 {
			return fmt.Errorf("3 and 3 are %v", got[0])
		}
		return nil
	}
	go func() {
		err := errors.Join(b.Attach(), double())
		attached <- err
		<-tried
		ended <- errors.Join(double(), b.Close())
	}()
	if err := <-attached; err != nil {
		t.Errorf("the goroutine that attached: %v", err)
	}
	if err := double(); err != nil && !errors.Is(err, tensor.ErrThread) {
		t.Errorf("another goroutine: error %v, want none or ErrThread", err)
	}
	close(tried)
	if err := <-ended; err != nil {
		t.Errorf("the goroutine that attached, after another: %v", err)
	}
}

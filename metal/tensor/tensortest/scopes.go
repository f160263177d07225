package tensortest

import (
	"context"
	"errors"
	"maps"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

func (s Suite) lifetime(t *testing.T) {
	x := s.open(t)
	top := x.b.NewScope(context.Background())
	child := top.Child()
	a := child.From([]float32{1, 2}, 2)
	b := child.Add(a, a)
	child.Keep(b)
	child.Close()
	child.Close()
	if live := x.b.Memory().Live; live != 1 {
		t.Fatalf("%d arrays live after the child closed, want the kept one", live)
	}
	c := top.Keep(top.Multiply(b, b))
	top.Close()
	if live := x.b.Memory().Live; live != 1 {
		t.Fatalf("%d arrays live after the top scope closed, want the kept one", live)
	}
	later := x.b.NewScope(context.Background())
	got := make([]float32, 2)
	later.Read(c, got)
	if err := later.Err(); err != nil || got[0] != 4 || got[1] != 16 {
		t.Errorf("kept array reads %v (%v), want [4 16]", got, err)
	}
	later.Release(c)
	later.Release(c)
	if m := x.b.Memory(); m.Live != 0 || m.Arrays != 0 {
		t.Errorf("%d arrays of %d bytes live at the end", m.Live, m.Arrays)
	}
	later.Add(a, a)
	if err := later.Err(); !errors.Is(err, tensor.ErrReleased) {
		t.Errorf("use after release: error %v, want ErrReleased", err)
	}
	later.Close()
}

// shapesOfGates are operations of gates on shapes that do not fit.
func shapesOfGates() map[string]func(sc tensor.Scope) {
	return map[string]func(sc tensor.Scope){
		"SigmoidGate": func(sc tensor.Scope) {
			sc.SigmoidGate(sc.From(make([]float32, 8), 2, 4), sc.From(make([]float32, 6), 2, 3))
		},
		"RMSNormGate": func(sc tensor.Scope) {
			sc.RMSNormGate(sc.From(make([]float32, 8), 2, 4), sc.From(make([]float32, 8), 1, 8), sc.From([]float32{1}, 1), 0)
		},
		"RMSNormGate weight": func(sc tensor.Scope) {
			a := sc.From(make([]float32, 8), 2, 4)
			sc.RMSNormGate(a, a, sc.From([]float32{1, 1, 1}, 3), 0)
		},
	}
}

func (s Suite) shapeErrors(t *testing.T) {
	x := s.open(t)
	m, _ := x.matrix(quant.DenseOf(quant.Float32), 3, 8)
	seg := []tensor.Segment{{Request: 1, Length: 2}}
	all := shapesOfExperts(m)
	maps.Copy(all, shapesOfGates())
	maps.Copy(all, map[string]func(sc tensor.Scope){
		"From":               func(sc tensor.Scope) { sc.From([]float32{1}, 2) },
		"From nothing":       func(sc tensor.Scope) { sc.From(nil, 0) },
		"Add":                func(sc tensor.Scope) { sc.Add(sc.From([]float32{1}, 1), sc.From([]float32{1, 2}, 2)) },
		"Multiply":           func(sc tensor.Scope) { sc.Multiply(sc.From([]float32{1, 2}, 1, 2), sc.From([]float32{1, 2}, 2, 1)) },
		"Linear":             func(sc tensor.Scope) { sc.Linear(sc.From(make([]float32, 7), 1, 7), m) },
		"Linear flat":        func(sc tensor.Scope) { sc.Linear(sc.From(make([]float32, 8), 8), m) },
		"Embed":              func(sc tensor.Scope) { sc.Embed(m, sc.IDs([]int32{3})) },
		"Embed negative":     func(sc tensor.Scope) { sc.Embed(m, sc.IDs([]int32{-1})) },
		"Rows":               func(sc tensor.Scope) { sc.Rows(sc.From([]float32{1, 2}, 1, 2), []int{1}) },
		"RMSNorm":            func(sc tensor.Scope) { sc.RMSNorm(sc.From([]float32{1, 2, 3}, 1, 3), sc.From([]float32{1, 1}, 2), 0) },
		"Split":              func(sc tensor.Scope) { sc.Split(sc.From(make([]float32, 8), 1, 8), 2, 1) },
		"Split into nothing": func(sc tensor.Scope) { sc.Split(sc.From(make([]float32, 8), 1, 8), 8, 0) },
		"Rope rows": func(sc tensor.Scope) {
			sc.Rope(sc.From(make([]float32, 8), 1, 8), seg, 8, tensor.RopeSpec{Theta: 10, Size: 8})
		},
		"Rope odd": func(sc tensor.Scope) {
			sc.Rope(sc.From(make([]float32, 16), 2, 8), seg, 8, tensor.RopeSpec{Theta: 10, Size: 3})
		},
		"Read": func(sc tensor.Scope) { sc.Read(sc.From([]float32{1}, 1), make([]float32, 2)) },
		"Rope head": func(sc tensor.Scope) {
			sc.Rope(sc.From(make([]float32, 16), 2, 8), seg, 5, tensor.RopeSpec{Theta: 10, Size: 4})
		},
		"Rope growth": func(sc tensor.Scope) {
			sc.Rope(sc.From(make([]float32, 16), 2, 8), seg, 8, tensor.RopeSpec{Theta: 10, Size: 8, Beta: 1})
		},
		"Rope no factors": func(sc tensor.Scope) {
			sc.Rope(sc.From(make([]float32, 16), 2, 8), seg, 8, tensor.RopeSpec{Theta: 10, Size: 8, Factors: []float32{1}})
		},
	})
	for name, run := range all {
		sc := x.b.NewScope(context.Background())
		run(sc)
		if err := sc.Err(); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
		sc.Add(nil, nil) // after a fault nothing happens and the first one stays
		if err := sc.Err(); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: a later operation replaced the fault by %v", name, err)
		}
		sc.Close()
	}
}

func (s Suite) memoryLimit(t *testing.T) {
	x := s.open(t)
	x.b.SetLimits(1<<20, 0)
	sc := x.b.NewScope(context.Background())
	sc.From(make([]float32, 1<<20), 1<<20)
	if err := sc.Err(); !errors.Is(err, tensor.ErrMemory) {
		t.Errorf("4 MiB array under a limit of 1 MiB: error %v, want ErrMemory", err)
	}
	sc.Close()
	_, err := x.b.LoadMatrix(quant.DenseOf(quant.Float32), 1024, 1024, nil)
	if !errors.Is(err, tensor.ErrMemory) {
		t.Errorf("4 MiB matrix under a limit of 1 MiB: error %v, want ErrMemory", err)
	}
	x.b.SetLimits(0, 0)
	ok := x.b.NewScope(context.Background())
	ok.From(make([]float32, 1<<20), 1<<20)
	if err := ok.Err(); err != nil {
		t.Errorf("without a limit: %v", err)
	}
	ok.Close()
	if m := x.b.Memory(); m.Active() != 0 {
		t.Errorf("%d bytes active at the end", m.Active())
	}
}

func (s Suite) cancelled(t *testing.T) {
	x := s.open(t)
	ctx, cancel := context.WithCancel(context.Background())
	sc := x.b.NewScope(ctx)
	a := sc.From([]float32{1}, 1)
	cancel()
	sc.Add(a, a)
	if err := sc.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("after cancel: error %v, want context.Canceled", err)
	}
	sc.Close()
}

//go:build !race

package profile_test

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/profile"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
)

// unmeasured are the methods of a scope that compute nothing, or that wait for
// what others do.
func unmeasured() []string {
	return []string{"Child", "Close", "Err", "From", "IDs", "JoinIDs", "Keep", "Read", "ReadIDs", "Release", "Start", "Wait"}
}

// TestEveryOperationIsMeasuredAndDoesWhatItDid: the suite of all back ends passes
// under measurement, and no operation of the interface is missed.
func TestEveryOperationIsMeasuredAndDoesWhatItDid(t *testing.T) {
	var all []*profile.Backend
	tensortest.Run(t, tensortest.Suite{
		New: func(*testing.T) tensor.Backend {
			b := profile.New(ref.New(ref.Options{Threads: 2, Poison: true}), 4)
			b.Measure(true)
			all = append(all, b)
			return b
		},
		Tolerance: 1e-6, Bitwise: true,
	})
	seen := map[string]int64{}
	for _, b := range all {
		for _, o := range b.Operations() {
			seen[o.Name] += o.Calls
			if o.Calls < 1 || o.Time < 0 || o.Bytes <= 0 && o.Name != "Rows" {
				t.Errorf("%+v", o)
			}
		}
	}
	scope := reflect.TypeFor[tensor.Scope]()
	names := []string{
		tensor.SiLU{}.Function(), tensor.Softplus{}.Function(), tensor.ReLU2{}.Function(), tensor.Tanh{}.Function(), tensor.GELU{}.Function(), tensor.XIELU{}.Function(),
		tensor.Clip{}.Function(), tensor.ScaleShift{}.Function(), tensor.SwiGLU{}.GLU(), tensor.GeGLU{}.GLU(), tensor.ClampedSwiGLU{}.GLU(), tensor.LimitedSwiGLU{}.GLU(),
	}
	for i := range scope.NumMethod() {
		if name := scope.Method(i).Name; name != "Map" && name != "GLU" { // those are measured by the name of the function
			names = append(names, name)
		}
	}
	for _, name := range names {
		if measured := seen[name] > 0; measured == slices.Contains(unmeasured(), name) {
			t.Errorf("%s: measured %d times", name, seen[name])
		}
	}
}

// TestBytesAreThoseOfOperandsWeightsAndResults in the width of the activations.
func TestBytesAreThoseOfOperandsWeightsAndResults(t *testing.T) {
	for _, c := range []struct{ least, width int64 }{{least: 4, width: 4}, {least: 0, width: 2}} {
		b := profile.New(ref.New(ref.Options{Threads: 1}), c.least)
		m, err := b.LoadMatrix(quant.DenseOf(quant.BFloat16), 3, 64, func(put func(int, quant.Row) error) error {
			for i := range 3 {
				if err := put(i, quant.Row{Raw: make([]byte, 128)}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		b.Measure(true)
		s := b.NewScope(context.Background())
		x := s.From(make([]float32, 2*64), 2, 64)
		s.Linear(s.Add(x, x), m)
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{}
		for _, o := range b.Operations() {
			got[o.Name] = o.Bytes
		}
		if want := c.width * (2*64 + 2*3); got["Linear"] != want+m.Bytes() || got["Add"] != 3*c.width*2*64 {
			t.Errorf("bytes are %v, of the product want %d and %d", got, want, m.Bytes())
		}
		s.Close()
		m.Release()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestWhoDoesNotMeasurePaysNothing: the scope is that of the back end inside, and
// so is what it says of steps ahead.
func TestWhoDoesNotMeasurePaysNothing(t *testing.T) {
	inner := ref.New(ref.Options{Threads: 1, Ahead: true})
	b := profile.New(inner, 4)
	defer b.Close()
	plain, own := b.NewScope(context.Background()), inner.NewScope(context.Background())
	if reflect.TypeOf(plain) != reflect.TypeOf(own) || !b.Ahead() {
		t.Errorf("a scope is a %T, want %T; ahead: %v", plain, own, b.Ahead())
	}
	b.Measure(true)
	if s := b.NewScope(context.Background()); reflect.TypeOf(s) == reflect.TypeOf(own) || b.Ahead() {
		t.Errorf("under measurement a scope is a %T; ahead: %v", s, b.Ahead())
	}
	b.Measure(false)
	if len(b.Operations()) != 0 || reflect.TypeOf(b.NewScope(context.Background())) != reflect.TypeOf(own) {
		t.Error("it continues to measure")
	}
}

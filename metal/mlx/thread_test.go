//go:build mlx

package mlx

import (
	"context"
	"errors"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// open attaches a back end to the test's goroutine.
func open(t *testing.T, o Options) *Backend {
	t.Helper()
	b := New(o)
	b.SetPrecision(quant.Float32)
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// rows is a matrix of ones.
func ones(t *testing.T, b *Backend, f quant.Format, out, in int) tensor.Matrix {
	t.Helper()
	m, err := b.LoadMatrix(f, out, in, fillOnes(t, f, out, in))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func fillOnes(t *testing.T, f quant.Format, out, in int) func(put func(int, quant.Row) error) error {
	row, err := f.NewRow(in)
	if err != nil {
		t.Fatal(err)
	}
	if f.Quantized() {
		for i := range len(row.Biases) / f.Type.Bytes() {
			f.Type.Put(row.Biases, i, 1) // q is 0
		}
	} else {
		for i := range in {
			f.Type.Put(row.Raw, i, 1)
		}
	}
	return func(put func(int, quant.Row) error) error {
		for r := range out {
			if err := put(r, row); err != nil {
				return err
			}
		}
		return nil
	}
}

// owned is what an operation of another goroutine gets to see.
type owned struct {
	b      *Backend
	s      tensor.Scope // of the caller
	m      tensor.Matrix
	a, ids tensor.Array
	cache  tensor.Cache
}

func foreignCalls(t *testing.T) map[string]func(owned) error {
	dense := quant.DenseOf(quant.Float32)
	seg := []tensor.Segment{{Request: 1, Start: 1, Length: 1}}
	in := func(f func(owned)) func(owned) error {
		return func(o owned) error { f(o); return o.s.Err() }
	}
	return map[string]func(owned) error{
		"Attach": func(o owned) error { return o.b.Attach() },
		"Close":  func(o owned) error { return o.b.Close() },
		"NewCache": func(o owned) error {
			_, err := o.b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: 4, BlockTokens: 4})
			return err
		},
		"LoadMatrix": func(o owned) error {
			_, err := o.b.LoadMatrix(dense, 1, 4, fillOnes(t, dense, 1, 4))
			return err
		},
		"LoadVector":    func(o owned) error { _, err := o.b.LoadVector(quant.Float32, make([]byte, 8)); return err },
		"From":          in(func(o owned) { o.s.From([]float32{1}, 1) }),
		"IDs":           in(func(o owned) { o.s.IDs([]int32{1}) }),
		"JoinIDs":       in(func(o owned) { o.s.JoinIDs(o.ids, []int{0}, []int32{1}) }),
		"Read":          in(func(o owned) { o.s.Read(o.a, make([]float32, 4)) }),
		"ReadIDs":       in(func(o owned) { o.s.ReadIDs(o.ids, make([]int32, 1)) }),
		"Start":         in(func(o owned) { o.s.Start(o.a) }),
		"Wait":          in(func(o owned) { o.s.Wait(o.a) }),
		"Embed":         in(func(o owned) { o.s.Embed(o.m, o.ids) }),
		"Linear":        in(func(o owned) { o.s.Linear(o.a, o.m) }),
		"Rows":          in(func(o owned) { o.s.Rows(o.a, []int{0}) }),
		"Argmax":        in(func(o owned) { o.s.Argmax(o.a, 4) }),
		"Add":           in(func(o owned) { o.s.Add(o.a, o.a) }),
		"Multiply":      in(func(o owned) { o.s.Multiply(o.a, o.a) }),
		"SiLU":          in(func(o owned) { o.s.Map(o.a, tensor.SiLU{}) }),
		"SwiGLU":        in(func(o owned) { o.s.GLU(o.a, o.a, tensor.SwiGLU{}) }),
		"ClampedSwiGLU": in(func(o owned) { o.s.GLU(o.a, o.a, tensor.ClampedSwiGLU{Alpha: 1, Limit: 7}) }),
		"Mean":          in(func(o owned) { o.s.Mean(o.a, seg, nil) }),
		"Unit":          in(func(o owned) { o.s.Unit(o.a) }),
		"Rope":          in(func(o owned) { o.s.Rope(o.a, seg, 4, tensor.RopeSpec{Theta: 10, Size: 4}) }),
		"Release":       in(func(o owned) { o.s.Release(o.a) }),
		"Matrix":        func(o owned) error { o.m.Release(); return tensor.ErrThread }, // says nothing; see below
		"Cache":         func(o owned) error { o.cache.Drop(1); o.cache.Release(); return tensor.ErrThread },
		"Save":          func(o owned) error { return o.cache.Save(1, 0, 1, make([]byte, 32)) },
		"SaveState":     func(o owned) error { return o.cache.SaveState(1, nil) },
		"Restore":       func(o owned) error { return o.cache.Restore(2, 1, [][]byte{make([]byte, 32)}, nil) },
		"trim":          func(o owned) error { return o.b.trim() },
		"Trim":          func(o owned) error { o.cache.Truncate(1, 0); return o.b.Trim() },
		"limit":         func(o owned) error { return o.b.limit(1, 1) },
		"measure":       func(o owned) error { return o.b.measure() },
		"resetPeak":     func(o owned) error { return o.b.resetPeak() },
		"AppendAttend": in(func(o owned) {
			o.s.AppendAttend(tensor.AttendSpec{Cache: o.cache, Segments: seg, Q: o.a, K: o.a, V: o.a})
		}),
	}
}

// Framework calls run on the attached thread. Any other is refused before it
// has an effect.
func TestCallFromAnotherThreadIsRefused(t *testing.T) {
	for name, call := range foreignCalls(t) {
		t.Run(name, func(t *testing.T) {
			b := open(t, Options{})
			s := b.NewScope(context.Background())
			defer s.Close()
			cache, err := b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: 4, BlockTokens: 4})
			if err != nil {
				t.Fatal(err)
			}
			defer cache.Release()
			m := ones(t, b, quant.DenseOf(quant.Float32), 5, 4)
			defer m.Release()
			a := s.From([]float32{1, 2, 3, 4}, 1, 4)
			first := []tensor.Segment{{Request: 1, Length: 1}}
			s.Read(s.AppendAttend(tensor.AttendSpec{Cache: cache, Segments: first, Q: a, K: a, V: a, Scale: 1}), make([]float32, 4))
			o := owned{b: b, m: m, a: a, ids: s.IDs([]int32{0}), cache: cache}
			if err := s.Err(); err != nil {
				t.Fatal(err)
			}

			was, memory, length := entered(), b.Memory(), cache.Length(1)
			done := make(chan error)
			go func() {
				o.s = b.NewScope(context.Background())
				err := call(o)
				o.s.Close()
				done <- err
			}()
			if err := <-done; !errors.Is(err, tensor.ErrThread) {
				t.Errorf("error %v, want ErrThread", err)
			}
			if n := entered() - was; n != 0 {
				t.Errorf("%d calls entered the framework", n)
			}
			if now := b.Memory(); now != memory || cache.Length(1) != length {
				t.Errorf("memory is %+v, was %+v; the cache holds %d tokens, had %d", now, memory, cache.Length(1), length)
			}
			got := make([]float32, 5)
			s.Read(s.Linear(a, m)[0], got)
			if err := s.Err(); err != nil || got[0] != 10 {
				t.Errorf("the owner afterwards: %v, %v", got, err)
			}
		})
	}
}

func TestNothingRunsBeforeAttachOrAfterClose(t *testing.T) {
	b := New(Options{})
	try := func() error {
		s := b.NewScope(context.Background())
		defer s.Close()
		s.From([]float32{1}, 1)
		return s.Err()
	}
	if err := try(); !errors.Is(err, tensor.ErrThread) {
		t.Errorf("before Attach: error %v, want ErrThread", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("close of what never was attached: %v", err)
	}
	for range 2 { // again after it was closed, and twice in a row
		if err := errors.Join(b.Attach(), b.Attach(), try(), b.Close()); err != nil {
			t.Error(err)
		}
	}
	if err := try(); !errors.Is(err, tensor.ErrThread) {
		t.Errorf("after Close: error %v, want ErrThread", err)
	}
}

func TestTwoBackEndsOnOneThreadAndOneOnAnother(t *testing.T) {
	add := func(b *Backend) error {
		s := b.NewScope(context.Background())
		defer s.Close()
		a, got := s.From([]float32{2}, 1), make([]float32, 1)
		s.Read(s.Add(a, a), got)
		if s.Err() == nil && got[0] != 4 {
			return errors.New("2 and 2 are not 4")
		}
		return s.Err()
	}
	first, second, third := open(t, Options{}), New(Options{}), New(Options{})
	if err := errors.Join(second.Attach(), add(first), add(second)); err != nil {
		t.Fatal(err)
	}
	other := make(chan error)
	go func() { other <- errors.Join(third.Attach(), add(third), third.Close()) }()
	if err := errors.Join(<-other, second.Close(), add(first)); err != nil {
		t.Fatal(err)
	}
}

func TestGaugesAndLimitsMayComeFromAnywhere(t *testing.T) {
	b := open(t, Options{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range int64(1000) {
			b.SetLimits(1<<30+i, 1<<20)
			_ = b.Memory().Active() + b.Peak()
		}
	}()
	for range 200 {
		s := b.NewScope(context.Background())
		a := s.From(make([]float32, 64), 8, 8)
		s.Read(s.Add(a, a), make([]float32, 64))
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	<-done
}

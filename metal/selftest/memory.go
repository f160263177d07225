package selftest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Of the framework's own mode: weights as they come.
func native() mode { return mode{quant.BFloat16} }

func memoryChecks() []check {
	return []check{
		{"memory: gauges", gauges},
		{"memory: limit", limit},
		{"memory: footprint of the process", footprint},
	}
}

// gauges rise with what is held; that they are at zero afterwards is what stop
// wants of every check.
func gauges(x *bench) {
	if !x.start(native()) {
		return
	}
	const tokens, width, block = 40, 256, 64
	m := x.dense(make([]float32, 512*width), 512, width)
	cache, err := x.b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: width, BlockTokens: block})
	if err != nil || m == nil {
		x.fail(err)
		return
	}
	x.caches = append(x.caches, cache)
	from := func() tensor.Array { return x.s.From(x.random(tokens*width), tokens, width) }
	one := []tensor.Segment{{Request: 1, Length: tokens}}
	x.s.Wait(x.s.AppendAttend(tensor.AttendSpec{Cache: cache, Segments: one, Q: from(), K: from(), V: from(), Scale: 1}))
	x.fail(x.s.Err())
	g := x.b.Memory()
	x.Value, x.Unit = float64(g.Active()), "bytes"
	x.Note = fmt.Sprintf("%d of weights, %d of KV, %d in %d arrays, and none of them at the end", g.Weights, g.KV, g.Arrays, g.Live)
	// Numbers have 2 bytes at least; what is asked for in float32 is float32.
	if g.Weights < m.Bytes() || g.KV < 2*2*block*width || g.Arrays < 4*tokens*width || g.Live < 4 {
		x.fail(fmt.Errorf("gauges report too little: %+v", g))
	}
	cache.Drop(1)
	if g := x.b.Memory(); g.KV != 0 {
		x.fail(fmt.Errorf("%d bytes of KV are held without a request", g.KV))
	}
}

// limit is refused where it would be passed, and only there.
func limit(x *bench) {
	if !x.start(native()) {
		return
	}
	const most, rows, width = 1 << 20, 1024, 1024
	x.Value, x.Unit, x.Note = most, "bytes", "4 times as much is refused"
	refuse := func(what string, err error) {
		if !errors.Is(err, tensor.ErrMemory) {
			x.fail(fmt.Errorf("%s of 4 MiB under a limit of 1 MiB: error %v, want ErrMemory", what, err))
		}
	}
	x.b.SetLimits(most, 0)
	s := x.b.NewScope(x.ctx)
	s.From(make([]float32, rows*width), rows, width)
	refuse("an array", s.Err())
	s.Close()
	_, err := x.b.LoadMatrix(quant.DenseOf(quant.Float32), rows, width, func(func(int, quant.Row) error) error { return nil })
	refuse("a matrix", err)
	x.b.SetLimits(0, 0)
	x.s.Wait(x.s.From(make([]float32, rows*width), rows, width))
}

// footprint of the process, as the system counts it, rises by what is loaded
// and falls when it is released: memory that is freed is memory that comes
// back.
func footprint(x *bench) {
	const rows, width = 8192, 4096
	before := x.processBytes()
	if !x.start(native()) {
		return
	}
	row, err := quant.DenseOf(quant.Float32).NewRow(width)
	x.fail(err)
	for i := range width {
		quant.Float32.Put(row.Raw, i, 1)
	}
	m, err := x.b.LoadMatrix(quant.DenseOf(quant.Float32), rows, width, func(put func(int, quant.Row) error) error {
		for r := range rows {
			if err := put(r, row); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		x.fail(err)
		return
	}
	x.read(x.s.Embed(m, x.s.IDs([]int32{rows - 1})), width)
	expected := m.Bytes()
	held := x.processBytes()
	m.Release()
	x.stop()
	after := x.processBytes()
	x.Note = fmt.Sprintf("%.1f MB loaded: the footprint rose by %.1f MB and fell by %.1f MB", float64(expected)/1e6, float64(held-before)/1e6, float64(held-after)/1e6)
	rose, fell := float64(held-before)/float64(expected), float64(held-after)/float64(expected)
	x.Value, x.Unit, x.Limit = max(math.Abs(rose-1), math.Abs(fell-1)), "of what was loaded", 0.25
}

// processBytes is the footprint of this process, without what Go's heap keeps
// for later.
func (x *bench) processBytes() int64 {
	debug.FreeOSMemory()
	n, err := ProcessBytes()
	x.fail(err)
	return n
}

// threads: where a back end belongs to one thread, another is refused; where it
// does not, another computes as well.
func threads(x *bench) {
	if !x.start(native()) {
		return
	}
	other := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		other <- double(x.ctx, x.b)
	}()
	err := <-other
	_, owned := x.b.(framework)
	switch {
	case owned && !errors.Is(err, tensor.ErrThread):
		x.fail(fmt.Errorf("another thread: error %v, want ErrThread", err))
	case owned:
		x.Note = "other threads are refused"
	default:
		x.fail(err)
		x.Note = "any thread may compute"
	}
	x.Value, x.Unit = 2, "threads"
	x.fail(double(x.ctx, x.b))
}

// double computes 3 + 3.
func double(ctx context.Context, b tensor.Backend) error {
	s := b.NewScope(ctx)
	defer s.Close()
	a, got := s.From([]float32{3}, 1), make([]float32, 1)
	s.Read(s.Add(a, a), got)
	if err := s.Err(); err != nil {
		return err
	}
	if got[0] != 6 {
		return fmt.Errorf("3 and 3 are %v", got[0])
	}
	return nil
}

// exceptions checks that exceptions of the framework become errors, and that it
// can compute afterwards.
func exceptions(x *bench) {
	if !x.start(native()) {
		return
	}
	x.Unit = "exceptions caught"
	f, ok := x.b.(framework)
	if !ok {
		x.fail(errors.New("this back end reports that it has a framework, but cannot provoke an exception in it"))
		return
	}
	err := f.Provoke()
	if err == nil || errors.Is(err, tensor.ErrThread) {
		x.fail(fmt.Errorf("a sum of mismatched shapes: error %v, want the framework's", err))
		return
	}
	x.Value, x.Note = 1, err.Error()
	// 1 TiB: the framework throws when its allocator has not that much.
	_, err = x.b.LoadMatrix(quant.DenseOf(quant.Float32), 1<<10, 1<<28, func(func(int, quant.Row) error) error { return nil })
	if !errors.Is(err, tensor.ErrMemory) {
		x.fail(fmt.Errorf("a matrix of 1 TiB: error %v, want ErrMemory", err))
		return
	}
	x.Value = 2
	x.fail(double(x.ctx, x.b))
}

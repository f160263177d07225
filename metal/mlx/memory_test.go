//go:build mlx

package mlx

import (
	"context"
	"errors"
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// decoding is a cache of one request with one layer, and steps on it.
type decoding struct {
	t                    *testing.T
	b                    *Backend
	cache                tensor.Cache
	heads, kvHeads, size int
	layers, window       int
}

func newDecoding(t *testing.T, b *Backend, layers, block int) *decoding {
	d := &decoding{t: t, b: b, heads: 8, kvHeads: 4, size: 64, layers: layers}
	var err error
	d.cache, err = b.NewCache(tensor.CacheSpec{Layers: layers, KVHeads: d.kvHeads, HeadSize: d.size, BlockTokens: block})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.cache.Release)
	return d
}

// step appends tokens to requests and reads what the last layer attends to.
func (d *decoding) step(segments ...tensor.Segment) error {
	s := d.b.NewScope(context.Background())
	defer s.Close()
	n := tensor.Tokens(segments)
	child := s.Child()
	q, kv := child.From(make([]float32, n*d.heads*d.size), n, d.heads*d.size), child.From(make([]float32, n*d.kvHeads*d.size), n, d.kvHeads*d.size)
	var out tensor.Array
	for layer := range d.layers {
		out = child.AppendAttend(tensor.AttendSpec{Cache: d.cache, Layer: layer, Segments: segments, Q: q, K: kv, V: kv, Scale: 1, Window: d.window})
	}
	if s.Err() == nil {
		child.Keep(out)
	}
	child.Close()
	if s.Err() == nil {
		s.Read(out, make([]float32, n*d.heads*d.size))
	}
	return s.Err()
}

// grow extends a request to this many tokens.
func (d *decoding) grow(id tensor.RequestID, tokens int) {
	d.t.Helper()
	for at := d.cache.Length(id); at < tokens; at = d.cache.Length(id) {
		if err := d.step(tensor.Segment{Request: id, Start: at, Length: min(64, tokens-at)}); err != nil {
			d.t.Fatal(err)
		}
	}
}

// rise is by how much a step exceeds what was in use before it.
func (d *decoding) rise(segments ...tensor.Segment) int64 {
	d.t.Helper()
	before := d.b.Memory().Active()
	if err := errors.Join(d.b.resetPeak(), d.step(segments...)); err != nil {
		d.t.Fatal(err)
	}
	return d.b.Peak() - before
}

// TestASlabThatOneStepFillsIsItsOwn: keys and values that came as one array do not
// share a buffer from then on.
func TestASlabThatOneStepFillsIsItsOwn(t *testing.T) {
	b := open(t, Options{})
	d := newDecoding(t, b, 1, 32)
	for range 3 {
		d.grow(1, 32)
		d.cache.Truncate(1, 16)
	}
	d.grow(1, 33)
	if n := d.cache.Length(1); n != 33 {
		t.Errorf("%d tokens are held, want 33", n)
	}
}

// A handle that is alive while computing makes the framework copy what it
// could have overwritten.
func TestADecodeStepDoesNotCopyItsCache(t *testing.T) {
	d := newDecoding(t, open(t, Options{}), 1, 4096)
	d.grow(1, 256)
	kv := d.cache.Bytes() // 8 MiB: room for 4096 tokens
	if kv != 8<<20 {
		t.Fatalf("the cache has %d bytes, want 8 MiB", kv)
	}
	first := d.rise(tensor.Segment{Request: 1, Start: 256, Length: 1})
	if first > kv/8 {
		t.Errorf("a step took %d bytes with a cache of %d", first, kv)
	}
	for i := range 60 {
		if rise := d.rise(tensor.Segment{Request: 1, Start: 257 + i, Length: 1}); rise > first+4096 {
			t.Fatalf("step %d took %d bytes, the first one %d", i+2, rise, first)
		}
	}
	if now := d.cache.Bytes(); now != kv {
		t.Errorf("the cache has %d bytes, had %d", now, kv)
	}
}

// A step that is built while the one before computes writes into the cache that
// the other still reads. Its keys come from a product that takes longer than to
// build all steps; that of all tokens is the same, so what is attended to is the
// mean of the values.
func TestAStepBuiltAheadDoesNotCopyItsCache(t *testing.T) {
	const rows, width, steps = 512, 1024, 4
	b := open(t, Options{})
	m := ones(t, b, quant.DenseOf(quant.Float32), width, width)
	defer m.Release()
	for _, requests := range []int{1, 3} {
		cache, err := b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: width / 64, HeadSize: 64, BlockTokens: 8192 / requests})
		if err != nil {
			t.Fatal(err)
		}
		defer cache.Release()
		top := b.NewScope(context.Background())
		defer top.Close()
		x := top.From(make([]float32, rows*width), rows, width)
		start := func(step int) tensor.Array {
			s := top.Child()
			defer s.Close()
			var segments []tensor.Segment
			var keys []int
			values := make([]float32, requests*width)
			for r := range requests {
				segments = append(segments, tensor.Segment{Request: tensor.RequestID(r + 1), Start: step, Length: 1})
				keys = append(keys, r)
				for i := range width {
					values[r*width+i] = float32(step * (r + 1))
				}
			}
			k := s.Rows(s.Linear(x, m)[0], keys)
			out := s.Keep(s.AppendAttend(tensor.AttendSpec{Cache: cache, Segments: segments, Q: k, K: k, V: s.From(values, requests, width), Scale: 1}))
			top.Start(out)
			return out
		}
		top.Wait(start(0))
		kv := cache.Bytes()
		if err := errors.Join(top.Err(), b.resetPeak()); err != nil {
			t.Fatal(err)
		}
		before := b.Memory().Active()
		var out tensor.Array
		for step := 1; step <= steps; step++ {
			out = start(step)
		}
		got := make([]float32, requests*width)
		top.Read(out, got)
		if err := top.Err(); err != nil {
			t.Fatal(err)
		}
		if rise := b.Peak() - before; rise > kv/4 {
			t.Errorf("%d steps of %d rows took %d bytes with a cache of %d", steps, requests, rise, kv)
		}
		for r := range requests {
			if want := float32(r+1) * steps / 2; got[r*width] < want-1e-4 || got[r*width] > want+1e-4 {
				t.Errorf("row %d of %d attends to %v, want %v", r, requests, got[r*width], want)
			}
		}
	}
}

func TestACacheGrowsByBlocks(t *testing.T) {
	d := newDecoding(t, open(t, Options{}), 8, 256)
	layer := int64(2 * d.kvHeads * d.size * 4) // bytes of a token
	for _, c := range []struct{ tokens, room int }{{1, 256}, {256, 256}, {257, 512}, {700, 768}} {
		d.grow(1, c.tokens)
		if got, want := d.cache.Bytes(), layer*int64(d.layers*c.room); got != want {
			t.Errorf("%d tokens take %d bytes, want room for %d: %d", c.tokens, got, c.room, want)
		}
	}
	d.grow(1, 768)
	before := d.cache.Bytes()
	rise := d.rise(tensor.Segment{Request: 1, Start: 768, Length: 1})
	// Both sizes at worst, and what a step takes anyway.
	if limit := layer*int64(d.layers*1024) + 1<<20; rise > limit {
		t.Errorf("growing from %d bytes took %d more, want at most %d", before, rise, limit)
	}
	// A limit that leaves no room for what is copied refuses the next block.
	d.grow(1, 1024)
	more := layer * 1280 * int64(d.layers)
	for _, c := range []struct {
		room int64
		want error
	}{{more + 1<<20, tensor.ErrMemory}, {2 * more, nil}} {
		d.b.SetLimits(d.cache.Bytes()+c.room, 0)
		if err := d.step(tensor.Segment{Request: 1, Start: 1024, Length: 1}); !errors.Is(err, c.want) {
			t.Errorf("growing to %d bytes with room for %d more: error %v, want %v", more, c.room, err, c.want)
		}
	}
	d.b.SetLimits(0, 0)
}

func TestWhatIsReplacedIsFreedAtOnce(t *testing.T) {
	b := open(t, Options{})
	const n = 1 << 18 // 1 MiB
	s := b.NewScope(context.Background())
	defer s.Close()
	x := s.From(make([]float32, n), n)
	for range 200 {
		child := s.Child()
		next := child.Keep(child.Add(x, child.Multiply(x, x)))
		child.Close()
		s.Release(x)
		x = next
	}
	if err := b.resetPeak(); err != nil {
		t.Fatal(err)
	}
	s.Read(x, make([]float32, n))
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	// A processor queues up to 100 operations ahead.
	if peak := b.Peak(); peak > 64<<20 {
		t.Errorf("200 layers of 1 MiB arrays peaked at %d bytes", peak)
	}
}

func TestTheFrameworkHoldsWhatIsCounted(t *testing.T) {
	b := open(t, Options{})
	for _, f := range []quant.Format{quant.AffineOf(4, 64, quant.BFloat16), quant.DenseOf(quant.Float16)} {
		if err := errors.Join(b.measure(), b.resetPeak()); err != nil {
			t.Fatal(err)
		}
		m := ones(t, b, f, 1024, 1024)
		got := b.Memory()
		if got.Weights != m.Bytes() || got.Arrays > 1<<10 {
			t.Errorf("%v: %d bytes of weights, %d of arrays; the matrix has %d", f, got.Weights, got.Arrays, m.Bytes())
		}
		if err := b.measure(); err != nil {
			t.Fatal(err)
		}
		if peak := b.Peak(); peak > m.Bytes()+m.Bytes()/20 {
			t.Errorf("%v: loading %d bytes peaked at %d", f, m.Bytes(), peak)
		}
		m.Release()
		if got := b.Memory(); got.Active() != 0 {
			t.Errorf("%v: %d bytes are left", f, got.Active())
		}
	}
}

func TestThePoolKeepsToItsLimit(t *testing.T) {
	b := open(t, Options{})
	use := func() {
		s := b.NewScope(context.Background())
		defer s.Close()
		for range 8 {
			a := s.From(make([]float32, 1<<18), 1<<18)
			s.Read(s.Add(a, a), make([]float32, 1<<18))
		}
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
	}
	b.SetLimits(0, 4<<20)
	use()
	if pooled := b.Memory().Pooled; pooled == 0 || pooled > 4<<20 {
		t.Errorf("%d bytes are pooled, want some and at most 4 MiB", pooled)
	}
	b.SetLimits(0, 1<<20) // from now on, also for what is pooled
	s := b.NewScope(context.Background())
	s.From([]float32{1}, 1)
	s.Close()
	if pooled := b.Memory().Pooled; pooled > 1<<20 {
		t.Errorf("%d bytes are pooled under a limit of 1 MiB", pooled)
	}
	if err := b.trim(); err != nil || b.Memory().Pooled != 0 {
		t.Errorf("after a trim %d bytes are pooled (%v)", b.Memory().Pooled, err)
	}
}

// What a long prompt leaves in the pool must not stand in the way of the arrays
// of steps: a full pool keeps nothing that is given back.
func TestAFullPoolGivesWay(t *testing.T) {
	const limit, large = 4 << 20, 1 << 18
	b := open(t, Options{})
	b.SetLimits(0, limit)
	s := b.NewScope(context.Background())
	for range 8 {
		a := s.From(make([]float32, large), large)
		s.Read(s.Add(a, a), make([]float32, large))
	}
	s.Close()
	if err := errors.Join(s.Err(), b.measure()); err != nil {
		t.Fatal(err)
	}
	if pooled := b.Memory().Pooled; pooled < limit-limit/8 {
		t.Fatalf("%d bytes are pooled, want a full pool of %d", pooled, limit)
	}
	s = b.NewScope(context.Background())
	s.Read(s.From([]float32{1}, 1), make([]float32, 1))
	s.Close()
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if pooled := b.Memory().Pooled; pooled == 0 || pooled > limit/2+limit/8 {
		t.Errorf("%d bytes are pooled after a small step, want about half of %d", pooled, limit)
	}
}

func TestPrecisionWidensWhatIsCoarser(t *testing.T) {
	for _, c := range []struct {
		precision quant.Type
		format    quant.Format
		bytes     int64 // of a matrix [4, 64]
	}{
		{quant.Float32, quant.DenseOf(quant.BFloat16), 4 * 64 * 4},
		{quant.BFloat16, quant.DenseOf(quant.BFloat16), 4 * 64 * 2},
		{quant.Float32, quant.AffineOf(4, 64, quant.BFloat16), 4 * (32 + 2*4)},
		{quant.BFloat16, quant.AffineOf(4, 64, quant.BFloat16), 4 * (32 + 2*2)},
		{quant.BFloat16, quant.DenseOf(quant.Float32), 4 * 64 * 4},
	} {
		b := New(Options{})
		b.SetPrecision(c.precision)
		if err := b.Attach(); err != nil {
			t.Fatal(err)
		}
		m := ones(t, b, c.format, 4, 64)
		if m.Bytes() != c.bytes {
			t.Errorf("%v for %v takes %d bytes, want %d", c.format, c.precision, m.Bytes(), c.bytes)
		}
		v, err := b.LoadVector(quant.Float32, make([]byte, 4*64))
		if err != nil {
			t.Fatal(err)
		}
		// What comes of weights has their type.
		s, got := b.NewScope(context.Background()), make([]float32, 64)
		embedded := s.Embed(m, s.IDs([]int32{1}))
		s.Read(s.RMSNorm(embedded, v, 1), got)
		wide := embedded.(*array).width() == 4
		if want := c.precision == quant.Float32 || c.format.Type == quant.Float32; wide != want {
			t.Errorf("%v for %v: activations are float32: %v, want %v", c.format, c.precision, wide, want)
		}
		s.Release(v)
		s.Close()
		m.Release()
		if err := errors.Join(s.Err(), b.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestASymmetricScaleThatOverflowsIsRefused(t *testing.T) {
	b := New(Options{})
	b.SetPrecision(quant.Float16)
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	f := quant.SymmetricOf(8, 32, quant.Float16)
	row, err := f.NewRow(32)
	if err != nil {
		t.Fatal(err)
	}
	for scale, want := range map[float32]error{500: nil, 600: tensor.ErrUnsupported} { // 128 * 600 is past half precision
		f.Type.Put(row.Scales, 0, scale)
		m, err := b.LoadMatrix(f, 1, 32, func(put func(int, quant.Row) error) error { return put(0, row) })
		if !errors.Is(err, want) {
			t.Errorf("scale %v: error %v, want %v", scale, err, want)
		}
		if m != nil {
			m.Release()
		}
	}
	if w := b.Memory(); w.Weights != 0 || w.Arrays != 0 {
		t.Errorf("left behind: %+v", w)
	}
}

func TestAnExceptionBecomesAnError(t *testing.T) {
	b := open(t, Options{})
	s := b.NewScope(context.Background())
	defer s.Close()
	x, y := s.From([]float32{1, 2}, 2).(*array), s.From([]float32{1, 2, 3}, 3)
	honest := x.shape
	x.shape = y.Shape() // so that only the framework sees that they do not fit
	s.Add(x, y)
	var said *Error
	if !errors.As(s.Err(), &said) || said.Text == "" {
		t.Errorf("shapes that do not broadcast: %v, want what the framework said", s.Err())
	}
	x.shape = honest
	if _, _, err := b.raw(0, math.MaxInt32, 1<<15); !errors.Is(err, tensor.ErrMemory) {
		t.Errorf("an array of 256 TiB: %v, want ErrMemory", err)
	}
	again := b.NewScope(context.Background())
	defer again.Close()
	again.Read(again.Add(x, x), make([]float32, 2))
	if again.Err() != nil {
		t.Errorf("afterwards: %v", again.Err())
	}
}

// Whichever operation fails, dropping the requests of the step frees
// everything, and other requests continue.
func TestAFaultAtAnyPointLeavesNothingBehind(t *testing.T) {
	fault, left := errors.New("told to fail"), -1
	b := open(t, Options{fault: func(string) error {
		if left--; left == 0 {
			return fault
		}
		return nil
	}})
	d := newDecoding(t, b, 3, 16)
	d.grow(1, 20)
	calls := 0
	for n := 1; ; n++ {
		start := d.cache.Length(1)
		left = n
		err := d.step(tensor.Segment{Request: 1, Start: start, Length: 1}, tensor.Segment{Request: 2, Length: 5})
		d.cache.Drop(2)
		if err == nil {
			break
		}
		calls = n
		if !errors.Is(err, fault) {
			t.Fatalf("fault at operation %d: error %v", n, err)
		}
		left = -1
		d.cache.Drop(1) // its layers may differ now
		d.grow(1, 20)
		if m := b.Memory(); m.Live != 0 || m.KV != d.cache.Bytes() || m.Arrays != 0 {
			t.Fatalf("after a fault at operation %d: %+v, the cache has %d", n, m, d.cache.Bytes())
		}
	}
	if want := 2 + d.layers + 2; calls < want {
		t.Errorf("failed at %d operations, want %d and more", calls, want)
	}
}

func TestARequestThatWasLostInAnEvaluationSaysSo(t *testing.T) {
	fault, fail := errors.New("told to fail"), false
	b := open(t, Options{fault: func(op string) error {
		if fail && op == "evaluate" {
			return fault
		}
		return nil
	}})
	d := newDecoding(t, b, 2, 16)
	d.grow(1, 3)
	d.grow(2, 20) // more blocks: another slab
	d.grow(3, 3)
	fail = true
	if err := d.step(tensor.Segment{Request: 1, Start: 3, Length: 1}); !errors.Is(err, fault) {
		t.Fatalf("the step with a fault: %v", err)
	}
	fail = false
	if err := d.step(tensor.Segment{Request: 1, Start: 4, Length: 1}); !errors.Is(err, fault) {
		t.Errorf("the next step of the same request: %v, want why it was lost", err)
	}
	if err := d.step(tensor.Segment{Request: 3, Start: 3, Length: 1}); !errors.Is(err, fault) {
		t.Errorf("a request whose tokens lie in the same arrays: %v, want why they were lost", err)
	}
	if err := d.step(tensor.Segment{Request: 2, Start: 20, Length: 1}); err != nil {
		t.Errorf("another request: %v", err)
	}
	before := d.cache.Bytes()
	d.cache.Drop(1)
	d.cache.Drop(3)
	if after := d.cache.Bytes(); after >= before {
		t.Errorf("%d bytes are left of %d after what was lost went", after, before)
	}
	if err := d.step(tensor.Segment{Request: 1, Start: 0, Length: 1}); err != nil {
		t.Errorf("a new request: %v", err)
	}
}

// A step that reads nothing is computed when it ends: its graph must not grow
// from chunk to chunk.
func TestAChunkWithoutLogitsIsComputedWhenItsScopeCloses(t *testing.T) {
	b := open(t, Options{})
	d := newDecoding(t, b, 2, 64)
	for i := range 3 {
		s := b.NewScope(context.Background())
		kv := s.From(make([]float32, 8*d.kvHeads*d.size), 8, d.kvHeads*d.size)
		for layer := range d.layers {
			s.AppendAttend(tensor.AttendSpec{Cache: d.cache, Layer: layer, Segments: []tensor.Segment{{Request: 1, Start: 8 * i, Length: 8}}, Q: kv, K: kv, V: kv, Scale: 1})
		}
		s.Close()
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		if n := len(b.pending); n != 0 {
			t.Errorf("%d requests are not computed after chunk %d", n, i+1)
		}
		if err := b.Trim(); err != nil { // waits for what was started
			t.Fatal(err)
		}
		if held := b.Memory(); held.Arrays != 0 {
			t.Errorf("chunk %d left %d bytes of arrays", i+1, held.Arrays)
		}
	}
}

// Requests decode in one step with prefill chunks, and some requests of their
// slab wait: no keys are copied for that.
func TestAStepOfAnswersAndPromptsDoesNotCopyItsCache(t *testing.T) {
	for _, ragged := range []int{0, 1} {
		d := newDecoding(t, open(t, Options{Ragged: ragged}), 2, 2048)
		const requests = 6
		for id := range tensor.RequestID(requests) {
			d.grow(id+1, 256)
		}
		kv := d.cache.Bytes()
		segments := []tensor.Segment{{Request: 5, Start: 256, Length: 8}, {Request: 1, Start: 256, Length: 1}, {Request: 2, Start: 256, Length: 4}, {Request: 6, Start: 256, Length: 1}, {Request: 4, Start: 256, Length: 1}}
		if rise := d.rise(segments...); rise > kv/16 {
			t.Errorf("a step took %d bytes with a cache of %d (ragged: %d)", rise, kv, ragged)
		}
	}
}

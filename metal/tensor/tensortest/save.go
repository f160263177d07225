package tensortest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// saving is a network of two attention layers, and of two recurrent ones if its
// case has them, with which the same tokens can be computed again.
type saving struct {
	*bench
	spec    tensor.CacheSpec
	recurs  recurCase
	weights []recurred
	// q, k and v of attending layers by token, for any request.
	q, k, v []float32
	// chunked layers with a window have chunks as long.
	chunked bool
}

// savedWidth is at least that of the queries of any layer.
const savedTokens, savedHeads, savedWidth = 128, 4, 32

// savingCases are shapes of a cache.
func savingCases() map[string]tensor.CacheSpec {
	spec := tensor.CacheSpec{Layers: 2, KVHeads: 2, HeadSize: 6, BlockTokens: 4}
	hybrid := spec
	hybrid.Recurrent = recurCases()[0].RecurrentSpec
	windows := spec
	windows.Layers, windows.Windows = 3, []int{6, 0, 6}
	all := hybrid
	all.Windows = []int{0, 5}
	latent := tensor.CacheSpec{Layers: 2, KVHeads: 1, HeadSize: 6, ValueSize: 4, Within: true, BlockTokens: 4}
	shapes := windows
	shapes.ValueSize, shapes.Local = 4, tensor.HeadSpec{KVHeads: 4, HeadSize: 2, ValueSize: 8}
	convolved := spec
	convolved.Recurrent = tensor.RecurrentSpec{Layers: 2, ValueHeads: 1, ValueSize: 12, Taps: 3}
	return map[string]tensor.CacheSpec{
		"attention": spec, "hybrid": hybrid, "windows": windows, "hybrid with windows": all,
		"values within keys": latent, "another shape under windows": shapes, "convolutions": convolved,
	}
}

// nothingToCut is a cache whose requests have a state and no slices.
func nothingToCut() tensor.CacheSpec {
	return tensor.CacheSpec{Layers: 2, KVHeads: 2, HeadSize: 6, BlockTokens: 4, Windows: []int{6, 6}}
}

func (x *bench) saving(spec tensor.CacheSpec) *saving {
	w := &saving{bench: x, spec: spec, recurs: recurCase{RecurrentSpec: spec.Recurrent}}
	if spec.Recurrent.Layers > 0 && spec.Recurrent.KeyHeads == 0 {
		w.recurs.rule = tensor.Convolution
	}
	n := savedTokens * spec.Layers * savedWidth
	w.q, w.k, w.v = x.random(n), x.random(n), x.random(n)
	for range spec.Recurrent.Layers {
		r := x.recurWeights(w.recurs)
		x.recurRows(&r, w.recurs, savedTokens)
		w.weights = append(w.weights, r)
	}
	return w
}

// cache is an empty one that has seen a step, as an engine's has before it
// serves.
func (w *saving) cache() tensor.Cache {
	w.t.Helper()
	c, err := w.b.NewCache(w.spec)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Release)
	w.step(c, tensor.Segment{Request: -1, Length: 1})
	c.Drop(-1)
	return c
}

// build computes segments in all layers and gives what they read, layer by
// layer. Tokens of all requests are the same; where they stand is not.
func (w *saving) build(sc tensor.Scope, c tensor.Cache, segments ...tensor.Segment) []tensor.Array {
	var outs []tensor.Array
	for layer := range w.spec.Layers {
		spec := tensor.AttendSpec{Cache: c, Layer: layer, Segments: segments, Scale: 0.3, Window: w.spec.WindowOf(layer)}
		if w.chunked {
			spec.Chunk = spec.Window
		}
		heads := w.spec.HeadsOf(layer)
		of := func(all []float32, width int) tensor.Array {
			return sc.From(rowsOf(all[layer*savedTokens*savedWidth:], width, segments), tensor.Tokens(segments), width)
		}
		spec.Q, spec.K = of(w.q, savedHeads*heads.HeadSize), of(w.k, heads.KVHeads*heads.HeadSize)
		if !heads.Within {
			spec.V = of(w.v, heads.KVHeads*heads.ValueSize)
		}
		outs = append(outs, sc.AppendAttend(spec))
	}
	for layer := range w.weights {
		outs = append(outs, sc.Recur(w.recurSpec(sc, c, layer, segments)))
	}
	return outs
}

func (w *saving) recurSpec(sc tensor.Scope, c tensor.Cache, layer int, segments []tensor.Segment) tensor.RecurSpec {
	r, shape := w.weights[layer], w.recurs
	keys, values := shape.KeyHeads*shape.KeySize, shape.ValueHeads*shape.ValueSize
	r.q, r.k, r.v = rowsOf(r.q, keys, segments), rowsOf(r.k, keys, segments), rowsOf(r.v, values, segments)
	r.decay, r.beta = rowsOf(r.decay, shape.ValueHeads, segments), rowsOf(r.beta, shape.ValueHeads, segments)
	r.arrays(sc, shape)
	r.spec.Cache, r.spec.Layer, r.spec.Segments = c, layer, segments
	return r.spec
}

// rowsOf are the rows of segments, of what has one for every token.
func rowsOf(all []float32, width int, segments []tensor.Segment) []float32 {
	var out []float32
	for _, g := range segments {
		out = append(out, all[g.Start*width:(g.Start+g.Length)*width]...)
	}
	return out
}

// step is what a step reads, in all layers.
func (w *saving) step(c tensor.Cache, segments ...tensor.Segment) []float32 {
	w.t.Helper()
	sc := w.b.NewScope(context.Background())
	defer sc.Close()
	var all []float32
	for _, a := range w.build(sc, c, segments...) {
		if sc.Err() != nil {
			break
		}
		out := make([]float32, a.Shape()[0]*a.Shape()[1])
		sc.Read(a, out)
		all = append(all, out...)
	}
	if err := sc.Err(); err != nil {
		w.t.Fatalf("step of %v: %v", segments, err)
	}
	return all
}

// grow extends a request to this many tokens, three at a time.
func (w *saving) grow(c tensor.Cache, id tensor.RequestID, tokens int) {
	w.t.Helper()
	for at := c.Length(id); at < tokens; at += 3 {
		w.step(c, tensor.Segment{Request: id, Start: at, Length: min(3, tokens-at)})
	}
}

// saved is what Save and SaveState gave of a request.
type saved struct {
	tokens int
	slices [][]byte
	state  []byte
}

// save takes all of a request: blocks, and what cannot be cut.
func (w *saving) save(c tensor.Cache, id tensor.RequestID) saved {
	w.t.Helper()
	out := saved{tokens: c.Length(id)}
	for at := 0; at < out.tokens; at += w.spec.BlockTokens {
		last := min(at+w.spec.BlockTokens, out.tokens)
		p := dirty(c.SliceBytes(last - at))
		if err := c.Save(id, at, last, p); err != nil {
			w.t.Fatal(err)
		}
		out.slices = append(out.slices, p)
	}
	out.state = dirty(c.StateBytes(out.tokens))
	if err := c.SaveState(id, out.state); err != nil {
		w.t.Fatal(err)
	}
	return out
}

// dirty bytes reveal what was not written.
func dirty(n int64) []byte { return bytes.Repeat([]byte{0xa5}, int(n)) }

func (w *saving) restore(c tensor.Cache, id tensor.RequestID, s saved) {
	w.t.Helper()
	if err := c.Restore(id, s.tokens, s.slices, s.state); err != nil {
		w.t.Fatal(err)
	}
	if got := c.Length(id); got != s.tokens {
		w.t.Fatalf("a restored request has %d tokens, want %d", got, s.tokens)
	}
}

func (w *saving) equal(what string, got, want saved) {
	w.t.Helper()
	for i := range want.slices {
		if !bytes.Equal(got.slices[i], want.slices[i]) {
			w.t.Fatalf("%s: slice %d of %d tokens differs", what, i, want.tokens)
		}
	}
	if got.tokens != want.tokens || !bytes.Equal(got.state, want.state) {
		w.t.Fatalf("%s: the state after %d tokens differs, or their number (%d)", what, want.tokens, got.tokens)
	}
}

// equalBits is for what was computed in the same chunks.
func equalBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: value %d is %v, want exactly %v", what, i, got[i], want[i])
		}
	}
}

func forSaving(s Suite, t *testing.T, run func(*saving)) {
	for name, spec := range savingCases() {
		t.Run(name, func(t *testing.T) { run(s.openFor(t).saving(spec)) })
	}
}

// openFor is open, and checks at the end that the test left no KV.
func (s Suite) openFor(t *testing.T) *bench {
	x := s.open(t)
	t.Cleanup(func() {
		if m := x.b.Memory(); m.KV != 0 {
			t.Errorf("%d bytes of KV are left", m.KV)
		}
	})
	return x
}

// savedIsRestored wants saved bytes to be restored ones, and a request that was
// restored, in its own cache or in another, to go on as the one that computed.
func (s cacheSuite) savedIsRestored(t *testing.T) {
	t.Run("nothing to cut", func(t *testing.T) { s.goesOn(s.openFor(t).saving(nothingToCut())) })
	forSaving(s.Suite, t, s.goesOn)
}

// goesOn saves after some numbers of tokens, of which the last are many windows
// and more than a back end keeps of one.
func (s cacheSuite) goesOn(w *saving) {
	{
		for _, tokens := range []int{1, 3, 4, 5, 8, 11, 24, 90, 100} {
			own, other := w.cache(), w.cache()
			w.grow(own, 1, tokens)
			was := w.save(own, 1)
			if layers, _ := w.spec.Rotating(); layers == 0 && tokens%w.spec.BlockTokens == 0 { // and the room in addition to whole blocks is at most eight tokens
				declared := own.SliceBytes(tokens) + own.StateBytes(tokens)
				if beside := own.Bytes() - declared; beside < 0 || beside > own.SliceBytes(8) {
					w.t.Errorf("%d bytes are held for %d tokens, and %d can be saved: a layer does not report what it keeps", own.Bytes(), tokens, declared)
				}
			}
			w.restore(other, 7, was)
			w.equal("another cache", w.save(other, 7), was)
			w.restore(own, 2, was)
			w.equal("the same cache", w.save(own, 2), was)
			own.Drop(2)
			w.equal("after another went", w.save(own, 1), was)
			for _, n := range []int{1, 1, 5, 1} {
				at := own.Length(1)
				want := w.step(own, tensor.Segment{Request: 1, Start: at, Length: n})
				equalBits(w.t, fmt.Sprintf("%d tokens after %d restored tokens", at+n-tokens, tokens), w.step(other, tensor.Segment{Request: 7, Start: at, Length: n}), want)
			}
			w.equal("what was computed since", w.save(other, 7), w.save(own, 1))
			other.Drop(7)
			if n := other.Bytes(); n != 0 {
				w.t.Errorf("%d bytes are held after a restored request was dropped", n)
			}
			own.Release()
			other.Release()
		}
	}
}

// savedRanges wants any tokens to be what they are of the whole: for each layer
// keys then values, each head's tokens one after another.
func (s cacheSuite) savedRanges(t *testing.T) {
	x := s.openFor(t)
	w := x.saving(savingCases()["attention"])
	c := w.cache()
	const tokens = 11
	w.grow(c, 1, tokens)
	save := func(first, last int) []byte {
		p := dirty(c.SliceBytes(last - first))
		if err := c.Save(1, first, last, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	whole := save(0, tokens)
	for first := range tokens {
		for last := first + 1; last <= tokens; last++ {
			got, n := save(first, last), last-first
			heads := 2 * w.spec.Layers * w.spec.KVHeads
			token := len(whole) / tokens / heads
			for h := range heads {
				if !bytes.Equal(got[h*n*token:(h+1)*n*token], whole[(h*tokens+first)*token:(h*tokens+last)*token]) {
					t.Fatalf("tokens %d to %d: run %d differs from that of all", first, last, h)
				}
			}
		}
	}
}

// savedInCompany moves requests to new ones now and then, while all compute, and
// compares with ones that stay.
func (s cacheSuite) savedInCompany(t *testing.T) {
	forSaving(s.Suite, t, func(w *saving) {
		moving, staying := w.cache(), w.cache()
		names := map[tensor.RequestID]tensor.RequestID{} // of those that stay, and their names now
		next := tensor.RequestID(100)
		for step := range 16 {
			if step%3 == 0 {
				names[tensor.RequestID(step)] = next
				next++
			}
			if step == 10 { // drop one
				staying.Drop(3)
				moving.Drop(names[3])
				delete(names, 3)
			}
			var a, b []tensor.Segment
			for id := range tensor.RequestID(16) {
				if now, ok := names[id]; ok && staying.Length(id) < 30 {
					if at := staying.Length(id); at > 0 && w.rng.IntN(3) == 0 {
						was := w.save(moving, now)
						moving.Drop(now)
						names[id] = next
						w.restore(moving, next, was)
						now, next = next, next+1
					}
					n := 1 + w.rng.IntN(4)*w.rng.IntN(2)
					a = append(a, tensor.Segment{Request: id, Start: staying.Length(id), Length: n})
					b = append(b, tensor.Segment{Request: now, Start: staying.Length(id), Length: n})
				}
			}
			s.recurring().same(w.t, fmt.Sprintf("step %d, %v", step, b), w.step(moving, b...), w.step(staying, a...))
		}
		if a, b := moving.Bytes(), staying.Bytes(); a != b && w.spec.Windows == nil {
			w.t.Errorf("%d bytes are held by requests that moved, %d by those that stayed", a, b)
		}
		for id, now := range names {
			staying.Drop(id)
			moving.Drop(now)
		}
		if n := w.b.Memory().KV; n != 0 {
			w.t.Errorf("%d bytes of KV are left after all requests were dropped", n)
		}
	})
}

// savedWhileComputing saves what a step was only built or started to compute.
func (s cacheSuite) savedWhileComputing(t *testing.T) {
	forSaving(s.Suite, t, func(w *saving) {
		c := w.cache()
		w.grow(c, 1, 6)
		want := w.save(c, 1)
		c.Drop(1)
		for _, started := range []bool{false, true} {
			w.grow(c, 1, 3)
			sc := w.b.NewScope(context.Background())
			outs := w.build(sc, c, tensor.Segment{Request: 1, Start: 3, Length: 3})
			if started {
				sc.Start(outs...)
			}
			w.equal(fmt.Sprintf("a step under way (started: %v)", started), w.save(c, 1), want)
			sc.Close()
			if err := sc.Err(); err != nil {
				w.t.Fatal(err)
			}
			c.Drop(1)
		}
	})
}

// saveErrors checks that invalid arguments are refused and change nothing.
func (s cacheSuite) saveErrors(t *testing.T) {
	forSaving(s.Suite, t, func(w *saving) {
		c := w.cache()
		w.grow(c, 1, 7)
		was := w.save(c, 1)
		before, held := w.b.Memory(), c.Bytes()
		refused := func(name string, err, want error) {
			w.t.Helper()
			if !errors.Is(err, want) {
				w.t.Errorf("%s: error %v, want %v", name, err, want)
			}
			if now := w.b.Memory(); now.KV != before.KV || now.Live != before.Live || c.Bytes() != held || c.Length(1) != 7 || c.Length(2) != 0 {
				w.t.Fatalf("%s: memory is %+v, was %+v; requests have %d and %d tokens", name, now, before, c.Length(1), c.Length(2))
			}
		}
		save := func(id tensor.RequestID, first, last int, n int64) error { return c.Save(id, first, last, dirty(n)) }
		refused("tokens that are not held", save(1, 4, 8, c.SliceBytes(4)), tensor.ErrSegment)
		refused("tokens before the first", save(1, -1, 2, c.SliceBytes(3)), tensor.ErrSegment)
		refused("no tokens", save(1, 3, 3, 0), tensor.ErrSegment)
		refused("tokens of an unknown request", save(2, 0, 1, c.SliceBytes(1)), tensor.ErrSegment)
		refused("too few bytes", save(1, 0, 4, c.SliceBytes(4)-1), tensor.ErrShape)
		refused("too many bytes", save(1, 0, 4, c.SliceBytes(4)+1), tensor.ErrShape)
		refused("the state of an unknown request", c.SaveState(2, dirty(c.StateBytes(7))), tensor.ErrSegment)
		refused("a state of another length", c.SaveState(1, dirty(c.StateBytes(7)+1)), tensor.ErrShape)

		restore := func(name string, id tensor.RequestID, tokens int, slices [][]byte, state []byte, want error) {
			w.t.Helper()
			refused(name, c.Restore(id, tokens, slices, state), want)
		}
		short := [][]byte{was.slices[0], was.slices[1][1:]}
		restore("a request that is held", 1, 7, was.slices, was.state, tensor.ErrSegment)
		restore("no tokens", 2, 0, nil, was.state, tensor.ErrShape)
		restore("too few slices", 2, 7, was.slices[:1], was.state, tensor.ErrShape)
		restore("too many slices", 2, 4, [][]byte{was.slices[0], {}}, was.state, tensor.ErrShape)
		restore("a slice that is short", 2, 7, short, was.state, tensor.ErrShape)
		restore("a short block that is not the last", 2, 7, [][]byte{was.slices[1], was.slices[0]}, was.state, tensor.ErrShape)
		restore("more state than there is", 2, 7, was.slices, append([]byte{0}, was.state...), tensor.ErrShape)
		if len(was.state) > 0 {
			restore("no state", 2, 7, was.slices, nil, tensor.ErrShape)
		}
		w.restore(c, 2, was) // and then it fits
		c.Release()
		if err := errors.Join(c.Save(1, 0, 4, was.slices[0])); !errors.Is(err, tensor.ErrReleased) {
			w.t.Errorf("save of a released cache: error %v, want ErrReleased", err)
		}
		for name, err := range map[string]error{"state": c.SaveState(1, was.state), "restore": c.Restore(3, 7, was.slices, was.state)} {
			if !errors.Is(err, tensor.ErrReleased) {
				w.t.Errorf("%s of a released cache: error %v, want ErrReleased", name, err)
			}
		}
	})
}

// halfAStepIsNotSaved: layers that have not seen as many tokens as the others
// have nothing that could be saved whole.
func (s cacheSuite) halfAStepIsNotSaved(t *testing.T) {
	for _, name := range []string{"hybrid", "windows"} {
		w := s.openFor(t).saving(savingCases()[name])
		c := w.cache()
		w.grow(c, 1, 5)
		state := dirty(c.StateBytes(5))
		sc := w.b.NewScope(context.Background())
		more := []tensor.Segment{{Request: 1, Start: 5, Length: 1}}
		if name == "hybrid" {
			sc.Recur(w.recurSpec(sc, c, 0, more))
		} else {
			one := *w
			one.spec.Layers = 1 // the first of them, which rotates
			one.build(sc, c, more...)
		}
		if err := errors.Join(sc.Err(), c.Save(1, 0, 4, dirty(c.SliceBytes(4)))); err != nil {
			t.Errorf("%s: tokens that every layer holds: %v", name, err)
		}
		if err := c.SaveState(1, state); !errors.Is(err, tensor.ErrSegment) {
			t.Errorf("%s: half a step: error %v, want ErrSegment", name, err)
		}
		sc.Close()
	}
}

// restoreUnderALimit checks that a request that does not fit is refused at any
// point, and then holds nothing.
func (s cacheSuite) restoreUnderALimit(t *testing.T) {
	forSaving(s.Suite, t, func(w *saving) {
		c := w.cache()
		w.grow(c, 1, 24)
		was := w.save(c, 1)
		c.Drop(1)
		if err := w.b.Trim(); err != nil {
			w.t.Fatal(err)
		}
		before, refused, limit := w.b.Memory(), 0, int64(0)
		step := (c.SliceBytes(24) + c.StateBytes(24)) / 16
		for ; ; limit += step {
			w.b.SetLimits(before.Active()+limit+1, 0)
			err := c.Restore(1, was.tokens, was.slices, was.state)
			if err == nil {
				break
			}
			refused++
			if now := w.b.Memory(); !errors.Is(err, tensor.ErrMemory) || now.KV != 0 || now.Live != before.Live || c.Bytes() != 0 || c.Length(1) != 0 {
				w.t.Fatalf("with %d bytes left: error %v, want ErrMemory; memory is %+v, was %+v", limit, err, now, before)
			}
		}
		if held := c.Bytes(); refused < 16 || held > limit+1 {
			w.t.Errorf("%d bytes are held under a limit of %d, %d tries were refused", held, limit+1, refused)
		}
		w.b.SetLimits(0, 0)
		w.equal("under a limit", w.save(c, 1), was)
	})
}

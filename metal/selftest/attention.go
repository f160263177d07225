package selftest

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// attention is one shape of attention; sizes are those that GPUs have kernels
// for.
type attention struct {
	name                 string
	heads, kvHeads, size int
	window               int
	sinks                bool
	// steps are the lengths that requests, from 1 on, grow by; 0 leaves one out.
	steps [][]int
	// ragged is a back end's own kernel's, if it has one: then it must be it.
	ragged bool
}

func attentions() []attention {
	mixed := [][]int{{37, 0}, {1, 5}, {20, 1}, {1, 1}}
	return []attention{
		{name: "attention, heads of 64", heads: 8, kvHeads: 2, size: 64, steps: mixed},
		{name: "attention, heads of 128", heads: 4, kvHeads: 4, size: 128, steps: mixed},
		{name: "attention, window and sinks", heads: 4, kvHeads: 2, size: 64, window: 16, sinks: true, steps: mixed},
		// Kernels that split a long cache come in past 1,024 tokens.
		{name: "attention, 1,500 tokens", heads: 4, kvHeads: 2, size: 64, steps: [][]int{{700, 0}, {700, 0}, {99, 3}, {1, 1}}},
		// Requests of three slabs; decodes of different lengths, alone and with
		// prefill chunks.
		{name: "attention of prefill chunks with decodes", heads: 8, kvHeads: 2, size: 128, ragged: true,
			steps: [][]int{{37, 0, 5, 600}, {1, 20, 1, 1}, {1, 1, 1, 0}, {64, 17, 1, 1}, {200, 1, 48, 1}, {1, 1, 1, 1}}},
		{name: "attention of prefill chunks with decodes, heads of 64", heads: 6, kvHeads: 6, size: 64, ragged: true,
			steps: [][]int{{9, 0, 300}, {1, 63, 1}, {1, 1, 2}, {1, 1, 1}}},
	}
}

// history is the plain model of one request: its keys and values, token by
// token.
type history struct{ k, v [][]float32 }

func (c attention) run(x *bench) {
	cache, err := x.b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: c.kvHeads, HeadSize: c.size, BlockTokens: 256})
	if err != nil {
		x.fail(fmt.Errorf("new cache: %w", err))
		return
	}
	x.caches = append(x.caches, cache)
	var sinks []float32
	if c.sinks {
		sinks = x.random(c.heads)
	}
	past := make([]history, len(c.steps[0]))
	for _, lengths := range c.steps {
		c.step(x, cache, past, lengths, sinks)
	}
	if c.ragged {
		x.ownKernel()
	}
	for i, h := range past {
		if got := cache.Length(tensor.RequestID(i + 1)); got != len(h.k) && !x.failed() {
			x.fail(fmt.Errorf("the cache has %d tokens of request %d, want %d", got, i+1, len(h.k)))
		}
	}
}

// ownKernel reports how much the back end's own kernel attended, and fails if
// it attended nothing although the device supports it.
func (x *bench) ownKernel() {
	b, counts := x.b.(interface{ Ragged() int64 })
	f, says := x.b.(framework)
	if !counts || !says || x.failed() {
		return
	}
	facts, err := f.About()
	x.fail(err)
	n := b.Ragged()
	x.Note = fmt.Sprintf("%d segments in the engine's own kernel", n)
	if major, err := strconv.Atoi(facts["compute_capability_major"]); err == nil && major >= 8 && x.mode.t == quant.BFloat16 && n == 0 {
		x.fail(errors.New("the engine's own kernel computed no segment, although this device supports it"))
	}
}

// step appends and attends, and compares the last rows of each segment: rows
// before them see less of the same.
func (c attention) step(x *bench, cache tensor.Cache, past []history, lengths []int, sinks []float32) {
	const compared = 6
	tokens, width, kvWidth := 0, c.heads*c.size, c.kvHeads*c.size
	var segments []tensor.Segment
	for i, n := range lengths {
		tokens += n
		if n > 0 {
			segments = append(segments, tensor.Segment{Request: tensor.RequestID(i + 1), Start: len(past[i].k), Length: n})
		}
	}
	q, k, v := x.random(tokens*width), x.random(tokens*kvWidth), x.random(tokens*kvWidth)
	scale := float32(1 / math.Sqrt(float64(c.size)))
	got := x.read(x.s.AppendAttend(tensor.AttendSpec{
		Cache: cache, Segments: segments, Scale: scale, Window: c.window, Sinks: sinks,
		Q: x.array(q, tokens, width), K: x.array(k, tokens, kvWidth), V: x.array(v, tokens, kvWidth),
	}), tokens*width)
	row := 0
	for _, g := range segments {
		h := &past[g.Request-1]
		var want []float64
		first := max(0, g.Length-compared)
		for i := range g.Length {
			at := row + i
			h.k, h.v = append(h.k, k[at*kvWidth:(at+1)*kvWidth]), append(h.v, v[at*kvWidth:(at+1)*kvWidth])
			if i >= first {
				want = append(want, c.oracle(q[at*width:], *h, float64(scale), sinks)...)
			}
		}
		x.near(fmt.Sprintf("%d tokens after %d", g.Length, g.Start), got[(row+first)*width:(row+g.Length)*width], want, x.product())
		row += g.Length
	}
}

// oracle is what the last token of a history sees.
func (c attention) oracle(q []float32, h history, scale float64, sinks []float32) []float64 {
	out := make([]float64, c.heads*c.size)
	first := 0
	if c.window > 0 {
		first = max(0, len(h.k)-c.window)
	}
	for head := range c.heads {
		at, to := head/(c.heads/c.kvHeads)*c.size, out[head*c.size:(head+1)*c.size]
		var sum float64
		if sinks != nil {
			sum = math.Exp(float64(sinks[head]))
		}
		for p := first; p < len(h.k); p++ {
			var score float64
			for i := range to {
				score += float64(q[head*c.size+i]) * float64(h.k[p][at+i])
			}
			e := math.Exp(score * scale)
			sum += e
			for i := range to {
				to[i] += e * float64(h.v[p][at+i])
			}
		}
		for i := range to {
			to[i] /= sum
		}
	}
	return out
}

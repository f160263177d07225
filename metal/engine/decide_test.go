package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/test/race"
)

// plain costs 1 byte of KV for each token and 10 for each of a chunk.
type plain struct{}

func (plain) peak(p footprint.Prefill) (int64, error) { return p.New + 10*min(p.Chunk, p.New), nil }

func (c plain) fit(p footprint.Prefill, room, floor int64) (int64, bool) {
	for n := p.Chunk; n >= min(floor, p.Chunk); n-- {
		p.Chunk = n
		if cost, _ := c.peak(p); cost <= room {
			return n, true
		}
	}
	return 0, false
}

func TestDecisionAboutAPrefillChunk(t *testing.T) {
	// A prompt of 1000 tokens, 100 at once, takes 2000 bytes; 1320 at the floor of 32.
	begun := piece{rest: 1000, chunk: 100, full: 100}
	first := begun
	first.first = true
	with := func(p piece, change func(*piece)) piece { change(&p); return p }
	for name, c := range map[string]struct {
		r    room
		p    piece
		want verdict
	}{
		"no limit":                                 {room{held: 1 << 40}, begun, verdict{tokens: 100}},
		"room enough":                              {room{held: 1000, limit: 4000, own: 4000}, begun, verdict{tokens: 100, needed: 2000}},
		"the safe zone is 0.90 of the limit":       {room{held: 1600, limit: 4000, own: 4000}, begun, verdict{tokens: 100, needed: 2000}},
		"a byte into the zone shrinks the chunk":   {room{held: 1601, limit: 4000, own: 4000}, begun, verdict{tokens: 99, needed: 1990}},
		"near the limit the floor is used":         {room{held: 2600, limit: 4000, own: 4000}, begun, verdict{tokens: 32, needed: 1320}},
		"a chunk shorter than the floor is whole":  {room{held: 2600, limit: 4000, own: 4000}, with(begun, func(p *piece) { p.full = 8 }), verdict{tokens: 8, needed: 1080}},
		"over the limit at the floor":              {room{held: 2681, limit: 4000, own: 4000}, begun, verdict{over: true, needed: 1320}},
		"admission wants the whole chunk":          {room{held: 2001, limit: 4000, own: 4000}, first, verdict{over: true, needed: 2000}},
		"admission up to the limit itself":         {room{held: 2000, limit: 4000, own: 4000}, first, verdict{tokens: 60, needed: 1600}},
		"a pool in the way is reclaimed first":     {room{held: 2601, pooled: 80, limit: 4000, own: 4000}, begun, verdict{reclaim: true, needed: 1320}},
		"a pool that is not in the way stays":      {room{held: 1000, pooled: 900, limit: 4000, own: 4000}, begun, verdict{tokens: 100, needed: 2000}},
		"reclaimed once, then decided":             {room{held: 2681, pooled: 80, limit: 4000, own: 4000}, with(begun, func(p *piece) { p.reclaimed = true }), verdict{over: true, needed: 1320}},
		"earlier prompts make way before anybody":  {room{held: 3000, kept: 900, limit: 4000, own: 9000, canAsk: true}, first, verdict{shed: 1000, needed: 2000}},
		"they make way once":                       {room{held: 3000, kept: 900, limit: 4000, own: 4000}, with(first, func(p *piece) { p.shed = true }), verdict{over: true, needed: 2000}},
		"they stay where it fits":                  {room{held: 1601, kept: 900, limit: 4000, own: 4000}, begun, verdict{tokens: 99, needed: 1990}},
		"before throttling the host is asked":      {room{held: 1601, limit: 4000, own: 9000, canAsk: true}, begun, verdict{ask: 2000, needed: 1990}},
		"before refusing the host is asked":        {room{held: 3000, limit: 4000, own: 9000, canAsk: true}, first, verdict{ask: 2000, needed: 2000}},
		"asked once":                               {room{held: 3000, limit: 4000, own: 9000, canAsk: true}, with(first, func(p *piece) { p.asked = true }), verdict{over: true, needed: 2000}},
		"nobody can make room: no question":        {room{held: 3000, limit: 4000, own: 9000}, first, verdict{over: true, needed: 2000}},
		"its own ceiling binds: no question":       {room{held: 3000, limit: 4000, own: 4000, canAsk: true}, first, verdict{over: true, needed: 2000}},
		"its own ceiling forbids it: no question":  {room{held: 3000, limit: 4000, own: 4999, canAsk: true}, first, verdict{over: true, needed: 2000}},
		"no ceiling of its own, the host has less": {room{held: 3000, limit: 4000, canAsk: true}, first, verdict{ask: 2000, needed: 2000}},
	} {
		if got, err := decide(c.r, c.p, plain{}); err != nil || got != c.want {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, c.want)
		}
	}
}

// llama are an 8B model's dimensions at half precision.
var llama = model.Facts{Architecture: "llama", Layers: 32, GrowingLayers: 32, HiddenSize: 4096, FeedForwardSize: 14336,
	QueryHeads: 32, KeyValueHeads: 8, HeadSize: 128, VocabularySize: 128256, ContextTokens: 131072, KeyValueElementBytes: 2, WeightBytes: 5 << 30}

// Prompts in a process whose other memory grows and shrinks: no chunk peaks
// above the limit, and only a chunk of minimal size above the safe zone.
func TestChunkPeakStaysUnderTheLimit(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	est := arithmetic{llama, footprint.KernelsOf("a back end that writes its scores out")}
	throttled, ended, whole := 0, 0, 0
	for range 300 {
		limit := int64(8+rng.IntN(24)) << 30
		r := room{held: limit * int64(20+rng.IntN(70)) / 100, limit: limit, own: limit}
		left, start := int64(1+rng.IntN(30_000)), int64(0)
		for left > 0 {
			p := piece{rest: left, start: start, chunk: min(512, left), full: min(512, left), first: start == 0, reclaimed: true}
			v, err := decide(r, p, est)
			if err != nil {
				t.Fatal(err)
			}
			if v.over {
				ended++
				break
			}
			peak, err := est.peak(footprint.Prefill{New: v.tokens, Cached: start, Chunk: v.tokens})
			if err != nil || v.tokens < 1 || r.held+peak > r.limit {
				t.Fatalf("%+v of %+v peaks at %d (%v)", v, r, r.held+peak, err)
			}
			if v.tokens > floorChunk && r.held+peak > r.limit/1000*safePermille {
				t.Fatalf("%+v of %+v peaks at %d, in the zone", v, r, r.held+peak)
			}
			if v.tokens < p.full {
				throttled++
			} else {
				whole++
			}
			kv, _ := est.peak(footprint.Prefill{New: v.tokens, Cached: start, Chunk: 1})
			r.held += kv / 2 // what stays, and what others do meanwhile
			if rng.IntN(6) == 0 {
				r.held = max(limit/10, r.held-limit/20)
			}
			left, start = left-v.tokens, start+v.tokens
		}
	}
	if throttled < 100 || ended < 10 || whole < 100 {
		t.Errorf("%d chunks were throttled, %d prompts ended, %d chunks were whole: the simulation shows little", throttled, ended, whole)
	}
}

// It takes 15.557 GiB: refused with 27.91 GiB in use under a limit of 40,
// admitted with 24.
func TestPromptOf110000TokensIsRefused(t *testing.T) {
	const gib = 1 << 30
	p := piece{rest: 110_000, chunk: 2048, full: 2048, first: true, reclaimed: true}
	golden := fixed(15_557 * gib / 1000)
	for inUse, over := range map[float64]bool{27.91: true, 24: false} {
		v, err := decide(room{held: int64(inUse * gib), limit: 40 * gib, own: 40 * gib}, p, golden)
		if err != nil || v.over != over {
			t.Errorf("beside %v GiB: %+v (%v)", inUse, v, err)
		}
	}
}

// fixed is a prompt's peak, whatever the chunk.
type fixed int64

func (f fixed) peak(footprint.Prefill) (int64, error) { return int64(f), nil }

func (f fixed) fit(p footprint.Prefill, room, _ int64) (int64, bool) {
	return p.Chunk, int64(f) <= room
}

// The back end's figure, the process footprint, and the engine's own
// accounting.
func TestLargestGaugeCounts(t *testing.T) {
	for name, c := range map[string]struct {
		m        tensor.Memory
		books    int64
		overhead int64
		// footprint when the back end held measured, pool included
		footprint, measured int64
		want                int64
	}{
		"the back end's account":                   {tensor.Memory{Weights: 50, KV: 30}, 50, 5, 60, 80, 85},
		"the footprint":                            {tensor.Memory{Weights: 50, KV: 30}, 50, 5, 120, 80, 120},
		"the books":                                {tensor.Memory{}, 60, 5, 20, 20, 60},
		"books with KV in use":                     {tensor.Memory{KV: 7}, 60, 5, 0, 0, 67},
		"a footprint that was not measured":        {tensor.Memory{Weights: 50}, 50, 5, 0, 50, 55},
		"what came since is on top":                {tensor.Memory{Weights: 50, KV: 40}, 50, 5, 120, 80, 130},
		"what went since is gone":                  {tensor.Memory{Weights: 50, KV: 10}, 50, 5, 120, 80, 100},
		"what is pooled is weighed by itself":      {tensor.Memory{Weights: 50, Pooled: 30}, 50, 5, 120, 80, 90},
		"a footprint below the account is not it":  {tensor.Memory{Weights: 50, KV: 30}, 50, 5, 10, 80, 85},
		"an idle model whose gauges read low #702": {tensor.Memory{Weights: 1}, 100, 5, 3, 1, 100},
	} {
		s := &serving{facts: model.Facts{WeightBytes: c.books}, overhead: c.overhead}
		p := &publication{Limits: Limits{Footprint: c.footprint}}
		if c.footprint > 0 {
			p.beyond = max(0, c.footprint-c.measured)
		}
		if got := held(c.m, 0, s, p); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		if got := held(c.m, 9, s, p); got != c.want+9 {
			t.Errorf("%s, beside 9 of earlier prompts: %d, want %d", name, got, c.want+9)
		}
	}
}

// Publications alternate a million times under many readers.
func TestLimitsAreReadAtomically(t *testing.T) {
	flips := int64(1_000_000)
	if race.Enabled {
		flips = 50_000 // the detector sees an access without order at once
	}
	l := newLimits()
	tuple := func(n int64) Limits {
		return Limits{Memory: 7 * n, Cache: 3 * n, PausePrefill: n%2 == 0, Sequence: n, Footprint: 5 * n, Headroom: 11 * n, HeadroomKnown: n%2 == 1, HeadroomAnswered: n, CanMakeRoom: n%2 == 0}
	}
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			last := int64(0)
			for last < flips {
				p := l.now()
				if p.Limits != tuple(p.Sequence) && p.Sequence != 0 || p.beyond != 13*p.Sequence || p.ceiling != 17*p.Sequence || p.Sequence < last {
					t.Errorf("mixed: %+v after %d", p, last)
					return
				}
				last = p.Sequence
			}
		})
	}
	complete := func(v Limits) *publication {
		return &publication{Limits: v, beyond: 13 * v.Sequence, ceiling: 17 * v.Sequence}
	}
	var applied int64
	apply := func(p *publication) {
		if p.Sequence <= applied {
			t.Errorf("publication %d was applied after %d", p.Sequence, applied)
		}
		applied = p.Sequence
	}
	var writers sync.WaitGroup
	for w := range int64(2) { // each publishes half, and what the other has overtaken
		writers.Go(func() {
			for n := 1 + w; n <= flips; n += 2 {
				l.publish(tuple(n), complete, apply)
			}
		})
	}
	writers.Wait()
	l.publish(tuple(flips), complete, apply)
	readers.Wait()
	if l.now().Sequence != flips {
		t.Errorf("the newest is %d", l.now().Sequence)
	}
}

func TestUnestimatablePromptIsNotZeroBytes(t *testing.T) {
	f := llama
	f.HeadSize = 0
	_, err := decide(room{limit: 1 << 40, own: 1 << 40}, piece{rest: 10, chunk: 10, full: 10}, arithmetic{f, footprint.KernelsOf("ref")})
	if !errors.Is(err, model.ErrIncomplete) {
		t.Error(fmt.Errorf("an unknown head size: %w, want ErrIncomplete", err))
	}
}

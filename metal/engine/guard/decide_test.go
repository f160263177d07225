package guard

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

func (plain) Peak(p footprint.Prefill) (int64, error) { return p.New + 10*min(p.Chunk, p.New), nil }

func (c plain) Fit(p footprint.Prefill, room, floor int64) (int64, bool) {
	for n := p.Chunk; n >= min(floor, p.Chunk); n-- {
		p.Chunk = n
		if cost, _ := c.Peak(p); cost <= room {
			return n, true
		}
	}
	return 0, false
}

func TestDecisionAboutAPrefillChunk(t *testing.T) {
	// A prompt of 1000 tokens, 100 at once, takes 2000 bytes; 1320 at the floor of 32.
	begun := Chunk{Rest: 1000, Max: 100, Full: 100}
	first := begun
	first.First = true
	with := func(p Chunk, change func(*Chunk)) Chunk { change(&p); return p }
	for name, c := range map[string]struct {
		r    Room
		p    Chunk
		want Verdict
	}{
		"no limit":                                 {Room{Held: 1 << 40}, begun, Verdict{Tokens: 100}},
		"room enough":                              {Room{Held: 1000, Limit: 4000, Own: 4000}, begun, Verdict{Tokens: 100, Needed: 2000}},
		"the safe zone is 0.90 of the limit":       {Room{Held: 1600, Limit: 4000, Own: 4000}, begun, Verdict{Tokens: 100, Needed: 2000}},
		"a byte into the zone shrinks the chunk":   {Room{Held: 1601, Limit: 4000, Own: 4000}, begun, Verdict{Tokens: 99, Needed: 1990}},
		"near the limit the floor is used":         {Room{Held: 2600, Limit: 4000, Own: 4000}, begun, Verdict{Tokens: 32, Needed: 1320}},
		"a chunk shorter than the floor is whole":  {Room{Held: 2600, Limit: 4000, Own: 4000}, with(begun, func(p *Chunk) { p.Full = 8 }), Verdict{Tokens: 8, Needed: 1080}},
		"over the limit at the floor":              {Room{Held: 2681, Limit: 4000, Own: 4000}, begun, Verdict{Over: true, Needed: 1320}},
		"admission wants the whole chunk":          {Room{Held: 2001, Limit: 4000, Own: 4000}, first, Verdict{Over: true, Needed: 2000}},
		"admission up to the limit itself":         {Room{Held: 2000, Limit: 4000, Own: 4000}, first, Verdict{Tokens: 60, Needed: 1600}},
		"a pool in the way is reclaimed first":     {Room{Held: 2601, Pooled: 80, Limit: 4000, Own: 4000}, begun, Verdict{Reclaim: true, Needed: 1320}},
		"a pool that is not in the way stays":      {Room{Held: 1000, Pooled: 900, Limit: 4000, Own: 4000}, begun, Verdict{Tokens: 100, Needed: 2000}},
		"reclaimed once, then decided":             {Room{Held: 2681, Pooled: 80, Limit: 4000, Own: 4000}, with(begun, func(p *Chunk) { p.Reclaimed = true }), Verdict{Over: true, Needed: 1320}},
		"earlier prompts make way before anybody":  {Room{Held: 3000, Cached: 900, Limit: 4000, Own: 9000, CanAsk: true}, first, Verdict{Shed: 1000, Needed: 2000}},
		"they make way once":                       {Room{Held: 3000, Cached: 900, Limit: 4000, Own: 4000}, with(first, func(p *Chunk) { p.Shed = true }), Verdict{Over: true, Needed: 2000}},
		"they stay where it fits":                  {Room{Held: 1601, Cached: 900, Limit: 4000, Own: 4000}, begun, Verdict{Tokens: 99, Needed: 1990}},
		"before throttling the host is asked":      {Room{Held: 1601, Limit: 4000, Own: 9000, CanAsk: true}, begun, Verdict{Ask: 2000, Needed: 1990}},
		"before refusing the host is asked":        {Room{Held: 3000, Limit: 4000, Own: 9000, CanAsk: true}, first, Verdict{Ask: 2000, Needed: 2000}},
		"asked once":                               {Room{Held: 3000, Limit: 4000, Own: 9000, CanAsk: true}, with(first, func(p *Chunk) { p.Asked = true }), Verdict{Over: true, Needed: 2000}},
		"no room can be made: no question":         {Room{Held: 3000, Limit: 4000, Own: 9000}, first, Verdict{Over: true, Needed: 2000}},
		"its own ceiling binds: no question":       {Room{Held: 3000, Limit: 4000, Own: 4000, CanAsk: true}, first, Verdict{Over: true, Needed: 2000}},
		"its own ceiling forbids it: no question":  {Room{Held: 3000, Limit: 4000, Own: 4999, CanAsk: true}, first, Verdict{Over: true, Needed: 2000}},
		"no ceiling of its own, the host has less": {Room{Held: 3000, Limit: 4000, CanAsk: true}, first, Verdict{Ask: 2000, Needed: 2000}},
	} {
		if got, err := Decide(c.r, c.p, plain{}); err != nil || got != c.want {
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
		r := Room{Held: limit * int64(20+rng.IntN(70)) / 100, Limit: limit, Own: limit}
		left, start := int64(1+rng.IntN(30_000)), int64(0)
		for left > 0 {
			p := Chunk{Rest: left, Start: start, Max: min(512, left), Full: min(512, left), First: start == 0, Reclaimed: true}
			v, err := Decide(r, p, est)
			if err != nil {
				t.Fatal(err)
			}
			if v.Over {
				ended++
				break
			}
			peak, err := est.Peak(footprint.Prefill{New: v.Tokens, Cached: start, Chunk: v.Tokens})
			if err != nil || v.Tokens < 1 || r.Held+peak > r.Limit {
				t.Fatalf("%+v of %+v peaks at %d (%v)", v, r, r.Held+peak, err)
			}
			if v.Tokens > minChunk && r.Held+peak > r.Limit/1000*safePermille {
				t.Fatalf("%+v of %+v peaks at %d, in the zone", v, r, r.Held+peak)
			}
			if v.Tokens < p.Full {
				throttled++
			} else {
				whole++
			}
			kv, _ := est.Peak(footprint.Prefill{New: v.Tokens, Cached: start, Chunk: 1})
			r.Held += kv / 2 // what stays, and what others do meanwhile
			if rng.IntN(6) == 0 {
				r.Held = max(limit/10, r.Held-limit/20)
			}
			left, start = left-v.Tokens, start+v.Tokens
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
	p := Chunk{Rest: 110_000, Max: 2048, Full: 2048, First: true, Reclaimed: true}
	golden := fixed(15_557 * gib / 1000)
	for inUse, over := range map[float64]bool{27.91: true, 24: false} {
		v, err := Decide(Room{Held: int64(inUse * gib), Limit: 40 * gib, Own: 40 * gib}, p, golden)
		if err != nil || v.Over != over {
			t.Errorf("with %v GiB in use: %+v (%v)", inUse, v, err)
		}
	}
}

// fixed is a prompt's peak, regardless of the chunk.
type fixed int64

func (f fixed) Peak(footprint.Prefill) (int64, error) { return int64(f), nil }

func (f fixed) Fit(p footprint.Prefill, room, _ int64) (int64, bool) {
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
		"the back end's account":                   {m: tensor.Memory{Weights: 50, KV: 30}, books: 50, overhead: 5, footprint: 60, measured: 80, want: 85},
		"the footprint":                            {m: tensor.Memory{Weights: 50, KV: 30}, books: 50, overhead: 5, footprint: 120, measured: 80, want: 120},
		"the books":                                {m: tensor.Memory{}, books: 60, overhead: 5, footprint: 20, measured: 20, want: 60},
		"books with KV in use":                     {m: tensor.Memory{KV: 7}, books: 60, overhead: 5, footprint: 0, measured: 0, want: 67},
		"a footprint that was not measured":        {m: tensor.Memory{Weights: 50}, books: 50, overhead: 5, footprint: 0, measured: 50, want: 55},
		"what came since is on top":                {m: tensor.Memory{Weights: 50, KV: 40}, books: 50, overhead: 5, footprint: 120, measured: 80, want: 130},
		"what went since is gone":                  {m: tensor.Memory{Weights: 50, KV: 10}, books: 50, overhead: 5, footprint: 120, measured: 80, want: 100},
		"what is pooled is weighed by itself":      {m: tensor.Memory{Weights: 50, Pooled: 30}, books: 50, overhead: 5, footprint: 120, measured: 80, want: 90},
		"a footprint below the account is not it":  {m: tensor.Memory{Weights: 50, KV: 30}, books: 50, overhead: 5, footprint: 10, measured: 80, want: 85},
		"an idle model whose gauges read low #702": {m: tensor.Memory{Weights: 1}, books: 100, overhead: 5, footprint: 3, measured: 1, want: 100},
	} {
		loaded := &Model{Weights: c.books, Overhead: c.overhead}
		var beyond int64
		if c.footprint > 0 {
			beyond = max(0, c.footprint-c.measured)
		}
		if got := held(c.m, 0, loaded, beyond); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		if got := held(c.m, 9, loaded, beyond); got != c.want+9 {
			t.Errorf("%s, with 9 of earlier prompts: %d, want %d", name, got, c.want+9)
		}
	}
}

// Compiled grammars count as overhead; before a model is loaded there are none.
func TestExtraMemoryOfRequestsCountsAsHeld(t *testing.T) {
	loaded := &Model{Overhead: 5, Extra: func() int64 { return 3 }}
	if got := held(tensor.Memory{}, 0, loaded, 0); got != 8 {
		t.Errorf("%d bytes are held, want 8", got)
	}
	if got := held(tensor.Memory{Weights: 2}, 0, nil, 0); got != 2 {
		t.Errorf("%d bytes are held while the model loads, want 2", got)
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
	_, err := Decide(Room{Limit: 1 << 40, Own: 1 << 40}, Chunk{Rest: 10, Max: 10, Full: 10}, arithmetic{f, footprint.KernelsOf("ref")})
	if !errors.Is(err, model.ErrIncomplete) {
		t.Error(fmt.Errorf("an unknown head size: %w, want ErrIncomplete", err))
	}
}

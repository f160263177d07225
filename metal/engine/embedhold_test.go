//go:build !race

package engine

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// textContext is the context of a decoder whose passes are counted.
const textContext = 4096

// passCounter puts together the passes of texts of several tenants, and counts them.
type passCounter struct {
	*embedLoop
	t      *testing.T
	reader *Reader
	passes int
	// took is called after each pass, with what each input has of it, if it is set.
	took func(pass []passInput, tokens, depth []int)
}

// countPasses loads a model, and returns a function that makes a loop with a cache of some tokens.
func countPasses(t *testing.T) func(cache int) *passCounter {
	t.Helper()
	return countPassesOf(t, ref.New(ref.Options{}), textContext)
}

func countPassesOf(t *testing.T, b tensor.Backend, context int) func(cache int) *passCounter {
	t.Helper()
	c := tinymodel.Default()
	c.Family, c.Context = tinymodel.Qwen3, context
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(t.Context(), path, b, model.Embed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(cache int) *passCounter {
		l := newEmbedLoop(&shared{opts: Options{Backend: b, Sequences: 4}}, &loadedModel{embedder: r.model, cacheTokens: cache})
		return &passCounter{embedLoop: l, t: t, reader: r}
	}
}

// ask adds a request for a text of n tokens.
func (c *passCounter) ask(tenant string, n int) *embedding {
	c.t.Helper()
	in, err := c.model.embedder.Tokens(c.reader.tok, make([]int32, n), embed.Options{})
	if err != nil || in.Len() != n {
		c.t.Fatalf("%d tokens, want %d: %v", in.Len(), n, err)
	}
	r := &embedding{tenant: tenant, inputs: []embed.Tokenized{in}}
	c.enter(r)
	return r
}

// countedWalk only counts the tokens of a text.
type countedWalk struct{ computed, left, chunk int }

func (w *countedWalk) Next(tokens int) ([]float32, error) {
	n := min(w.left, w.chunk, tokens)
	w.computed, w.left = w.computed+n, w.left-n
	return nil, nil
}
func (w *countedWalk) Computed() int { return w.computed }
func (w *countedWalk) Left() int     { return w.left }
func (w *countedWalk) Release()      {}

// step is one pass. It returns the requests that ended, and fails if the cache holds too much.
func (c *passCounter) step() (served []*embedding) {
	c.t.Helper()
	pass := c.pass()
	if len(pass) == 0 {
		c.t.Fatalf("%d requests wait, and none is computed", len(c.requests))
	}
	c.passes++
	var tokens, depths []int
	for _, in := range pass {
		r := in.of
		if !c.long(in) {
			in.done()
			tokens, depths = append(tokens, in.tokens()), append(depths, in.tokens()/2)
			continue
		}
		if len(pass) > 1 {
			c.t.Fatalf("a part of a text is one of %d inputs of a pass", len(pass))
		}
		if r.walk == nil {
			r.walk, r.leave = &countedWalk{left: in.tokens(), chunk: c.opts.Backend.Chunk()}, func() {}
		}
		before := r.walk.Computed()
		_, _ = r.walk.Next(c.pace.part(before, c.opts.Backend.Chunk()))
		n := r.walk.Computed() - before
		tokens, depths = append(tokens, n), append(depths, before+n/2)
		r.count(c.weigh(n, before))
	}
	if c.took != nil {
		c.took(pass, tokens, depths)
	}
	blocks := 0
	for _, r := range c.requests {
		if r.walk != nil {
			blocks += c.blocks(r.walk.Computed())
		}
	}
	for _, in := range pass {
		if r := in.of; r.walk == nil {
			blocks += c.blocks(in.tokens())
		} else if r.walk.Left() == 0 {
			r.forgetWalk()
			r.begun++
		}
		if in.of.begun == 1 {
			served = append(served, in.of)
			c.leave(slices.Index(c.requests, in.of))
		}
	}
	if most := c.model.cacheTokens / c.model.embedder.BlockTokens(); blocks > most {
		c.t.Fatalf("pass %d takes %d blocks of %d", c.passes, blocks, most)
	}
	return served
}

// Tenants that are never all between two texts would leave no room in the cache for a longer one of another.
func TestALongTextIsComputedNextToShorterOnesOfSeveralTenants(t *testing.T) {
	loop := countPasses(t)
	for _, c := range []struct {
		name           string
		cache, tenants int
		tokens         int
	}{
		{name: "two contexts, two tenants", cache: 2 * textContext, tenants: 2, tokens: 3300},
		{name: "two contexts, three tenants", cache: 2 * textContext, tenants: 3, tokens: 2300},
		{name: "one context, two tenants", cache: textContext, tenants: 2, tokens: 1000},
	} {
		l := loop(c.cache)
		for i := range c.tenants {
			l.ask(fmt.Sprint(i), c.tokens*(i+1)/c.tenants) // which end one after another
			l.ask(fmt.Sprint(i), c.tokens)
		}
		var long *embedding
		for long == nil || long.begun == 0 {
			if l.passes == 10 {
				long = l.ask("other", textContext-1)
			}
			for _, r := range l.step() {
				if r != long {
					l.ask(r.tenant, c.tokens)
				}
			}
			if l.passes > 1000 {
				t.Fatalf("%s: a long text is not computed in 1000 passes", c.name)
			}
		}
		chunks := textContext / l.opts.Backend.Chunk()
		if most := 10 + 2*chunks*(c.tenants+1); l.passes > most {
			t.Errorf("%s: a text of %d chunks is computed after %d passes, want at most %d", c.name, chunks, l.passes, most)
		}
	}
}

// A short text waits for a chunk of a long one, and not for all of them, also where the cache has room
// for one long text.
func TestShortTextsDoNotWaitForAllOfALongOne(t *testing.T) {
	loop := countPasses(t)
	for _, cache := range []int{textContext, textContext + 1024, 2 * textContext} {
		l := loop(cache)
		l.ask("long", textContext-1)
		l.ask("long", textContext-1)
		var short *embedding
		since := 0
		for l.passes < 500 {
			if short == nil || short.begun == 1 {
				since = l.passes
				short = l.ask("short", 16)
			}
			for _, r := range l.step() {
				if r.tenant == "long" {
					l.ask("long", textContext-1)
				}
			}
			if l.passes-since > 3 {
				t.Fatalf("with a cache of %d tokens, a short text waits more than 3 passes", cache)
			}
		}
	}
}

// A pass of a decoder has few texts, and reads all weights for them: texts of one token do not take
// many passes for each of another tenant.
func TestTextsOfOneTokenDoNotTakeMostPasses(t *testing.T) {
	const texts = 8
	l := countPasses(t)(textContext)
	for range 2 * l.opts.Sequences {
		l.ask("hog", 1)
	}
	for range texts {
		l.ask("other", l.opts.Backend.Chunk())
	}
	for left := texts; left > 0; {
		for _, r := range l.step() {
			if r.tenant == "hog" {
				l.ask("hog", 1)
			} else {
				left--
			}
		}
	}
	if most := texts * (shortPasses + 2); l.passes > most {
		t.Errorf("%d texts, each of which fills a pass, are computed in %d passes, want at most %d", texts, l.passes, most)
	}
}

// Texts of any lengths of tenants that always have some: the cache is never too full, and every text
// is computed.
func TestRandomTextsAreAllComputed(t *testing.T) {
	loop := countPasses(t)
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 21))
		l := loop(textContext + rng.IntN(2*textContext))
		tenants, each := 2+rng.IntN(3), 1+rng.IntN(2)
		since := map[*embedding]int{}
		ask := func(tenant string) {
			n := 1 + rng.IntN(textContext-1)
			if rng.IntN(3) == 0 {
				n = 1 + rng.IntN(200)
			}
			since[l.ask(tenant, n)] = l.passes
		}
		for i := range tenants * each {
			ask(fmt.Sprint(i % tenants))
		}
		for l.passes < 4000 {
			for _, r := range l.step() {
				delete(since, r)
				ask(r.tenant)
			}
			if rng.IntN(50) == 0 { // a client leaves
				r := l.requests[rng.IntN(len(l.requests))]
				r.forgetWalk()
				l.leave(slices.Index(l.requests, r))
				delete(since, r)
				ask(r.tenant)
			}
			most := 2 * tenants * each * textContext / l.opts.Backend.Chunk()
			for r, at := range since {
				if l.passes-at > most {
					t.Fatalf("seed %d: of %d tenants with %d texts each, one of %d tokens is not computed in %d passes", seed, tenants, each, r.inputs[0].Len(), most)
				}
			}
		}
	}
}

// TestTextsWhoseClientsLeaveTakeTurns: what is begun of a text counts also if its client leaves, or a
// tenant whose requests always leave would always be the next.
func TestTextsWhoseClientsLeaveTakeTurns(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	for name, size := range map[string]int{"a pass": 100, "a part of a long text": textContext - 1} {
		l := countPasses(t)(textContext)
		l.hard, l.log, l.admission = gone, slog.New(slog.DiscardHandler), newAdmission(9, 9)
		l.guard = guard.New(guard.Options{Backend: l.opts.Backend, Cached: func() int64 { return 0 }, Unread: func() int64 { return 0 }})
		turns := map[string]int{}
		for _, tenant := range []string{"leaves", "leaves", "other"} {
			l.ask(tenant, size).ctx = gone
		}
		for range 12 {
			pass := l.pass()
			turns[pass[0].of.tenant]++
			if err := l.compute(pass[:1]); err != nil {
				t.Fatal(err)
			}
		}
		if turns["other"] != 6 {
			t.Errorf("%s: of 12 turns %v", name, turns)
		}
	}
}

// TestATextUnderWayIsComputedNextToShortOnesOfItsTenant: a client that always had short ones kept its long text
// under way, and all of other tenants that had no room next to it waiting. Half of the time is left to the short ones.
func TestATextUnderWayIsComputedNextToShortOnesOfItsTenant(t *testing.T) {
	loop := countPasses(t)
	for _, short := range []int{1, 8, 100} {
		l := loop(2 * textContext)
		for range 25 {
			l.ask("hog", textContext-1)
		}
		l.step()
		for range 4 {
			l.ask("hog", short)
		}
		long := l.ask("other", textContext-1)
		tokens := 0 // of the short ones
		for long.begun == 0 && l.passes < 10_000 {
			for _, r := range l.step() {
				if n := r.inputs[0].Len(); n == short {
					l.ask("hog", n)
					tokens += max(n, l.least)
				}
			}
		}
		parts := textContext / l.opts.Backend.Chunk()
		if most := 2 * (2 + shortPasses) * parts; long.begun == 0 || l.passes > most {
			t.Errorf("next to short texts of %d tokens, a long one of %d parts ends after %d passes, want at most %d", short, parts, l.passes, most)
		}
		if tokens < textContext/2 {
			t.Errorf("%d tokens of short texts of %d are computed meanwhile, want %d", tokens, short, textContext/2)
		}
	}
}

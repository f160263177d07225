package engine

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// restoreTime is what a prefix takes in these tests, block its tokens, and tokenSize the bytes of one.
const restoreTime, block, tokenSize = 100 * time.Millisecond, 16, 4096

// idleBackend holds nothing.
type idleBackend struct{ tensor.Backend }

func (idleBackend) Memory() tensor.Memory { return tensor.Memory{} }

// restoringCache takes restoreTime for each prefix.
type restoringCache struct {
	tensor.Cache
	restored []batch.ID
}

func (c *restoringCache) SliceBytes(tokens int) int64 { return tokenSize * int64(tokens) }

func (c *restoringCache) Expect(tensor.RequestID, int) {}

func (c *restoringCache) Restore(id tensor.RequestID, _ int, _ [][]byte, _ []byte) error {
	time.Sleep(restoreTime)
	c.restored = append(c.restored, batch.ID(id))
	return nil
}

// restoring returns a planner with a cache for two blocks of each of n sequences. The first decodes, and
// the others wait with a cached prefix of a block.
func restoring(t *testing.T, n int) (*planner, *restoringCache) {
	t.Helper()
	sched, err := batch.New(batch.Limits{ContextTokens: 2 * block, CacheTokens: 2 * block * n, BlockTokens: block, Sequences: n, Queue: n})
	if err != nil {
		t.Fatal(err)
	}
	cache := &restoringCache{}
	prefixes := &prefixCache{shape: kv.Shape{Block: block}, ram: kv.NewMemory(1<<20, nil), blockTokens: block, tokenBytes: tokenSize, lending: true}
	t.Cleanup(func() { prefixes.ram.Close(t.Context()) })
	g := guard.New(guard.Options{Backend: idleBackend{}, Cached: prefixes.bytes, Unread: func() int64 { return 0 }})
	held := &sequences{byID: map[batch.ID]*sequence{}, sched: sched, kv: cache}
	side, _ := newSideWork()
	b := &blocks{sequences: held, prefixes: prefixes, guard: g, log: slog.New(slog.DiscardHandler), side: side}
	p := &planner{sequences: held, blocks: b, guard: g, chunk: block}
	for id := range batch.ID(n) {
		s := &sequence{id: id, tokens: make([]int32, block+2), prompt: block + 2}
		s.tokens[0] = int32(id)
		s.prefix.chain = prefixes.chain(s)
		s.prefix.chain.Grow(s.tokens)
		if id > 0 {
			prefixes.ram.Put(s.prefix.chain.Keys()[0], make([]byte, cache.SliceBytes(block)))
			prefixes.pin(s, s.prefix.chain.Keys()[0])
		}
		held.byID[id] = s
		if err := sched.Submit(batch.Request{ID: id, Prompt: len(s.tokens)}); err != nil {
			t.Fatal(err)
		}
		if id == 0 {
			p.admit()
			if err := errors.Join(sched.Computed(batch.Row{ID: 0, Length: len(s.tokens)}), sched.Grow(0)); err != nil {
				t.Fatal(err)
			}
			s.tokens = append(s.tokens, 0)
		}
	}
	return p, cache
}

// However many prefixes are to be restored while an answer is generated, they take no more time than its
// steps. None of them is computed or evicted while it waits.
func TestPrefixesAreRestoredInTurnsWithSteps(t *testing.T) {
	const others = 7
	synctest.Test(t, func(t *testing.T) {
		p, cache := restoring(t, 1+others)
		steps, completed := 0, time.Now()
		for ; len(cache.restored) < others && steps < 100; steps++ {
			p.admit()
			for _, row := range p.sched.ProposeChunks(block, p.blocks.held()...) {
				if row.Start == 0 {
					t.Fatalf("request %d, which waits for its prefix, is computed", row.ID)
				}
			}
			p.blocks.makeRoom()
			time.Sleep(restoreTime / 4)
			p.blocks.side.stepped(time.Since(completed)) // of a step that was in flight while one was restored
			completed = time.Now()
		}
		if steps < 4*(others-1) {
			t.Errorf("%d prefixes were restored within %d steps, which took a quarter as long", len(cache.restored), steps)
		}
		if want := []batch.ID{1, 2, 3, 4, 5, 6, 7}; !slices.Equal(cache.restored, want) {
			t.Errorf("%v were restored, want %v", cache.restored, want)
		}
	})
}

// While nothing is generated, no prefix waits.
func TestPrefixesAreRestoredAtOnceWithoutOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, cache := restoring(t, 4)
		p.sched.Remove(0)
		p.admit()
		if len(cache.restored) != 3 || len(p.blocks.pending) > 0 {
			t.Errorf("%v were restored, and %v wait", cache.restored, p.blocks.pending)
		}
	})
}

// While a prompt of another owner waits or is computed, and from the moment that it comes, prefixes take
// no more time than the steps, which it is in.
func TestPrefixesLeaveTimeToPromptsOfOthers(t *testing.T) {
	const victim, owner = 100, "victim"
	for _, there := range []bool{true, false} { // else it comes while the first prefix is restored
		synctest.Test(t, func(t *testing.T) {
			p, cache := restoring(t, 8)
			p.sched.Remove(0)
			come := func() {
				s := &sequence{id: victim, owner: owner, tokens: make([]int32, 2*block), prompt: 2 * block}
				s.tokens[0] = victim
				s.prefix.chain = p.blocks.prefixes.chain(s)
				if p.byID[victim] = s; p.sched.Submit(batch.Request{ID: victim, Prompt: s.prompt, Tenant: owner}) != nil {
					t.Fatal("the other prompt has no place")
				}
			}
			p.blocks.came = func(string) bool { return !there && len(cache.restored) > 0 }
			if there {
				come()
			}
			for step := range 12 {
				p.admit()
				if n, most := len(cache.restored), 1+step/4; n > most {
					t.Fatalf("it was there: %t; %d prefixes were restored before step %d, want %d: each takes as long as 4 steps", there, n, step, most)
				}
				rows := p.sched.ProposeChunks(8*block, p.blocks.held()...)
				if there && !slices.ContainsFunc(rows, func(r batch.Row) bool { return r.ID == victim }) {
					t.Fatalf("step %d has the rows %v, and none of the other prompt", step, rows)
				}
				if !there {
					come()
					there = true
				}
				time.Sleep(restoreTime / 4)
				p.blocks.side.stepped(restoreTime / 4)
			}
		})
	}
}

// Without a step, nothing that waits for steps would ever be done.
func TestSideWorkWaitsForNoStepsThatThereAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		restores, images := newSideWork()
		for _, w := range []*sideWork{restores, images} {
			began := time.Now()
			time.Sleep(restoreTime)
			if w.did(began, 1); !w.waits(1) || w.waits(0) {
				t.Fatal("it waits without others, or not next to them")
			}
			if !restores.forgive() || w.waits(1) {
				t.Error("it waits for steps although there is none")
			}
			if restores.forgive(); restores.forgive() {
				t.Error("something waits although nothing does")
			}
		}
	})
}

// TestAttackPrefixesAndImagesTogether: requests with both took twice as much time as the steps of others. Together
// they take as much, half of it each, and all of it if the other has no more.
func TestAttackPrefixesAndImagesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		restores, images := newSideWork()
		spent := map[*sideWork]time.Duration{}
		var steps time.Duration
		round := func(works ...*sideWork) {
			for _, w := range works {
				for range 3 { // several wait
					if began := time.Now(); !w.waits(1) {
						time.Sleep(restoreTime)
						w.did(began, 1)
						spent[w] += restoreTime
					}
				}
			}
			time.Sleep(restoreTime / 4)
			steps += restoreTime / 4
			restores.stepped(restoreTime / 4)
		}
		for range 400 {
			round(images, restores)
		}
		if a, b := spent[images], spent[restores]; a+b > steps+restoreTime || max(a, b)-min(a, b) > restoreTime {
			t.Errorf("images take %v and prefixes %v next to steps of %v", a, b, steps)
		}
		before := spent[restores]
		for range 400 {
			round(restores)
		}
		if got := spent[restores] - before; got < 9*restoreTime*10 {
			t.Errorf("without images, prefixes take %v next to steps of %v", got, steps/2)
		}
	})
}

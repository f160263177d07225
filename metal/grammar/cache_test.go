package grammar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
)

func TestTheCacheKeepsWhatWasUsedLast(t *testing.T) {
	_, tokens := bytesAlone(words...)
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 0)
	ctx := context.Background()
	choice := func(i int) Spec { return Spec{Kind: Choice, Choices: []string{fmt.Sprint(i)}} }
	first, release, err := c.Table(ctx, "", choice(0))
	if err != nil {
		t.Fatal(err)
	}
	c.limit = c.Bytes() + 2*first.Bytes()
	for i := range 20 {
		if _, done, err := c.Table(ctx, "", choice(i)); err != nil {
			t.Fatal(err)
		} else {
			done()
			done() // a second time is nothing
		}
	}
	again, done, err := c.Table(ctx, "", choice(0))
	if err != nil || again != first {
		t.Errorf("what is in use was compiled again (%v)", err)
	}
	done()
	if n := len(c.entries); n > 4 || c.Bytes() > c.limit {
		t.Errorf("%d constraints of %d bytes are kept, of at most %d", n, c.Bytes(), c.limit)
	}
	last := c.entries[cacheKey{spec: choice(19).key()}]
	if last == nil {
		t.Error("the newest is gone")
	}
	release()
	if c.limit = 0; true {
		_, done, err := c.Table(ctx, "", choice(99))
		if err != nil {
			t.Fatal(err)
		}
		done()
	}
	if len(c.entries) != 0 {
		t.Errorf("%d unused constraints are kept", len(c.entries))
	}
}

func TestConstraintsAreToldApartAndARefusedOneIsNotKept(t *testing.T) {
	if (Spec{Kind: Choice, Choices: []string{"ab", "c"}}).key() == (Spec{Kind: Choice, Choices: []string{"a", "bc"}}).key() {
		t.Error("two choices are one")
	}
	if (Spec{Kind: Regex, Source: "a"}).key() == (Spec{Kind: EBNF, Source: "a"}).key() {
		t.Error("an expression is a grammar")
	}
	_, tokens := bytesAlone()
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 1<<20)
	if _, _, err := c.Table(context.Background(), "", Spec{Kind: Regex, Source: "("}); !errors.Is(err, ErrInvalid) || len(c.entries) != 0 {
		t.Errorf("%v, %d kept", err, len(c.entries))
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, first := c.begin(cacheKey{spec: Spec{Kind: Regex, Source: "a"}.key()}); !first {
		t.Fatal("a constraint is compiled without a request")
	}
	if _, _, err := c.Table(ended, "", Spec{Kind: Regex, Source: "a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that left waits on: %v", err)
	}
}

// Each tenant has its own constraints, and who takes most room loses some first.
func TestTenantsShareTheCache(t *testing.T) {
	_, tokens := bytesAlone(words...)
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 1<<30)
	kept := func(tenant string, i int) (*Table, bool) {
		e := c.entries[cacheKey{tenant: tenant, spec: Spec{Kind: Choice, Choices: []string{fmt.Sprint(1000 + i)}}.key()}]
		if e == nil {
			return nil, false
		}
		return e.table, true
	}
	ask := func(tenant string, i int) {
		t.Helper()
		_, release, err := c.Table(t.Context(), tenant, Spec{Kind: Choice, Choices: []string{fmt.Sprint(1000 + i)}})
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	ask("victim", 0)
	ask("victim", 1)
	victims, _ := kept("victim", 0)
	c.limit = c.words + 10*victims.Bytes()
	for i := range 50 {
		ask("hog", i)
	}
	if one, ok := kept("hog", 49); !ok || one == victims {
		t.Error("the newest constraint is not kept")
	}
	if _, ok := kept("hog", 42); !ok {
		t.Error("a tenant alone may not use what others leave")
	}
	for i := range 2 {
		if _, ok := kept("victim", i); !ok {
			t.Errorf("constraint %d of another tenant is gone", i)
		}
	}
	ask("hog", 0)
	if theirs, ok := kept("hog", 0); !ok || theirs == victims {
		t.Error("two tenants have one constraint: the time it takes reveals requests of another")
	}
}

// A random history of requests: the running sums are those of a walk over all entries, what is
// evicted is the least recently used of the tenant with the most, and nothing in use is.
func TestTheCacheCountsWhatItKeeps(t *testing.T) {
	_, tokens := bytesAlone(words...)
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 0)
	c.limit = c.vocab().Bytes() + 100<<10
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	type use struct {
		key     cacheKey
		table   *Table
		release func()
	}
	var used []use
	idle := map[string][]cacheKey{} // by tenant, the oldest first
	drop := func(tenant string, k cacheKey) {
		idle[tenant] = slices.DeleteFunc(idle[tenant], func(o cacheKey) bool { return o == k })
	}
	for range 2000 {
		if len(used) > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(len(used))
			u := used[i]
			used = slices.Delete(used, i, i+1)
			m := u.table.Match(false)
			if _, err := m.Mask(t.Context()); err != nil {
				t.Fatal(err)
			}
			u.release()
			if !slices.ContainsFunc(used, func(o use) bool { return o.key == u.key }) {
				idle[u.key.tenant] = append(idle[u.key.tenant], u.key)
			}
		} else {
			tenant, s := fmt.Sprint(rng.IntN(3)), Spec{Kind: Choice, Choices: []string{fmt.Sprint(rng.IntN(30))}}
			table, release, err := c.Table(t.Context(), tenant, s)
			if err != nil {
				t.Fatal(err)
			}
			k := cacheKey{tenant, s.key()}
			used = append(used, use{k, table, release})
			drop(tenant, k)
		}
		all := c.words
		for _, e := range c.entries {
			all += e.table.Bytes()
		}
		if all != c.Bytes() {
			t.Fatalf("%d bytes are counted, and there are %d", c.Bytes(), all)
		}
		for tenant, keys := range idle {
			kept := slices.IndexFunc(keys, func(k cacheKey) bool { return c.entries[k] != nil })
			if kept < 0 {
				kept = len(keys)
			}
			for _, k := range keys[kept:] {
				if c.entries[k] == nil {
					t.Fatal("what was used later is evicted first")
				}
			}
			idle[tenant] = keys[kept:]
			if all > c.limit && len(idle[tenant]) > 0 {
				t.Fatalf("%d bytes are kept, more than %d, and an entry is not in use", all, c.limit)
			}
		}
		for _, u := range used {
			if e := c.entries[u.key]; e == nil || e.table != u.table {
				t.Fatal("an entry in use is evicted")
			}
		}
	}
	for _, u := range used {
		u.release()
	}
	c.limit = 0
	c.mu.Lock()
	c.shrink(0)
	c.mu.Unlock()
	if c.bytes.Load() != 0 || len(c.entries) != 0 || len(c.tenants) != 0 {
		t.Errorf("%d bytes of %d entries and %d tenants are left", c.bytes.Load(), len(c.entries), len(c.tenants))
	}
}

// The limit is one of memory: what small constraints take besides their nodes counts.
func TestTheCacheCountsTheMemoryOfSmallConstraints(t *testing.T) {
	_, tokens := bytesAlone(words...)
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 1<<30)
	c.vocab()
	before, counted := heap(), c.Bytes()
	const n = 2000
	for i := range n {
		_, release, err := c.Table(t.Context(), "", Spec{Kind: Choice, Choices: []string{fmt.Sprint(i)}})
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	taken := heap() - before
	counted = c.Bytes() - counted
	t.Logf("%d bytes of heap each, %d are counted", taken/n, counted/n)
	if 4*taken > 5*counted || counted > 2*taken {
		t.Errorf("%d constraints take %d bytes, and %d are counted", n, taken, counted)
	}
	runtime.KeepAlive(c)
}

// heap is how many bytes are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A compilation that ends in a panic holds up no request that waits for the same constraint.
func TestAPanicLeavesNoCompilationUnderWay(t *testing.T) {
	c := NewCache(4, func(int32) []byte { panic("no spelling") }, 1<<20)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 2 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("there was no panic")
				}
			}()
			_, _, err := c.Table(ctx, "a", Spec{Kind: Choice, Choices: []string{"a"}})
			t.Errorf("it waited: %v", err)
		}()
	}
	if n := len(c.compiling); n != 0 || c.heavy.Free() != maxHeavy {
		t.Errorf("%d compilations are under way", n)
	}
}

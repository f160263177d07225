package grammar

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/metal/share"
)

// weighs measures the memory in use at some of its looks at a context.
type weighs struct {
	context.Context
	m           *meter
	looks, each int
	base        int64
	// over is the most that was in use beyond what was counted, and live the most in use.
	over, live int64
}

func (w *weighs) Err() error {
	if w.looks++; w.looks%w.each == 0 {
		live := heap() - w.base
		w.live = max(w.live, live)
		w.over = max(w.over, live-w.m.held)
	}
	return w.Context.Err()
}

// TestCompilingCountsTheMemoryThatItTakes: what a compilation counts is at least what it holds.
func TestCompilingCountsTheMemoryThatItTakes(t *testing.T) {
	const looks, slack = 6, 1 << 20
	for name, s := range map[string]Spec{
		"functions":           tools(50),
		"functions in JSON":   jsonTools(50),
		"a text":              {Kind: EBNF, Source: `root ::= "` + strings.Repeat("a", 120_000) + `"`},
		"characters":          {Kind: EBNF, Source: `root ::= ` + strings.Repeat(".", 120_000)},
		"rules":               {Kind: EBNF, Source: emptyChain(5000)},
		"items":               schema(`{"allOf":[` + listed(`{"items":{}}`, 60) + `],"prefixItems":[` + listed("{}", 60_000) + `]}`),
		"patterns":            schema(patterns(1500, "%d")),
		"references":          schema(references(10_900)),
		"values":              schema(listOf(10_000)),
		"states of a pattern": {Kind: Regex, Source: `(a|b)*a(a|b){11}c`},
		"classes of letters":  {Kind: Regex, Source: strings.Repeat(`\W`, 1000)},
		"a long parameter":    taggedCall("f", strings.Repeat("\n<parameter=", 4000)),
		"many functions":      manyFirst(1000),
	} {
		_, work, _ := compiled(t.Context(), s)
		w := &weighs{Context: t.Context(), each: 1 + int(work/sliceWork/looks), base: heap()}
		w.m = newMeter(w, nil)
		if _, err := compile(w.m, s); err != nil && !errors.Is(err, errLimit) {
			t.Errorf("%s: %v", name, err)
		}
		if t.Logf("%s: %d KiB at most", name, w.live>>10); w.over > slack {
			t.Errorf("%s: %d KiB are in use that are not counted", name, w.over>>10)
		}
	}
	for _, source := range []string{listed(`{"a":1}`, 30_000), listed(`{}`, 80_000), listed(`1`, 120_000), listed(`"ab"`, 50_000), listed(`[]`, 80_000), `{` + listedNames(20_000) + `}`} {
		m, before := newMeter(t.Context(), nil), heap()
		v, err := parseValue(m, "["+source+"]")
		if live := heap() - before; err != nil || live > m.held+slack {
			t.Errorf("JSON of %.9s: %d KiB, and %d are counted (%v)", source, live>>10, m.held>>10, err)
		}
		runtime.KeepAlive(v)
	}
}

// listedNames are n members of an object.
func listedNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"n%d":0,`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// tools are n functions as coding agents have them.
func tools(n int) Spec {
	const parameters = `{"type":"object","properties":{"path":{"type":"string","description":"The file to read, relative to the workspace."},` +
		`"offset":{"type":"integer","minimum":0},"limit":{"type":"integer","minimum":1,"maximum":2000},` +
		`"mode":{"type":"string","enum":["read","write","append"]},"edits":{"type":"array","items":{"type":"object","properties":` +
		`{"old":{"type":"string"},"new":{"type":"string"},"all":{"type":"boolean"}},"required":["old","new"]}},` +
		`"options":{"type":"object","additionalProperties":{"type":"string"}},"tags":{"type":"array","items":{"type":"string"}}},"required":["path"]}`
	s := taggedCall("f", "p")
	s.Calls.First, s.Calls.Functions = nil, nil
	for i := range n {
		s.Calls.Functions = append(s.Calls.Functions, Function{fmt.Sprintf("workspace_tool_%d", i), parameters})
	}
	return s
}

// jsonTools are the same with arguments in JSON.
func jsonTools(n int) Spec {
	s := tools(n)
	s.Calls.Groups[0].Chains = []Chain{{Forms: []Form{{Style: JSON, Before: "{", After: "}"}}}}
	return s
}

// inUse is how many bytes of the heap are taken, garbage included.
func inUse() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// TestAttackManyConstraintsAreCompiledAtOnce: however many constraints are compiled at once, and
// whether they are refused or not, they take the memory of their places alone and give it back.
func TestAttackManyConstraintsAreCompiledAtOnce(t *testing.T) {
	_, tokens := bytesAlone(words...)
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 1<<20)
	text := strings.Repeat("a", 100_000)
	items := `"allOf":[` + listed(`{"items":{}}`, 60) + `],"prefixItems":[` + listed("{}", 60_000) + `]}`
	base := heap()
	var counted, heaped atomic.Int64
	done := make(chan struct{})
	var watch, all sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				counted.Store(max(counted.Load(), c.making.Load()))
				heaped.Store(max(heaped.Load(), inUse()-base))
			}
		}
	})
	for i := range 48 {
		all.Go(func() {
			s := Spec{Kind: EBNF, Source: fmt.Sprintf(`root ::= "%d%s"`, i, text)}
			if i%6 == 0 {
				s = schema(fmt.Sprintf(`{"title":"%d",%s`, i, items))
			}
			_, release, err := c.Table(t.Context(), fmt.Sprint(i%3), s)
			if err == nil {
				release()
			} else if !errors.Is(err, errLimit) && !errors.Is(err, ErrBusy) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	close(done)
	watch.Wait()
	const budget = 32 << 20
	t.Logf("at most %d MiB are counted, and the heap is %d MiB larger", counted.Load()>>20, heaped.Load()>>20)
	if n := counted.Load(); n == 0 || n > budget {
		t.Errorf("%d bytes are compiled at once, of a budget of %d", n, budget)
	}
	if n := heaped.Load(); n > 3*budget {
		t.Errorf("the heap grew by %d MiB", n>>20)
	}
	if n := c.making.Load(); n != 0 || c.quick.Free() != maxQuick || c.heavy.Free() != maxHeavy {
		t.Errorf("%d bytes are counted after the last compilation, %d quick and %d heavy places are free", n, c.quick.Free(), c.heavy.Free())
	}
}

// A constraint that no place has the memory for is refused with a next step, and costs its work
// once.
func TestAConstraintOfTooMuchMemoryIsRefusedOnce(t *testing.T) {
	_, tokens := bytesAlone(words...)
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 1<<20)
	s := schema(`{"prefixItems":[` + listed("{}", 60_000) + `]}`)
	refused := func(ctx context.Context) {
		t.Helper()
		var e *Error
		if _, _, err := c.Table(ctx, "a", s); !errors.As(err, &e) || !errors.Is(err, errLimit) || !strings.Contains(err.Error(), "simplify it") {
			t.Errorf("error %v, want one of %v with a next step", err, errLimit)
		}
	}
	m := newMeter(t.Context(), nil)
	if compile(m, s); m.held > heavyBytes+1<<20 {
		t.Errorf("%d bytes are made before it is refused, want at most %d", m.held, heavyBytes)
	}
	ctx := &endsAt{Context: t.Context(), n: 1 << 30}
	refused(ctx)
	if ctx.looks == 0 {
		t.Fatal("it took no work")
	}
	ctx.looks = 0
	if refused(ctx); ctx.looks != 0 {
		t.Error("the same text costs its work again")
	}
	for i := range 2 * maxRefusals {
		c.refused.add(cacheKey{tenant: fmt.Sprint(i)}, tooLarge("bytes", i))
	}
	if len(c.refused.keys) != maxRefusals || len(c.refused.errors) != maxRefusals {
		t.Errorf("%d refusals are remembered", len(c.refused.errors))
	}
	c.refused.add(cacheKey{tenant: "b"}, context.Canceled)
	if err := c.refused.of(cacheKey{tenant: "b"}); err != nil {
		t.Errorf("a client that left is remembered as %v", err)
	}
}

// Tenants take turns at the places of quick constraints, and who waits for one leaves with the
// context.
func TestTenantsTakeTurnsAtQuickConstraints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, tokens := bytesAlone(words...)
		c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 1<<20)
		for range maxQuick {
			if err := c.quick.Take(t.Context(), "hog"); err != nil {
				t.Fatal(err)
			}
		}
		ended := make(chan string, 100)
		compile := func(ctx context.Context, tenant string, i int) {
			go func() {
				_, release, err := c.Table(ctx, tenant, Spec{Kind: Choice, Choices: []string{fmt.Sprint(i)}})
				switch {
				case err == nil:
					release()
					ended <- tenant
				case errors.Is(err, context.Canceled):
					ended <- "left"
				default:
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		for i := range 8 {
			compile(t.Context(), "hog", i)
		}
		ctx, leave := context.WithCancel(t.Context())
		compile(ctx, "victim", 0)
		leave()
		synctest.Wait()
		if got := <-ended; got != "left" {
			t.Errorf("the request of %s ended first, want the one whose client left", got)
		}
		compile(t.Context(), "victim", 1)
		c.quick.Give("hog")
		if got := <-ended; got != "victim" {
			t.Errorf("the place went to %s, which has %d others", got, maxQuick-1)
		}
		for range maxQuick - 1 {
			c.quick.Give("hog")
		}
		for range 8 {
			<-ended
		}
		if synctest.Wait(); c.quick.Free() != maxQuick || len(c.compiling) != 0 {
			t.Errorf("%d places are free, %d constraints are compiled", c.quick.Free(), len(c.compiling))
		}
	})
}

// The states and masks of all constraints in use have a bound together, also where each needs
// more for one token, and the masks are those of a table alone.
func TestStatesOfConstraintsInUseHaveABound(t *testing.T) {
	v, tokens := vocabularyOf(20_000)
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 1<<20)
	c.used = share.NewBytes(1 << 30)
	const n = 24
	most, waited := int64(0), false
	for i := range n {
		s := Spec{Kind: EBNF, Source: fmt.Sprintf(`root ::= [a-z ]* "e" [a-z ]{10} # %d`, i)}
		table, release, err := c.Table(t.Context(), "a", s)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		if i == n-1 { // the others leave nothing
			c.tenants["a"].use(statesBytes)
			defer c.tenants["a"].use(-statesBytes)
		}
		m, alone := table.Match(false), NewTable(table.g, v).Match(false)
		for _, text := range []string{"e", "een", " the"} {
			for _, m := range []*Matcher{&m, &alone} {
				if ok, err := m.Follow(t.Context(), []byte(text)); !ok || err != nil {
					t.Fatalf("%q: %v, %v", text, ok, err)
				}
			}
			got, err := m.Mask(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want, err := alone.Mask(t.Context())
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("constraint %d has another mask after %q (%v)", i, text, err)
			}
			waited = waited || alone.t.bytes.Load() > leastBytes
			if most = max(most, table.bytes.Load()); i == n-1 && table.bytes.Load() > leastBytes {
				t.Errorf("a table keeps %d bytes where others leave none", table.bytes.Load())
			}
		}
	}
	if !waited {
		t.Error("no mask needed a heavy place")
	}
	if limit := int64(statesBytes/2 + n*leastBytes); c.states.Load()-statesBytes > limit {
		t.Errorf("the states of a tenant take %d bytes, want at most %d", c.states.Load()-statesBytes, limit)
	}
	t.Logf("a table has %d KiB at most", most>>10)
}

package grammar

import (
	"context"
	"errors"
	"fmt"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

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

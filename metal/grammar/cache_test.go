package grammar

import (
	"context"
	"errors"
	"fmt"
	"testing"
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

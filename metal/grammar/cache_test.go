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
	first, release, err := c.Table(ctx, choice(0))
	if err != nil {
		t.Fatal(err)
	}
	c.limit = c.Bytes() + 2*first.Bytes()
	for i := range 20 {
		if _, done, err := c.Table(ctx, choice(i)); err != nil {
			t.Fatal(err)
		} else {
			done()
			done() // a second time is nothing
		}
	}
	again, done, err := c.Table(ctx, choice(0))
	if err != nil || again != first {
		t.Errorf("what is in use was compiled again (%v)", err)
	}
	done()
	if n := len(c.entries); n > 4 || c.Bytes() > c.limit {
		t.Errorf("%d constraints of %d bytes are kept, of at most %d", n, c.Bytes(), c.limit)
	}
	last := c.entries[choice(19).key()]
	if last == nil {
		t.Error("the newest is gone")
	}
	release()
	if c.limit = 0; true {
		_, done, err := c.Table(ctx, choice(99))
		if err != nil {
			t.Fatal(err)
		}
		done()
	}
	if len(c.entries) != 0 {
		t.Errorf("%d constraints that nobody uses are kept", len(c.entries))
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
	if _, _, err := c.Table(context.Background(), Spec{Kind: Regex, Source: "("}); !errors.Is(err, ErrInvalid) || len(c.entries) != 0 {
		t.Errorf("%v, %d kept", err, len(c.entries))
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, first := c.begin((Spec{Kind: Regex, Source: "a"}).key()); !first {
		t.Fatal("a constraint is compiled without a request")
	}
	if _, _, err := c.Table(ended, Spec{Kind: Regex, Source: "a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that left waits on: %v", err)
	}
}

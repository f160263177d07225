package grammar

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/test/patience"
)

// TestAttackGrammarsInUse: those in use cannot be evicted, so that a tenant gets half of
// what others leave, and its states are fewer the more of them there are.
func TestAttackGrammarsInUse(t *testing.T) {
	_, tokens := bytesAlone(words...)
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 1<<20)
	ask := func(tenant string, i int) (*Table, func(), error) {
		return c.Table(t.Context(), tenant, Spec{Kind: Regex, Source: fmt.Sprintf("%d[a-z]{1,999}", i)})
	}
	large, release, err := ask("hog", 0)
	if err != nil {
		t.Fatal(err)
	}
	release()
	const most = 100
	c.used = share.NewBytes((2*most + 1) * large.g.Bytes())
	if large, release, err = ask("hog", 0); err != nil {
		t.Fatal(err)
	}
	var releases []func()
	n := 1
	for ; n <= 2*most; n++ {
		_, release, err := ask("hog", n)
		if errors.Is(err, ErrBusy) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	if n < most-1 || n > most+1 {
		t.Errorf("a tenant uses %d grammars, want about %d", n, most)
	}
	if _, release, err := ask("victim", 0); err != nil {
		t.Errorf("another tenant finds no room: %v", err)
	} else {
		release()
	}
	large.grow(leastBytes)
	others := int64(statesBytes/2 - leastBytes)
	c.tenants["hog"].use(others)
	if large.makeRoom(large.starts[0]); large.bytes.Load() != large.starts[0].own {
		t.Errorf("a table of a tenant whose others have %d bytes keeps states of %d", others, leastBytes)
	}
	c.tenants["hog"].use(-others)
	release()
	if _, release, err = ask("hog", n+1); err != nil {
		t.Errorf("what is given back is not used again: %v", err)
	}
	for _, release := range append(releases, release) {
		release()
	}
	if c.used.Held() != 0 || c.states.Load() != 0 || c.tenants["hog"].states.Load() != 0 {
		t.Errorf("%d bytes are in use by no tenant, and %d of states", c.used.Held(), c.states.Load())
	}
}

// Masks that need many states at once share the one heavy place and the processors. None waits
// for one of them with the other in its hands, so that all of them come.
func TestMasksThatNeedManyStatesAtOnceAllCome(t *testing.T) {
	_, tokens := vocabularyOf(20_000)
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 48<<20)
	ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	masks := func(i int) error {
		table, release, err := c.Table(ctx, "a", Spec{Kind: EBNF, Source: fmt.Sprintf(`root ::= [a-z ]* "e" [a-z ]{12} # %d`, i)})
		if err != nil {
			return err
		}
		defer release()
		m := table.Match(false)
		for _, text := range []string{"e", "een", " the", "the", "e", "een"} {
			if ok, err := m.Follow(ctx, []byte(text)); !ok || err != nil {
				return fmt.Errorf("%q: %v, %w", text, ok, err)
			}
			if _, err := m.Mask(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	const n = 8
	ended := make(chan error, n)
	for i := range n {
		go func() { ended <- masks(i) }()
	}
	for range n {
		if err := <-ended; err != nil {
			t.Errorf("a mask did not come: %v; %d heavy places and %d processors are free", err, c.heavy.Free(), c.processors.Free())
		}
	}
	if c.heavy.Free() != maxHeavy || c.processors.Taken("a") != 0 {
		t.Errorf("%d heavy places are free, and %d processors taken", c.heavy.Free(), c.processors.Taken("a"))
	}
}

package grammar

import (
	"errors"
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/metal/share"
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
	large.bytes.Store(leastBytes + 1)
	if large.makeRoom(large.starts[0]); large.bytes.Load() != 0 {
		t.Errorf("a table of a tenant that uses %d keeps states of %d bytes", n, leastBytes)
	}
	release()
	if _, release, err = ask("hog", n+1); err != nil {
		t.Errorf("what is given back is not used again: %v", err)
	}
	for _, release := range append(releases, release) {
		release()
	}
	if c.used.Held() != 0 || c.tenants["hog"].inUse.Load() != 0 {
		t.Errorf("%d bytes are in use by no tenant, and %d tables", c.used.Held(), c.tenants["hog"].inUse.Load())
	}
}

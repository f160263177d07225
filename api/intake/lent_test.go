package intake

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
)

// TestMemoryThatWasLentGivesWay to bodies of owners with less, once, and to none of its own owner. What
// was recalled stays, unless it gave way before.
func TestMemoryThatWasLentGivesWay(t *testing.T) {
	const large, small = 360 << 10, 300 << 10
	b := &Bodies{Max: 2 << 20}
	read := func(owner string, size int) (Kept, error) {
		_, kept, err := b.Read(strings.NewReader(strings.Repeat("x", size)), owner, int64(size), 1<<20, func() {})
		return kept, err
	}
	dropped := map[string]int{}
	lend := func(kept Kept, name string) { kept.Lend(func() { dropped[name]++ }) }
	first, err := read("heavy", large)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := b.Hold("heavy", large)
	if err != nil {
		t.Fatal(err)
	}
	other, err := read("other", 700<<10)
	if err != nil {
		t.Fatal(err)
	}
	lend(first, "first")
	lend(stored, "stored")
	lend(stored, "twice")
	if _, err := read("heavy", large); openai.AsError(err).Status != 503 || len(dropped) > 0 {
		t.Errorf("another body of the same owner: %v, and %v gave way", err, dropped)
	}
	if !first.Recall() {
		t.Error("a body is gone that gave way to none")
	}
	light, err := read("light", large)
	if err != nil || len(dropped) != 1 || dropped["stored"] != 1 {
		t.Errorf("a body of a lighter owner: %v; %v gave way", err, dropped)
	}
	if stored.Recall() {
		t.Error("what gave way is there")
	}
	if _, err := read("third", small); openai.AsError(err).Status != 503 {
		t.Errorf("a body was recalled, and another one has its memory: %v", err)
	}
	lend(first, "first again")
	third, err := read("third", small)
	if err != nil || dropped["first again"] != 1 {
		t.Errorf("a body that was lent again: %v, %v gave way", err, dropped)
	}
	for _, kept := range []Kept{first, stored, other, light, third, light} {
		kept.Release()
	}
	lend(light, "released")
	if b.Held() != 0 || len(b.owners) > 0 || dropped["released"] > 0 {
		t.Errorf("%d bytes of %d owners are held at the end", b.Held(), len(b.owners))
	}
}

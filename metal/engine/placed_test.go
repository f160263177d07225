package engine

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
)

// A text that contains what stands for images is not multiplied by it: places are counted before
// they are written, and what would be too long is not made.
func TestPlaceholdersAreCountedBeforeTheyAreWritten(t *testing.T) {
	spell := func(id int32) []byte {
		return []byte(map[int32]string{1: "b", 2: "i", 3: strings.Repeat("e", 1<<20)}[id])
	}
	for _, bare := range []bool{false, true} {
		p := &inputProcessor{context: 64, images: &imageProcessor{tower: family.Tower{Begin: 1, Image: 2, End: 3, Bare: bare}}}
		mark := map[bool]string{false: "b", true: "i"}[bare]
		got, refusal := p.placed(strings.Repeat(mark, 16<<10), 2, spell)
		if refusal == nil || got != "" || !strings.Contains(refusal.Message, "16384 places for 2 images") {
			t.Errorf("bare %v, many places: %d bytes, %v", bare, len(got), refusal)
		}
		if got, refusal = p.placed("a "+mark+mark, 2, spell); refusal == nil || got != "" || refusal.Kind != ContextLength {
			t.Errorf("bare %v, long places: %d bytes, %v", bare, len(got), refusal)
		}
		short := func(id int32) []byte { return spell(id)[:1] }
		want := map[bool]string{false: "a \n\nbie\n\n", true: "a bie"}[bare]
		if got, refusal = p.placed("a "+mark, 1, short); refusal != nil || got != want {
			t.Errorf("bare %v: %q, %v, want %q", bare, got, refusal, want)
		}
	}
}

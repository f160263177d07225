//go:build !race

package tokenizer

import (
	"runtime"
	"strings"
	"testing"
)

// TestAttackByteTokensThatBreakLate: a run of byte tokens waits for its end, and may be as long as
// an answer. All streams of an engine wait for the text of a token.
func TestAttackByteTokensThatBreakLate(t *testing.T) {
	const unknown, letter, broken, word = 0, 1, 2, 3
	tok, err := FromGGUF(map[string]any{
		keyModel: "llama", keyTokens: []string{"<unk>", "<0x41>", "<0xFF>", "a"}, keyTokenType: []int32{2, 6, 6, 1}, keyScores: []float32{0, 0, 0, 0},
		"tokenizer.ggml.unknown_token_id": uint64(unknown),
	})
	if err != nil {
		t.Fatal(err)
	}
	allocated := func(n int) uint64 {
		d := tok.NewDecoder(true)
		if _, err := d.Push(word); err != nil {
			t.Fatal(err)
		}
		for range n {
			if text, err := d.Push(letter); err != nil || text != "" {
				t.Fatalf("a run that has not ended shows %q (%v)", text, err)
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		text, err := d.Push(broken)
		runtime.ReadMemStats(&after)
		if want := strings.Repeat(replacement, n+1); err != nil || text != want {
			t.Fatalf("%d bytes of text (%v), want %d", len(text), err, len(want))
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	if few, many := allocated(1<<11), allocated(1<<14); many > 16*few {
		t.Errorf("%d bytes are allocated for a run, and %d for one of 8 times as many tokens", few, many)
	}
}

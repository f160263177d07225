//go:build !race

package tokenizer

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

// allocated is how many MiB a function allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) >> 20
}

// TestANormalizerThatWritesBeforeItCounts: each step made up to 64 times the budget before
// the budget was asked, 1 GiB for a text of 1 KiB.
func TestANormalizerThatWritesBeforeItCounts(t *testing.T) {
	byPattern := strings.ReplaceAll(sixtyFour(6), `{"String":"a"}`, `{"Regex":"a|aaaaaa"}`)
	for name, steps := range map[string]string{"strings": sixtyFour(6), "expressions": byPattern} {
		tok, err := kit(t, map[string]string{"normalizer": `{"type":"Sequence","normalizers":[` + steps + `]}`})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1 << 10, 256 << 10} {
			text := strings.Repeat("a", n)
			mib := allocated(func() { _, err = tok.Encode(text, EncodeOptions{Limit: 1000}) })
			if most := uint64(8 + 128*n>>20); !errors.Is(err, errTooSlow) || mib > most {
				t.Errorf("%s, %d bytes: %v after %d MiB, want at most %d", name, n, err, mib, most)
			}
		}
		added := map[string]string{"normalizer": `{"type":"Sequence","normalizers":[` + steps + `]}`, "added": `{"id":4,"content":"` + strings.Repeat("a", 1000) + `","normalized":true}`}
		if mib := allocated(func() { _, err = kit(t, added) }); !errors.Is(err, errTooSlow) || mib > 64 {
			t.Errorf("%s, an added token: %v after %d MiB", name, err, mib)
		}
	}
}

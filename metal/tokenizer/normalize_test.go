//go:build !race

package tokenizer

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
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

// A character that a normal form takes apart into many is counted before that.
func TestANormalFormOfALongTextIsCountedFirst(t *testing.T) {
	const one = "\ufdfa" // 18 characters
	replace := `{"type":"Replace","pattern":{"String":"a"},"content":"` + strings.Repeat(one, 2) + `"}`
	for _, form := range []string{`{"type":"NFKD"}`, `{"type":"NFKC"}`} {
		tok, err := kit(t, map[string]string{"normalizer": `{"type":"Sequence","normalizers":[` + replace + `,` + form + `]}`})
		if err != nil {
			t.Fatal(err)
		}
		const n = 4 << 20
		mib := allocated(func() { _, err = tok.Encode(strings.Repeat("a", n), EncodeOptions{Limit: 1000}) })
		if !errors.Is(err, errTooSlow) || mib > 64 {
			t.Errorf("%s: %v after %d MiB", form, err, mib)
		}
		if _, err := tok.Encode(strings.Repeat("a", 1000), EncodeOptions{}); err != nil {
			t.Errorf("%s, a short text: %v", form, err)
		}
	}
	for r := rune(0xa0); r <= utf8.MaxRune; r++ {
		s := string(r)
		if decomposedBytes(s) > maxDecomposed*len(s) {
			t.Fatalf("%U is %d bytes", r, decomposedBytes(s))
		}
		for _, form := range []norm.Form{norm.NFD, norm.NFKD} {
			if got, want := decomposed(nil, r, form), form.String(s); utf8.ValidRune(r) && string(got) != want {
				t.Errorf("%U is %q, want %q", r, got, want)
			}
		}
	}
}

// Texts of tokenizers with a normal form may become several times as long; those in which a
// character stands for another do not.
func TestNormalFormsLengthenTexts(t *testing.T) {
	for normalizer, want := range map[string]bool{
		`null`: false, `{"type":"Lowercase"}`: false, `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`: false,
		`{"type":"NFC"}`: true, `{"type":"NFD"}`: true, `{"type":"NFKC"}`: true, `{"type":"NFKD"}`: true,
	} {
		tok, err := kit(t, map[string]string{"normalizer": normalizer})
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Lengthens(); got != want {
			t.Errorf("%s lengthens texts: %t, want %t", normalizer, got, want)
		}
	}
}

//go:build !race

package tokenizer

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// whole brings a text into a normal form as the standard describes it, all of it at once.
func whole(n *forms, s string, by norm.Form, compose bool) string {
	var all []rune
	for _, r := range s {
		if unicode.Is(n.late, r) || by == norm.NFKD && unicode.Is(n.compat, r) {
			all = append(all, r)
		} else {
			all = append(all, []rune(string(decomposed(nil, r, by)))...)
		}
	}
	for i := 0; i < len(all); i++ {
		from := i
		for i < len(all) && n.class(all[i]) != 0 {
			i++
		}
		slices.SortStableFunc(all[from:i], func(a, b rune) int { return int(n.class(a)) - int(n.class(b)) })
	}
	if !compose {
		return string(all)
	}
	var out []rune
	starter, last := -1, uint8(0)
	for _, r := range all {
		class := n.class(r)
		if starter >= 0 && (last < class || starter == len(out)-1) {
			if c, ok := n.pair(out[starter], r); ok {
				out[starter] = c
				continue
			}
		}
		if class == 0 {
			starter = len(out)
		}
		last = class
		out = append(out, r)
	}
	return string(out)
}

// TestATextInPartsHasTheNormalFormOfTheWhole: also characters that are new, and long runs of marks.
func TestATextInPartsHasTheNormalFormOfTheWhole(t *testing.T) {
	n := newForms()
	var special []rune
	for r := rune(0xa0); r <= unicode.MaxRune; r++ {
		if p := norm.NFKC.PropertiesString(string(r)); utf8.ValidRune(r) && !isSyllable(r) && (p.CCC() != 0 || p.Decomposition() != nil || !p.BoundaryBefore() || unicode.Is(n.late, r)) {
			special = append(special, r)
		}
	}
	plain := []rune("aAoUsκऩ한각ᄀ가ᅡᆨ\u0f40\u09c7あ\u11131中 e\u0301\u0323\u0344\U0001d160\u3316\U000110a5\U000110ba")
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 50_000 {
		var b strings.Builder
		for range 1 + rng.IntN(14) {
			from := special
			if rng.IntN(2) == 0 {
				from = plain
			}
			b.WriteString(strings.Repeat(string(from[rng.IntN(len(from))]), 1+rng.IntN(4)/3))
		}
		s := b.String()
		if rng.IntN(1000) == 0 {
			s = strings.Repeat(s, 3000)
		}
		for name, form := range map[string]struct {
			of      normalizing
			by      norm.Form
			compose bool
		}{
			"NFC": {n.nfc, norm.NFD, true}, "NFD": {n.nfd, norm.NFD, false}, "NFKC": {n.nfkc, norm.NFKD, true}, "NFKD": {n.nfkd, norm.NFKD, false},
		} {
			got, err := form.of(newBudget(maxDecomposed*len(s)), s)
			if want := whole(n, s, form.by, form.compose); err != nil || got != want {
				t.Fatalf("seed %d: %s of %+.200q is %+.200q, %v, want %+.200q", seed, name, s, got, err, want)
			}
		}
	}
}

// shuffled is a text of marks that are not in order.
func shuffled(bytes int) string {
	var b strings.Builder
	b.WriteByte('a')
	for x := uint32(1); b.Len() < bytes; {
		x = x*1664525 + 1013904223
		b.WriteRune(rune(0x300 + (x>>16)%0x4e))
	}
	return b.String()
}

// TestANormalFormEndsWhenItIsStopped: a text is not read to its end for a client that has left.
func TestANormalFormEndsWhenItIsStopped(t *testing.T) {
	text, stopped := shuffled(4<<20), errors.New("stopped")
	for _, form := range []string{"NFC", "NFD", "NFKC", "NFKD", "BertNormalizer"} {
		tok, err := kit(t, map[string]string{"normalizer": `{"type":"` + form + `"}`})
		if err != nil {
			t.Fatal(err)
		}
		calls, last := 0, 20
		stop := func() error {
			if calls++; calls == last {
				return stopped
			}
			return nil
		}
		if _, err := tok.Encode(text, EncodeOptions{Limit: 10, Stop: stop}); !errors.Is(err, stopped) || calls != last {
			t.Errorf("%s: %v after %d calls", form, err, calls)
		}
	}
}

// TestANormalFormTakesLittleMoreThanItsText, also where it is three times as long.
func TestANormalFormTakesLittleMoreThanItsText(t *testing.T) {
	n := newForms()
	for name, text := range map[string]string{"notes": strings.Repeat("\U0001d160", 2<<20), "letters": strings.Repeat("e\u0301", 3<<20)} {
		var made string
		mib := allocated(func() { made = formed(t, n.nfc, text) })
		if most := uint64(len(made)*3/2)>>20 + 1; mib > most {
			t.Errorf("%s: a form of %d MiB took %d, want at most %d", name, len(made)>>20, mib, most)
		}
	}
}

func BenchmarkNormalFormOfMarks(b *testing.B) {
	n, text := newForms(), shuffled(1<<20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		formed(b, n.nfc, text)
	}
}

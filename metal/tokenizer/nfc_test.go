//go:build !race

package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// formed is a text in a normal form.
func formed(t testing.TB, form normalizing, s string) string {
	t.Helper()
	got, err := form(newBudget(len(s)), s)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestNFCAgreesWithTheStandardOnOldCharacters(t *testing.T) {
	n := newForms()
	// Characters alone, and before and after marks.
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if 0xd800 <= r && r < 0xe000 || unicode.Is(n.late, r) || 0x11930 <= r && r <= 0x11938 {
			continue
		}
		p := norm.NFC.PropertiesString(string(r))
		if p.CCC() == 0 && p.Decomposition() == nil && r%41 != 0 && (r < 0x1100 || r > 0x11ff) {
			continue // nothing happens to most characters; look at some
		}
		for _, s := range []string{string(r), "a" + string(r) + "\u0327", string(r) + "\u0301\u0323", "\u1100" + string(r) + "\u11a8", "e\u0323" + string(r)} {
			if got, want := formed(t, n.nfc, s), norm.NFC.String(s); got != want {
				t.Fatalf("%+q becomes %+q, want %+q", s, got, want)
			}
		}
	}
	// Random mixtures, shorter than what norm inserts a joiner into.
	rng := rand.New(rand.NewPCG(5, 6))
	var marks []rune
	for r := rune(0x300); r < 0x20000; r++ {
		if norm.NFC.PropertiesString(string(r)).CCC() != 0 && !unicode.Is(n.late, r) {
			marks = append(marks, r)
		}
	}
	bases := []rune("aAoUsκऩ한각ᄀ가ᅡᆨ\u0f40\u09c7あ\u11131中 ")
	for range 20_000 {
		var b strings.Builder
		for range 1 + rng.IntN(12) {
			if rng.IntN(3) == 0 {
				b.WriteRune(bases[rng.IntN(len(bases))])
			} else {
				b.WriteRune(marks[rng.IntN(len(marks))])
			}
		}
		if got, want := formed(t, n.nfc, b.String()), norm.NFC.String(b.String()); got != want {
			t.Fatalf("%+q becomes %+q, want %+q", b.String(), got, want)
		}
	}
}

func TestNFCKnowsUnicode9AsTheReferenceDoes(t *testing.T) {
	n := newForms()
	for in, want := range map[string]string{
		"a\u0eba\u0323":                         "a\u0eba\u0323", // a later mark blocks and is not sorted
		"e\u08d3\u0301":                         "e\u08d3\u0301",
		"\U00011935\U00011930":                  "\U00011935\U00011930",
		"\U00011938":                            "\U00011938",
		"e" + strings.Repeat("\u0301", 50):      "\u00e9" + strings.Repeat("\u0301", 49), // no joiner inside
		strings.Repeat("\u0323\u0301", 40):      strings.Repeat("\u0323", 40) + strings.Repeat("\u0301", 40),
		"q" + strings.Repeat("\u0307\u0323", 2): "q\u0323\u0323\u0307\u0307",
	} {
		if got := formed(t, n.nfc, in); got != want {
			t.Errorf("%+q becomes %+q, want %+q", in, got, want)
		}
	}
}

// If this fails, the tables in norm are of a newer Unicode version: what is
// new there belongs into lateMarks, since the reference has Unicode 9.
func TestLateMarksAreWhatUnicode9DoesNotHave(t *testing.T) {
	n := newForms()
	marks, decomposed := 0, 0
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if 0xd800 <= r && r < 0xe000 || unicode.Is(n.late, r) {
			continue
		}
		p := norm.NFC.PropertiesString(string(r))
		if p.CCC() != 0 {
			marks++
		}
		if norm.NFD.String(string(r)) != string(r) && (r < 0xac00 || r > 0xd7a3) {
			decomposed++
		}
	}
	if marks != 814 || decomposed != 2060 {
		t.Errorf("%d marks and %d characters with a decomposition, want 814 and 2060", marks, decomposed)
	}
}

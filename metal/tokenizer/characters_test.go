//go:build !race

package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode"
)

// TestCharactersAreWhatTheReferenceTakesThemFor checks every character. If this
// fails after an update of Go, its tables have another Unicode version: the
// lists in classes.go and nfc.go have the differences from the reference.
func TestCharactersAreWhatTheReferenceTakesThemFor(t *testing.T) {
	raw, err := os.ReadFile("testdata/characters.json")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]struct {
		Count  int
		SHA256 string
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	c, all := newCategories(), make([]category, unicode.MaxRune+1)
	for r := range all {
		all[r] = c.of(rune(r))
	}
	known := func(bits category) class { return func(r rune) bool { return all[r]&bits != 0 } }
	classes := map[string]class{
		"space": unicode.IsSpace, "numeric": newNumeric(), "punctuation": newPunctuation(), "word": newWord(),
		`\p{L}`: known(letter), `\p{Lu}`: known(upper), `\p{Ll}`: known(lower), `\p{Lt}`: known(title), `\p{Lm}`: known(modifier),
		`\p{Lo}`: known(otherLetter), `\p{M}`: known(mark), `\p{N}`: known(number), `\p{P}`: known(punctuation), `\p{S}`: known(sign), `\s`: known(space),
	}
	for _, expr := range []string{`\p{Nd}`, `\p{Han}`, `\p{Hiragana}`, `\p{Katakana}`, `\p{Hangul}`, `\w`, `\d`, `[\w]`, "[[:punct:]]", "(?i:k)", "(?i:s)"} {
		classes[expr] = matched(t, expr)
	}
	n, accent, control, combining := newForms(), newAccent(), newControl(), newCombining()
	rewritings := map[string]func(string) string{
		"NFC": func(s string) string { return formed(t, n.nfc, s) }, "NFD": func(s string) string { return formed(t, n.nfd, s) }, "NFKC": func(s string) string { return formed(t, n.nfkc, s) }, "NFKD": func(s string) string { return formed(t, n.nfkd, s) }, "lower": lowerCase, "nmt": nmt, "bert chinese": spaceChinese,
		"accents":      func(s string) string { return without(s, combining) },
		"bert accents": func(s string) string { return without(formed(t, n.nfd, s), accent) },
		"bert clean": func(s string) string {
			switch r := []rune(s)[0]; {
			case control(r):
				return ""
			case unicode.IsSpace(r):
				return " "
			}
			return s
		},
	}
	if len(want) != len(classes)+len(rewritings) {
		t.Errorf("%d in the file, %d here", len(want), len(classes)+len(rewritings))
	}
	for name, w := range want {
		is, rewrite := classes[name], rewritings[name]
		if is == nil && rewrite == nil {
			t.Errorf("%s is not known here", name)
			continue
		}
		h, count := sha256.New(), 0
		for r := range rune(unicode.MaxRune + 1) {
			if 0xd800 <= r && r < 0xe000 {
				continue
			}
			s, becomes := string(r), ""
			if rewrite != nil {
				if becomes = rewrite(s); becomes == s || r == '†' {
					continue
				}
			} else if !is(r) {
				continue
			}
			count++
			h.Write([]byte(s + "=" + becomes + "\x00"))
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != w.SHA256 {
			t.Errorf("%s has %d characters with SHA-256 %s, want %d and %s", name, count, got, w.Count, w.SHA256)
		}
	}
}

// matched are the characters that an expression matches.
func matched(t *testing.T, expr string) class {
	t.Helper()
	find, err := newCategories().compile(expr)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for r := range rune(unicode.MaxRune + 1) {
		if r < 0xd800 || 0xe000 <= r {
			all.WriteRune(r)
		}
	}
	text, found := all.String(), map[rune]bool{}
	if err := find(newBudget(len(text)), text, func(from, to int) {
		for _, r := range text[from:to] {
			found[r] = true
		}
	}); err != nil {
		t.Fatal(err)
	}
	return func(r rune) bool { return found[r] }
}

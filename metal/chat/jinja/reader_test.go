//go:build !race

package jinja

import (
	"encoding/json"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

// TestATextOfEscapesIsReadOnce: a long text in JSON takes the memory of the text alone.
func TestATextOfEscapesIsReadOnce(t *testing.T) {
	const n = 1 << 20
	raw := []byte(`{"a":"` + strings.Repeat(`\"`, n) + `"}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	v, err := ParseJSON(raw)
	runtime.ReadMemStats(&after)
	if text, _ := v.(*Dict).Get("a"); err != nil || text != strings.Repeat(`"`, n) {
		t.Errorf("the text is not what was written (%v)", err)
	}
	if all := after.TotalAlloc - before.TotalAlloc; all > n+n/4 {
		t.Errorf("%d bytes are allocated for a text of %d", all, n)
	}
}

// TestTextsAreReadAsPackageJSONReadsThem: halves of characters and broken UTF-8 included.
func TestTextsAreReadAsPackageJSONReadsThem(t *testing.T) {
	parts := []string{
		`\ud83d`, `\ude00`, `\u0041`, `\uDBFF`, `\uDFFF`, `\ufffd`, `\n`, `\\`, `\"`, `\/`, `\b`, `\f`, `\t`, `\r`,
		"a", "u", "d83d", " ", "\u00e9", "\U0001f600", "\xff", "\xe2\x82", "\xed\xa0\x80",
	}
	for range 20_000 {
		raw := `"`
		for range rand.IntN(7) {
			raw += parts[rand.IntN(len(parts))]
		}
		raw += `"`
		var want string
		if err := json.Unmarshal([]byte(raw), &want); err != nil {
			t.Fatal(err)
		}
		if got, err := ParseJSON([]byte(raw)); err != nil || got != want {
			t.Fatalf("%q is read as %q, want %q (%v)", raw, got, want, err)
		}
	}
}

//go:build !race

package responses

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
)

// readRaw reads arguments in pieces, cut at the given offsets.
func readRaw(arguments string, cuts ...int) string {
	var r rawInput
	out, from := "", 0
	for _, at := range append(cuts, len(arguments)) {
		out += r.push(arguments[from:at])
		from = at
	}
	return out + r.rest()
}

func TestInputOfACustomToolIsReadFromArguments(t *testing.T) {
	for arguments, want := range map[string]string{
		`{"input":"ls -la"}`:                      "ls -la",
		" {\n \"input\" : \"a\\nb\\t\\\"c\\\"\"}": "a\nb\t\"c\"",
		`{"input":"\u00e9\ud83d\ude00\\"}`:        "é😀\\",
		`{"input":"\ud83dx\ud83d\u0041\ud83d"}`:   "\ufffdx\ufffdA\ufffd",
		`{"input":"","more":"x"}`:                 "",
		`{"cmd":"ls"}`:                            "ls",
		`{"cmd":5}`:                               `{"cmd":5}`,
		`{"a":"b","input":"c"}`:                   "c",
		`{"a":"b","c":"d"}`:                       `{"a":"b","c":"d"}`,
		`{}`:                                      `{}`,
		`[1]`:                                     `[1]`,
		`{"input":5}`:                             `{"input":5}`,
	} {
		for cut := range len(arguments) + 1 {
			if got := readRaw(arguments, cut); got != want {
				t.Errorf("%s, cut at %d: %q, want %q", arguments, cut, got, want)
			}
		}
	}
}

// Each part of white space before the input is read once.
func TestWhiteSpaceBeforeTheInputIsReadOnce(t *testing.T) {
	var r rawInput
	r.push("{")
	for n := range 100 {
		if r.push(" \n"); r.at != len(r.all) {
			t.Fatalf("%d of %d bytes are read again after part %d", len(r.all)-r.at, len(r.all), n)
		}
	}
	if got := r.push(`"inp`) + r.push(`ut":`) + r.push(`"x"}`); got != "x" {
		t.Errorf("the input is %q", got)
	}
}

// Any input, cut at any byte, decodes to the text that was encoded.
func TestInputOfACustomToolIsAnyText(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	letters := []rune("ab\"\\/\n\r\t\b\f\x00\u001f{}:é€😀\u2028\ufffd<&")
	for range 2000 {
		var text []rune
		for range r.IntN(12) {
			text = append(text, letters[r.IntN(len(letters))])
		}
		arguments, err := json.Marshal(map[string]string{inputMember: string(text)})
		if err != nil {
			t.Fatal(err)
		}
		var cuts []int
		for at := range len(arguments) {
			if r.IntN(3) == 0 {
				cuts = append(cuts, at)
			}
		}
		if got := readRaw(string(arguments), cuts...); got != string(text) {
			t.Fatalf("seed %d: %s, cut at %v: %q, want %q", seed, arguments, cuts, got, string(text))
		}
	}
}

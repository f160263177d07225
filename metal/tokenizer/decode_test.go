//go:build !race

package tokenizer

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func decoderOf(t *testing.T, d any) *Tokenizer {
	t.Helper()
	var raw json.RawMessage
	if d != nil {
		var err error
		if raw, err = json.Marshal(d); err != nil {
			t.Fatal(err)
		}
	}
	decode, err := readDecoder(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &Tokenizer{decode: decode}
}

// stream gives what each token shows, and what shows at the end.
func stream(tok *Tokenizer, tokens []string) []string {
	d := tok.NewDecoder(false)
	var out []string
	for _, token := range tokens {
		var text string
		d.through(0, token, func(s string) { text += s })
		out = append(out, text)
	}
	return append(out, d.Flush())
}

func TestStreamsShowTextAsSoonAsItIsCertain(t *testing.T) {
	text := func(s string) map[string]any { return map[string]any{"String": s} }
	sequence := func(steps ...any) any { return fields("Sequence", "decoders", steps) }
	llama := sequence(fields("Replace", "pattern", text("▁"), "content", " "), fields("ByteFallback"), fields("Fuse"), fields("Strip", "content", " ", "start", 1, "stop", 0))
	tests := map[string]struct {
		decoder any
		tokens  []string
		want    []string // for each token, and for the end
	}{
		"bytes that are half a character wait":       {decoder: fields("ByteLevel"), tokens: []string{"a", "Ã", "©", "Ã"}, want: []string{"a", "", "é", "", "\uFFFD"}},
		"byte tokens wait until their run ends":      {decoder: llama, tokens: []string{"▁a", "<0xC3>", "<0xA9>", "<0x41>", "b"}, want: []string{"a", "", "", "", "éAb", ""}},
		"a broken run is shown at once":              {decoder: llama, tokens: []string{"<0xC3>", "<0x41>", "<0xA9>", "b"}, want: []string{"", "\uFFFD\uFFFD", "\uFFFD", "b", ""}},
		"a run that ends inside a character is lost": {decoder: llama, tokens: []string{"x", "<0x41>", "<0xC3>"}, want: []string{"x", "", "", "\uFFFD\uFFFD"}},
		"one space at the very start is stripped":    {decoder: llama, tokens: []string{"▁", "▁▁a", "▁b"}, want: []string{"", "  a", " b", ""}},
		"a mark in the first token shows nothing":    {decoder: fields("Metaspace", "replacement", "▁"), tokens: []string{"▁a▁", "▁b"}, want: []string{"a", " b", ""}},
		"the end of the last word shows no space":    {decoder: fields("BPEDecoder"), tokens: []string{"a</w>", "b", "c</w>"}, want: []string{"", "a b", "", "c"}},
		"continued words join":                       {decoder: fields("WordPiece"), tokens: []string{"un", "##do", ".", "it"}, want: []string{"un", "do", ".", " it", ""}},
		"what may be a match waits":                  {decoder: sequence(fields("Fuse"), fields("Replace", "pattern", text("aab"), "content", "-")), tokens: []string{"xa", "a", "ab", "a", "c"}, want: []string{"x", "", "a-", "", "ac", ""}},
		"what may be the end waits":                  {decoder: sequence(fields("Fuse"), fields("Strip", "content", " ", "start", 0, "stop", 2)), tokens: []string{"a ", " ", " b ", " "}, want: []string{"a", "", "   b", "", ""}},
		"tokens without a decoder stand apart":       {tokens: []string{"a", "b"}, want: []string{"a", " b", ""}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tok := decoderOf(t, tc.decoder)
			if got := stream(tok, tc.tokens); !slices.Equal(got, tc.want) {
				t.Errorf("shows %q, want %q", got, tc.want)
			}
			d := tok.NewDecoder(false)
			for range 2 { // a flushed decoder starts again
				var text strings.Builder
				for _, token := range tc.tokens {
					d.through(0, token, func(s string) { text.WriteString(s) })
				}
				text.WriteString(d.Flush())
				if text.String() != strings.Join(tc.want, "") {
					t.Errorf("in all %q, want %q", text.String(), tc.want)
				}
			}
		})
	}
}

func TestATokenStandsForItsBytes(t *testing.T) {
	g := readGolden(t)
	tests := map[string]map[string]string{
		"llama True":         {"▁a": " a", "<0xC3>": "\xc3", "<mask>": "<mask>"},
		"bert":               {"the": " the", "##s": "s"},
		"t5":                 {"▁": " "},
		"llama-bpe":          {" ": " ", "\xc3": "\xc3"},
		"unigram with bytes": {"<0xFF>": "\xff", "▁a": " a"},
	}
	for name, tokens := range tests {
		i := slices.IndexFunc(g.Kits, func(k goldenKit) bool { return k.Name == name })
		tok, err := FromFolder(write(t, map[string]string{"tokenizer.json": g.file(t, g.Kits[i])}))
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range tokens {
			id, ok := tok.ID(text)
			if got := string(tok.Bytes(id)); !ok || got != want {
				t.Errorf("%s: %q is token %d (%v), standing for %q, want %q", name, text, id, ok, got, want)
			}
		}
	}
}

func TestHolesBetweenIDsAreSilent(t *testing.T) {
	tok, err := FromFolder(write(t, map[string]string{"tokenizer.json": tinyJSON(t, map[string]any{
		"model": fields("BPE", "vocab", map[string]int{"a": 0, "b": 5}, "merges", []any{}), "added_tokens": []any{}, "post_processor": nil,
	})}))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := tok.Decode([]int32{0, 3, 5}, false); err != nil || text != "ab" || tok.Size() != 6 {
		t.Errorf("%q, %v, %d tokens", text, err, tok.Size())
	}
}

//go:build !race

package tokenizer

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// tiny is a vocabulary over a few bytes, written out.
func tiny() map[string]any {
	return map[string]any{
		keyModel: "gpt2", keyPre: "gpt-2",
		keyTokens:                         []string{"<s>", "a", "b", "Ġ", "ab", "Ġab", "Ã", "©"},
		keyTokenType:                      []int32{3, 1, 1, 1, 1, 1, 1, 1},
		keyMerges:                         []string{"a b", "Ġ ab"},
		"tokenizer.ggml.bos_token_id":     uint64(0),
		"tokenizer.ggml.add_bos_token":    false,
		"tokenizer.ggml.eos_token_id":     uint64(0),
		"tokenizer.ggml.add_space_prefix": false,
	}
}

func TestContradictoryMetadataIsRefused(t *testing.T) {
	tests := map[string]struct {
		key  string
		v    any
		kind error
		says string
	}{
		"another algorithm":            {key: keyModel, v: "rwkv", kind: ErrUnsupported, says: `"rwkv" is not supported (supported: ["bert" "gemma4" "gpt2" "llama" "t5"]`},
		"no algorithm":                 {key: keyModel, kind: ErrUnsupported, says: "absent"},
		"an unknown pre-tokenizer":     {key: keyPre, v: "viking", kind: ErrUnsupported, says: `"viking" (supported: ["command-r" `},
		"no pre-tokenizer":             {key: keyPre, kind: ErrUnsupported, says: "absent"},
		"pre-tokenizer of wrong type":  {key: keyPre, v: []string{"smollm"}, kind: ErrUnsupported, says: "a []string"},
		"no tokens":                    {key: keyTokens, kind: ErrInvalid, says: "want a list of strings"},
		"empty tokens":                 {key: keyTokens, v: []string{}, kind: ErrInvalid, says: "empty"},
		"tokens of wrong type":         {key: keyTokens, v: []int32{1}, kind: ErrInvalid, says: "a []int32"},
		"fewer types than tokens":      {key: keyTokenType, v: []int32{3, 1}, kind: ErrInvalid, says: "2 entries for 8 tokens"},
		"no types":                     {key: keyTokenType, kind: ErrInvalid, says: "want a list of 32-bit integers"},
		"an unknown type":              {key: keyTokenType, v: []int32{3, 1, 1, 1, 1, 1, 1, 9}, kind: ErrInvalid, says: "token 7 is 9"},
		"a negative type":              {key: keyTokenType, v: []int32{-1, 1, 1, 1, 1, 1, 1, 1}, kind: ErrInvalid, says: "token 0 is -1"},
		"a byte token":                 {key: keyTokenType, v: []int32{6, 1, 1, 1, 1, 1, 1, 1}, kind: ErrInvalid, says: "byte token"},
		"no merges":                    {key: keyMerges, kind: ErrInvalid, says: "want a list of strings"},
		"a merge of one":               {key: keyMerges, v: []string{"ab"}, kind: ErrInvalid, says: "two tokens and a space"},
		"a merge of three":             {key: keyMerges, v: []string{"a b c"}, kind: ErrInvalid, says: "two tokens and a space"},
		"an empty side":                {key: keyMerges, v: []string{" b"}, kind: ErrInvalid, says: "two tokens and a space"},
		"a merge of unknown tokens":    {key: keyMerges, v: []string{"a c"}, kind: ErrInvalid, says: "not all of its tokens exist"},
		"a merge into an unknown one":  {key: keyMerges, v: []string{"b a"}, kind: ErrInvalid, says: "not all of its tokens exist"},
		"a merge outside the alphabet": {key: keyMerges, v: []string{"日 b"}, kind: ErrInvalid, says: "outside the byte alphabet"},
		"a special id too large":       {key: "tokenizer.ggml.eos_token_id", v: uint64(8), kind: ErrInvalid, says: "want the id of one of 8 tokens"},
		"a special id that wraps":      {key: "tokenizer.ggml.eos_token_id", v: uint64(1 << 32), kind: ErrInvalid, says: "want the id of one of 8 tokens"},
		"a negative special id":        {key: "tokenizer.ggml.eos_token_id", v: int64(-1), kind: ErrInvalid, says: "want the id of one of 8 tokens"},
		"a special id that is text":    {key: "tokenizer.ggml.eos_token_id", v: "0", kind: ErrInvalid, says: "want the id of one of 8 tokens"},
		"a special id that is a list":  {key: "tokenizer.ggml.eos_token_id", v: make([]uint8, 64), kind: ErrInvalid, says: "is a []uint8, want the id"},
		"a flag that is a number":      {key: "tokenizer.ggml.add_bos_token", v: uint64(1), kind: ErrInvalid, says: "want true or false"},
		"a huge added token":           {key: keyTokens, v: []string{strings.Repeat("x", 2000), "a", "b", "Ġ", "ab", "Ġab", "Ã", "©"}, kind: ErrInvalid, says: "more than 1024"},
	}
	if _, err := FromGGUF(tiny()); err != nil {
		t.Fatal(err)
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := maps.Clone(tiny())
			m[tc.key] = tc.v
			if tc.v == nil {
				delete(m, tc.key)
			}
			_, err := FromGGUF(m)
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %v saying %q", err, tc.kind, tc.says)
			}
		})
	}
	m := tiny()
	delete(m, "tokenizer.ggml.bos_token_id")
	m["tokenizer.ggml.add_bos_token"] = true
	if _, err := FromGGUF(m); !errors.Is(err, ErrInvalid) {
		t.Errorf("add_bos_token without a token: %v", err)
	}
}

func TestUnknownIDsAreAnError(t *testing.T) {
	tok, err := FromGGUF(tiny())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []int32{-1, 8, 1 << 30} {
		if _, err := tok.Decode([]int32{1, id}, false); !errors.Is(err, ErrUnknownToken) {
			t.Errorf("decode %d: %v", id, err)
		}
		if _, err := tok.NewDecoder(true).Push(id); !errors.Is(err, ErrUnknownToken) {
			t.Errorf("push %d: %v", id, err)
		}
		if tok.Bytes(id) != nil || tok.IsControl(id) {
			t.Errorf("token %d exists", id)
		}
	}
}

func TestStreamHoldsHalfACharacter(t *testing.T) {
	tok, err := FromGGUF(tiny())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	d := tok.NewDecoder(false)
	for _, id := range []int32{1, 6, 7, 6, 1, 6} { // a, half, half, half, a, half
		s, err := d.Push(id)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, s)
	}
	got = append(got, d.Flush())
	if want := []string{"a", "", "é", "", "\uFFFDa", "", "\uFFFD"}; !slices.Equal(got, want) {
		t.Errorf("pieces %q, want %q", got, want)
	}
}

func TestBrokenUTF8IsReplacedAsUnicodeRecommends(t *testing.T) {
	const r = "\uFFFD"
	for in, want := range map[string]string{
		"a\x80b":             "a" + r + "b",
		"\xc3":               r,
		"\xe2\x82":           r,         // a cut character is one
		"\xe2\x82a":          r + "a",   //
		"\xf0\x9f\x98\xf0":   r + r,     //
		"\xed\xa0\x80":       r + r + r, // a surrogate is three
		"\xc0\xaf":           r + r,
		"\xf4\x90\x80\x80":   r + r + r + r,
		"\xe0\x80\x80":       r + r + r,
		"\xf8\x88\x80\x80":   r + r + r + r,
		"\uFFFDx":            "\uFFFDx",
		"\xf0\x9f\x98\x80ok": "😀ok",
	} {
		if got := validUTF8(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestByteAlphabetIsOneToOne(t *testing.T) {
	seen := map[byte]rune{}
	for r := range rune(0x200) {
		if b, ok := byteOf(r); ok {
			if other, twice := seen[b]; twice {
				t.Errorf("byte %#x is both %q and %q", b, other, r)
			}
			seen[b] = r
		}
	}
	if len(seen) != 256 || seen[' '] != 'Ġ' || seen['\n'] != 'Ċ' || seen[0xad] != 'Ń' {
		t.Errorf("%d bytes, space %q, newline %q, soft hyphen %q", len(seen), seen[' '], seen['\n'], seen[0xad])
	}
}

func TestSplittersLeaveNothingOut(t *testing.T) {
	rng, c := rand.New(rand.NewPCG(1, 2)), newCategories()
	letters := []rune("aé中 \n\r\t5½'sLl-!ſ\u00a0\u0301")
	for range 3000 {
		var b strings.Builder
		for range rng.IntN(30) {
			b.WriteRune(letters[rng.IntN(len(letters))])
		}
		for _, p := range preTokenizers() {
			steps := preTokenizing{c: c}
			if err := p.build(&steps); err != nil {
				t.Fatal(err)
			}
			cut := steps.cutter(true)
			var joined strings.Builder
			if err := cut(newBudget(b.Len()), span{text: b.String()}, func(s span) {
				if s.text == "" {
					t.Fatalf("%s: empty piece in %q", p.name, b.String())
				}
				joined.WriteString(s.text)
			}); err != nil {
				t.Fatal(err)
			}
			if joined.String() != b.String() {
				t.Fatalf("%s: %q split into %q", p.name, b.String(), joined.String())
			}
		}
	}
}

// FuzzEncode reads any bytes and wants them back.
func FuzzEncode(f *testing.F) {
	g := readGolden(f)
	var toks []*Tokenizer
	for _, pre := range []string{"gpt-2", "smollm", "llama-bpe"} {
		// All bytes have a token here, so that nothing is dropped.
		m := g.metadata(f, pre)
		m[keyTokens] = append(slices.Clone(g.Lists["bpe"].Tokens), "Ħ", "ñ", "ò")
		m[keyTokenType] = append(slices.Clone(g.Lists["bpe"].TokenType), 1, 1, 1)
		tok, err := FromGGUF(m)
		if err != nil {
			f.Fatal(err)
		}
		toks = append(toks, tok)
	}
	for _, text := range g.Texts {
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, special bool) {
		for _, tok := range toks {
			ids := encode(t, tok, string(raw), EncodeOptions{ParseSpecial: special})
			back, err := tok.Decode(ids, false)
			if err != nil || back != validUTF8(string(raw)) || !utf8.ValidString(back) {
				t.Fatalf("%q comes back as %q, %v", raw, back, err)
			}
			checkStream(t, tok, ids)
		}
	})
}

// FuzzFromGGUF wants hostile metadata to be refused or to work, never to
// panic.
func FuzzFromGGUF(f *testing.F) {
	f.Add("gpt2", "<s>\na\nb\nĠ\nab\nĠab", "a b\nĠ ab", []byte{3, 1, 1, 1, 1, 1}, uint64(0), "gpt-2", "ab ab <s>")
	f.Add("gpt2", "a\na\n\n\xff", "a a", []byte{1, 1, 1, 4}, uint64(9), "qwen2", "\xff\xfe")
	f.Add("gpt2", "a\naa\naaaa", "a a\naa aa\na aa", []byte{1, 4, 1}, uint64(1<<63), "llama-bpe", strings.Repeat("a", 99))
	f.Add("llama", "<unk>\na\nb\nab\n▁\n▁ab\n<0x0A>\n\xff", "", []byte{2, 1, 1, 1, 1, 1, 6, 1}, uint64(0), "", "ab \nab\xff")
	f.Add("gemma4", "<unk>\na\nb\nab", "a b", []byte{2, 1, 1, 1}, uint64(0), "", "ab ab")
	f.Add("bert", "[UNK]\n▁the\nre\n▁", "", []byte{3, 1, 1, 1}, uint64(0), "", "the There")
	f.Add("t5", "<unk>\n▁a\na\n▁", "", []byte{2, 1, 1, 1}, uint64(0), "", "a  aa b")
	f.Fuzz(func(t *testing.T, model, tokens, merges string, kinds []byte, bos uint64, pre, text string) {
		if len(tokens) > 1<<12 || len(text) > 1<<10 {
			return
		}
		types := make([]int32, len(kinds))
		for i, k := range kinds {
			types[i] = int32(int8(k))
		}
		list := strings.Split(tokens, "\n")
		scores := make([]float32, len(list))
		for i, s := range list {
			scores[i] = float32(len(s)%3) - float32(i)
		}
		tok, err := FromGGUF(map[string]any{
			keyModel: model, keyPre: pre, keyTokens: list, keyTokenType: types, keyMerges: strings.Split(merges, "\n"), keyScores: scores,
			"tokenizer.ggml.bos_token_id": bos, "tokenizer.ggml.add_bos_token": true, "tokenizer.ggml.cls_token_id": bos, "tokenizer.ggml.seperator_token_id": bos,
			keyCharsMap: []byte(merges),
		})
		if err != nil {
			refused(t, err)
			return
		}
		use(t, tok, text)
	})
}

package tokenizer

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// smallGolden is what hack/goldens/tokenizer/generate.py wrote.
type smallGolden struct {
	Tokens    []string `json:"tokens"`
	TokenType []int32  `json:"token_type"`
	Merges    []string `json:"merges"`
	Cases     []struct {
		Text    []byte             `json:"text"`
		IDs     map[string][]int32 `json:"ids"`
		Decoded string             `json:"decoded"`
	} `json:"cases"`
}

func readGolden(t testing.TB) *smallGolden {
	t.Helper()
	raw, err := os.ReadFile("testdata/small.json")
	if err != nil {
		t.Fatal(err)
	}
	g := new(smallGolden)
	if err := json.Unmarshal(raw, g); err != nil {
		t.Fatal(err)
	}
	if len(g.Cases) < 100 {
		t.Fatalf("golden file holds %d cases", len(g.Cases))
	}
	return g
}

func (g *smallGolden) metadata(pre string) map[string]any {
	return map[string]any{
		keyModel: "gpt2", keyPre: pre, keyTokens: g.Tokens, keyTokenType: g.TokenType, keyMerges: g.Merges,
		"tokenizer.ggml.bos_token_id": uint64(1), "tokenizer.ggml.eos_token_id": uint64(2), "tokenizer.ggml.eot_token_id": uint64(2),
		"tokenizer.ggml.padding_token_id": uint64(0),
	}
}

func (g *smallGolden) build(t testing.TB, pre string) *Tokenizer {
	t.Helper()
	tok, err := FromGGUF(g.metadata(pre))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func encode(t testing.TB, tok *Tokenizer, text string, o EncodeOptions) []int32 {
	t.Helper()
	ids, err := tok.Encode(text, o)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestIDsEqualTheReference(t *testing.T) {
	g := readGolden(t)
	for _, pre := range SupportedPreTokenizers() {
		t.Run(pre, func(t *testing.T) {
			tok := g.build(t, pre)
			for _, c := range g.Cases {
				want, ok := c.IDs[pre]
				if !ok {
					t.Fatalf("no golden ids for %s", pre)
				}
				if got := encode(t, tok, string(c.Text), EncodeOptions{ParseSpecial: true}); !slices.Equal(got, want) {
					t.Errorf("%q:\n got %v\nwant %v", c.Text, got, want)
				}
			}
		})
	}
}

func TestTextEqualsTheReference(t *testing.T) {
	g := readGolden(t)
	tok := g.build(t, "gpt-2")
	for _, c := range g.Cases {
		want := c.Decoded
		ids := c.IDs["gpt-2"]
		got, err := tok.Decode(ids, false)
		if err != nil || got != want {
			t.Errorf("%v: %v\n got %q\nwant %q", ids, err, got, want)
		}
		checkStream(t, tok, ids)
	}
}

// checkStream wants the streamed text to equal the whole, in whole characters.
func checkStream(t testing.TB, tok *Tokenizer, ids []int32) {
	t.Helper()
	for _, skip := range []bool{false, true} {
		want, err := tok.Decode(ids, skip)
		if err != nil {
			t.Fatal(err)
		}
		d := tok.NewDecoder(skip)
		var got strings.Builder
		for _, id := range ids {
			s, err := d.Push(id)
			if err != nil {
				t.Fatal(err)
			}
			if !utf8.ValidString(s) {
				t.Fatalf("piece %q is not whole characters", s)
			}
			got.WriteString(s)
		}
		got.WriteString(d.Flush())
		if got.String() != want {
			t.Fatalf("stream of %v gives %q, whole %q", ids, got.String(), want)
		}
	}
}

func TestEncodingIsLinearInLongRuns(t *testing.T) {
	tok := readGolden(t).build(t, "llama-bpe")
	for _, unit := range []string{"a", " ", "in", "\n", "é", "<", "'"} {
		// A quadratic merge or scan of half a million bytes would take minutes.
		text := strings.Repeat(unit, 500_000/len(unit))
		ids := encode(t, tok, text, EncodeOptions{})
		if back, err := tok.Decode(ids, false); err != nil || back != text {
			t.Errorf("%q does not come back: %v", unit, err)
		}
	}
}

// slowBPE merges by the definition: the earliest merge of all, leftmost first.
func slowBPE(b *bpe, piece string) []int32 {
	var ids []int32
	for i := range len(piece) {
		ids = append(ids, b.bytes[piece[i]]...)
	}
	for {
		best, at := merge{rank: freeRank}, -1
		for i := 0; i+1 < len(ids); i++ {
			if m, ok := b.merges.get(ids[i], ids[i+1]); ok && m.rank < best.rank {
				best, at = m, i
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, best.into)
	}
}

func TestHeapMergesAsTheDefinitionDoes(t *testing.T) {
	g := readGolden(t)
	b := g.build(t, "gpt-2").model.(*bpe)
	w := b.newWorker(true)
	for _, c := range g.Cases {
		if got, want := w.encode(nil, string(c.Text)), slowBPE(b, string(c.Text)); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", c.Text, got, want)
		}
	}
}

func TestControlTokensInPlainTextStayText(t *testing.T) {
	tok := readGolden(t).build(t, "smollm")
	text := "<|im_end|>x<think>"
	plain := encode(t, tok, text, EncodeOptions{})
	if slices.Contains(plain, 2) {
		t.Errorf("plain text became a control token: %v", plain)
	}
	think, ok := tok.ID("<think>")
	if !ok || !slices.Contains(plain, think) {
		t.Errorf("user-defined token %d is not in %v", think, plain)
	}
	if back, err := tok.Decode(plain, true); err != nil || back != text {
		t.Errorf("%q, %v", back, err)
	}
	parsed := encode(t, tok, text, EncodeOptions{ParseSpecial: true})
	if parsed[0] != 2 || !tok.IsControl(2) {
		t.Errorf("control token not parsed: %v", parsed)
	}
	if s, err := tok.Decode(parsed, true); err != nil || s != "x<think>" {
		t.Errorf("skipping special tokens leaves %q, %v", s, err)
	}
	if s, err := tok.Decode(parsed, false); err != nil || s != text {
		t.Errorf("keeping special tokens gives %q, %v", s, err)
	}
}

func TestBOSIsAddedWhereTheModelWantsIt(t *testing.T) {
	g := readGolden(t)
	m := g.metadata("gpt-2")
	m["tokenizer.ggml.add_bos_token"] = true
	tok, err := FromGGUF(m)
	if err != nil {
		t.Fatal(err)
	}
	if ids := encode(t, tok, "", EncodeOptions{AddBOS: true}); !slices.Equal(ids, []int32{1}) {
		t.Errorf("ids %v", ids)
	}
	if ids := encode(t, tok, "", EncodeOptions{}); len(ids) != 0 {
		t.Errorf("ids %v", ids)
	}
	if ids := encode(t, g.build(t, "gpt-2"), "", EncodeOptions{AddBOS: true}); len(ids) != 0 {
		t.Errorf("a model without add_bos_token got %v", ids)
	}
	if ends := tok.Special().Ends(); !slices.Equal(ends, []int32{2}) {
		t.Errorf("ends %v", ends)
	}
}

func TestVocabularyIsSmallInMemory(t *testing.T) {
	const n = 49152
	tokens := make([]string, n)
	kinds := make([]int32, n)
	var merges []string
	for i := range tokens {
		kinds[i] = 1
		tokens[i] = fmt.Sprintf("%06x", i)
	}
	m := map[string]any{keyModel: "gpt2", keyPre: "gpt-2", keyTokens: tokens, keyTokenType: kinds, keyMerges: merges}
	tok, err := FromGGUF(m)
	if err != nil {
		t.Fatal(err)
	}
	v := tok.vocab
	total := cap(v.blob) + 4*cap(v.offsets) + cap(v.kinds) + 4*cap(v.slots) + 16*len(newMergeTable(48900).slots)
	if total > 4<<20 {
		t.Errorf("vocabulary and merges hold %d bytes", total)
	}
}

//go:build !race

package tokenizer

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// golden is what test/oracle/goldens/tokenizer/generate.py wrote.
type golden struct {
	Texts  [][]byte
	Models map[string]map[string]any
	Lists  map[string]goldenList
	Kits   []goldenKit
	GGUF   []struct {
		Like     string
		Metadata map[string]any
	}
}

// goldenList is a vocabulary as GGUF has it.
type goldenList struct {
	Tokens    []string
	TokenType []int32 `json:"token_type"`
	Merges    []string
	Scores    []float32
	CharsMap  []byte `json:"precompiled_charsmap"`
}

// goldenKit is a tokenizer.json, its model apart, with a checksum for each text
// or, where there are IDs, for each list of ids.
type goldenKit struct {
	Name, Model string
	Rest        map[string]any
	Sums        []byte
	Pair        uint32
	IDs         [][]int32
}

func readGolden(t testing.TB) *golden {
	t.Helper()
	raw, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	g := new(golden)
	if err := json.Unmarshal(raw, g); err != nil {
		t.Fatal(err)
	}
	if len(g.Texts) < 100 || len(g.Kits) < 100 {
		t.Fatalf("golden file holds %d texts and %d tokenizers", len(g.Texts), len(g.Kits))
	}
	return g
}

// file is the tokenizer.json of a kit.
func (g *golden) file(t testing.TB, k goldenKit) string {
	t.Helper()
	model := maps.Clone(g.Models[k.Model])
	if name, ok := model["vocab"].(string); ok {
		l := g.Lists[name]
		if model["type"] == "Unigram" {
			var vocab [][]any
			for i, text := range l.Tokens {
				vocab = append(vocab, []any{text, l.Scores[i]})
			}
			model["vocab"] = vocab
		} else {
			vocab := map[string]int{}
			for i, text := range slices.Backward(l.Tokens) {
				vocab[text] = i // of tokens with the same text the first one counts
			}
			model["vocab"] = vocab
		}
	}
	if name, ok := model["merges"].(string); ok {
		model["merges"] = g.Lists[name].Merges
	}
	whole := maps.Clone(k.Rest)
	whole["model"] = model
	raw, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// metadata is that of a GGUF file.
func (g *golden) metadata(t testing.TB, like string) map[string]any {
	t.Helper()
	for _, entry := range g.GGUF {
		if entry.Like != like {
			continue
		}
		out := map[string]any{}
		for key, v := range entry.Metadata {
			l, named := goldenList{}, false
			if name, ok := v.(string); ok {
				l, named = g.Lists[name]
			}
			if n, ok := v.(float64); ok {
				v = uint64(n)
			}
			if named && key != "model" {
				v = map[string]any{"tokens": l.Tokens, "token_type": l.TokenType, "merges": l.Merges, "scores": l.Scores, "precompiled_charsmap": l.CharsMap}[key]
			}
			out["tokenizer.ggml."+key] = v
		}
		if like == "gpt-2" {
			maps.Copy(out, map[string]any{
				"tokenizer.ggml.bos_token_id": uint64(1), "tokenizer.ggml.eos_token_id": uint64(2), "tokenizer.ggml.eot_token_id": uint64(2),
				"tokenizer.ggml.padding_token_id": uint64(0),
			})
		}
		return out
	}
	t.Fatalf("golden file has no GGUF metadata for %s", like)
	return nil
}

func (g *golden) build(t testing.TB, like string) *Tokenizer {
	t.Helper()
	tok, err := FromGGUF(g.metadata(t, like))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// sum is the checksum of one text.
func sum(t testing.TB, tok *Tokenizer, ids, around []int32) uint32 {
	t.Helper()
	crc := crc32.Update(crc32.ChecksumIEEE(little(ids)), crc32.IEEETable, little(around))
	for _, skip := range []bool{false, true} {
		text, err := tok.Decode(ids, skip)
		if err != nil {
			t.Fatal(err)
		}
		crc = crc32.Update(crc, crc32.IEEETable, []byte(text+"\x00"))
	}
	return crc
}

func little(ids []int32) []byte {
	var b []byte
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return b
}

func encode(t testing.TB, tok *Tokenizer, text string, o EncodeOptions) []int32 {
	t.Helper()
	ids, err := tok.Encode(text, o)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestIDsAndTextEqualTheReference(t *testing.T) {
	g := readGolden(t)
	for _, k := range g.Kits {
		t.Run(k.Name, func(t *testing.T) {
			tok, err := FromFolder(write(t, map[string]string{"tokenizer.json": g.file(t, k)}))
			if err != nil {
				t.Fatal(err)
			}
			compareKit(t, g, k, tok)
			ids, types, err := tok.EncodePair(validUTF8(string(g.Texts[0])), validUTF8(string(g.Texts[1])), EncodeOptions{ParseSpecial: true})
			if got := crc32.ChecksumIEEE(little(append(ids, types...))); err != nil || got != k.Pair {
				t.Errorf("a pair: %v, %v, %v", ids, types, err)
			}
			for _, entry := range g.GGUF {
				if entry.Like == k.Name {
					compareKit(t, g, k, g.build(t, k.Name))
				}
			}
		})
	}
}

// compareKit compares checksums; test/oracle/goldens/tokenizer shows what was wanted.
func compareKit(t *testing.T, g *golden, k goldenKit, tok *Tokenizer) {
	t.Helper()
	want := func(i int) uint32 { return binary.LittleEndian.Uint32(k.Sums[4*i:]) }
	for i, ids := range k.IDs {
		if sum(t, tok, ids, ids) != want(i) {
			text, err := tok.Decode(ids, false)
			t.Errorf("%v decode to %q, %v", ids, text, err)
		}
		checkStream(t, tok, ids)
	}
	if k.IDs != nil {
		return
	}
	for i, text := range g.Texts {
		ids := encode(t, tok, string(text), EncodeOptions{ParseSpecial: true})
		around := encode(t, tok, string(text), EncodeOptions{ParseSpecial: true, AddSpecial: true})
		if sum(t, tok, ids, around) != want(i) {
			t.Errorf("%q: %v, %v", text, ids, around)
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
	w := b.newWorker(true, &bounds{})
	for _, text := range g.Texts {
		if got, want := w.encode(nil, string(text)), slowBPE(b, string(text)); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
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
	m := g.metadata(t, "gpt-2")
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
	total := v.blob.Cap() + 4*cap(v.offsets) + cap(v.kinds) + 4*cap(v.slots) + 16*len(newMergeTable(48900).slots)
	if total > 4<<20 {
		t.Errorf("vocabulary and merges hold %d bytes", total)
	}
}

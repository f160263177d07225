//go:build !race

package tokenizer

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// mostTime is what any input of a fuzz target may take, on a busy machine.
const mostTime = 30 * time.Second

// use reads and writes text with a tokenizer of unknown origin.
func use(t *testing.T, tok *Tokenizer, text string) {
	t.Helper()
	start := time.Now()
	for _, o := range []EncodeOptions{{}, {ParseSpecial: true, AddSpecial: true}} {
		ids, err := tok.Encode(text, o)
		if err != nil {
			if !errors.Is(err, errTooSlow) {
				t.Fatalf("untyped error %v", err)
			}
			continue
		}
		for _, id := range ids {
			if id < 0 || int(id) >= tok.Size() {
				t.Fatalf("id %d of %d", id, tok.Size())
			}
		}
		checkStream(t, tok, ids)
	}
	if _, _, err := tok.EncodePair(text, text, EncodeOptions{}); err != nil && !errors.Is(err, errTooSlow) {
		t.Fatalf("untyped error %v", err)
	}
	for id := range int32(min(tok.Size(), 300)) {
		tok.Bytes(id)
	}
	if took := time.Since(start); took > mostTime {
		t.Fatalf("%v for %d bytes", took, len(text))
	}
}

// refused wants an error to be typed and short.
func refused(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, errTooSlow) {
		t.Fatalf("untyped error %v", err)
	}
	if len(err.Error()) > 2000 {
		t.Fatalf("error of %d bytes", len(err.Error()))
	}
}

// FuzzTokenizerJSON wants a hostile tokenizer.json to be refused or to work.
func FuzzTokenizerJSON(f *testing.F) {
	g := readGolden(f)
	for i, k := range g.Kits {
		if len(k.Rest) > 0 && (i%7 == 0 || i < 16) {
			if file := g.file(f, shrunk(g, k)); len(file) < 8000 {
				f.Add(file, "the agent <s>  é 12")
			}
		}
	}
	f.Add(tinyJSON(f, nil), "ab ab<e>é")
	f.Fuzz(func(t *testing.T, file, text string) {
		if len(file) > 1<<16 || len(text) > 1<<10 {
			return
		}
		d, err := readLimited(strings.NewReader(file), limitsFor(maxVocabulary))
		if err != nil {
			refused(t, err)
			return
		}
		tok, err := d.build(roles{bos: "<s>"})
		if err != nil {
			refused(t, err)
			return
		}
		use(t, tok, text)
	})
}

// shrunk gives a kit a small vocabulary.
func shrunk(g *golden, k goldenKit) goldenKit {
	model := map[string]any{}
	for key, v := range g.Models[k.Model] {
		model[key] = v
	}
	switch model["type"] {
	case "Unigram":
		model["vocab"] = []any{[]any{"<unk>", 0}, []any{"a", -1}, []any{"▁a", -2}, []any{"<0x0A>", -3}, []any{"é", -1.5}}
		model["unk_id"] = 0
	case "WordPiece":
		model["vocab"] = map[string]int{"[UNK]": 0, "the": 1, "##e": 2, "a": 3}
	default:
		model["vocab"] = map[string]int{"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "<0x0A>": 5, "##a": 6, "<unk>": 7, "▁": 8}
		model["merges"] = []any{"a b", []string{"Ġ", "ab"}}
		delete(model, "unk_token")
	}
	name := "shrunk " + k.Model
	g.Models[name] = model
	k.Model = name
	rest := map[string]any{}
	for key, v := range k.Rest {
		if key != "added_tokens" && key != "post_processor" {
			rest[key] = v
		}
	}
	k.Rest = rest
	return k
}

// ofEachKind are tokenizers of each kind.
func ofEachKind(f *testing.F, g *golden) []*Tokenizer {
	var toks []*Tokenizer
	for _, entry := range g.GGUF {
		toks = append(toks, g.build(f, entry.Like))
	}
	for i, k := range g.Kits {
		if i%3 != 0 && !strings.HasPrefix(k.Name, "metaspace") {
			continue
		}
		raw := g.file(f, k)
		d, err := readLimited(strings.NewReader(raw), limitsFor(maxVocabulary))
		if err != nil {
			f.Fatal(err)
		}
		tok, err := d.build(roles{})
		if err != nil {
			f.Fatal(err)
		}
		toks = append(toks, tok)
	}
	return toks
}

// FuzzKinds reads any text with a tokenizer of each kind.
func FuzzKinds(f *testing.F) {
	g := readGolden(f)
	toks := ofEachKind(f, g)
	for i, text := range g.Texts {
		f.Add(string(text), uint8(i))
	}
	f.Fuzz(func(t *testing.T, text string, which uint8) {
		if len(text) > 1<<12 {
			return
		}
		use(t, toks[int(which)%len(toks)], text)
	})
}

// FuzzDecode wants streams of any ids to equal the whole, and that to be what
// the steps of the decoder make of all tokens at once.
func FuzzDecode(f *testing.F) {
	g := readGolden(f)
	var kits []goldenKit
	var toks []*Tokenizer
	for _, k := range g.Kits {
		if k.IDs == nil {
			continue
		}
		d, err := readLimited(strings.NewReader(g.file(f, k)), limitsFor(maxVocabulary))
		if err != nil {
			f.Fatal(err)
		}
		tok, err := d.build(roles{})
		if err != nil {
			f.Fatal(err)
		}
		kits, toks = append(kits, k), append(toks, tok)
		f.Add([]byte{0, 1, 200, 255, 7}, uint8(len(toks)-1))
	}
	f.Fuzz(func(t *testing.T, raw []byte, which uint8) {
		n := int(which) % len(toks)
		ids := make([]int32, len(raw))
		for i, b := range raw {
			ids[i] = int32(b) % int32(toks[n].Size())
		}
		checkStream(t, toks[n], ids)
		whole, err := toks[n].Decode(ids, false)
		if err != nil {
			t.Fatal(err)
		}
		if want := allAtOnce(t, kits[n], toks[n], ids); whole != want {
			t.Fatalf("%s: %v decode to %q, all at once to %q", kits[n].Name, ids, whole, want)
		}
	})
}

// allAtOnce decodes as the reference does: each step has all tokens before it.
func allAtOnce(t *testing.T, k goldenKit, tok *Tokenizer, ids []int32) string {
	t.Helper()
	var tokens []string
	for _, id := range ids {
		text, ok, err := tok.shown(id, false)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			tokens = append(tokens, text)
		}
	}
	raw, err := json.Marshal(k.Rest["decoder"])
	if err != nil {
		t.Fatal(err)
	}
	if k.Rest["decoder"] == nil {
		return strings.Join(tokens, " ")
	}
	steps, err := flatten(raw, "decoder", "decoders")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		tokens = oneStep(t, s, tokens)
	}
	return strings.Join(tokens, "")
}

// decoderFields are the fields of all decoders.
type decoderFields struct {
	Content, Prefix, Suffix, Replacement string
	Scheme                               string `json:"prepend_scheme"`
	Start, Stop                          int
	Cleanup                              bool
	Pattern                              pattern
}

func oneStep(t *testing.T, c component, tokens []string) []string {
	t.Helper()
	var f decoderFields
	if err := c.into(&f); err != nil {
		t.Fatal(err)
	}
	switch c.kind {
	case "Fuse":
		return []string{strings.Join(tokens, "")}
	case "ByteLevel":
		var b strings.Builder
		for _, s := range tokens {
			b.WriteString(standsInAlphabet(s))
		}
		return []string{validUTF8(b.String())}
	case "ByteFallback":
		return bytesAtOnce(tokens)
	}
	out := make([]string, len(tokens))
	for i, s := range tokens {
		decoded, known := f.decode(c.kind, s, i == 0, i == len(tokens)-1)
		if !known {
			t.Fatalf("no decoder %s", c.kind)
		}
		out[i] = decoded
	}
	return out
}

// decode applies a decoder that looks at one token at a time; first and last are its place
// in the text.
func (f *decoderFields) decode(kind, s string, first, last bool) (decoded string, known bool) {
	space := " "
	switch kind {
	case "Metaspace":
		if first && f.Scheme != "never" {
			space = ""
		}
		return strings.ReplaceAll(s, f.Replacement, space), true
	case "WordPiece":
		if !first {
			rest, continues := strings.CutPrefix(s, f.Prefix)
			if s = rest; !continues {
				s = " " + rest
			}
		}
		if f.Cleanup {
			s = cleanUp(s)
		}
		return s, true
	case "BPEDecoder":
		if last {
			space = ""
		}
		return strings.ReplaceAll(s, f.Suffix, space), true
	case "Replace":
		return strings.ReplaceAll(s, *f.Pattern.String, f.Content), true
	case "Strip":
		for range f.Start {
			s = strings.TrimPrefix(s, f.Content)
		}
		for range f.Stop {
			s = strings.TrimSuffix(s, f.Content)
		}
		return s, true
	}
	return "", false
}

func bytesAtOnce(tokens []string) []string {
	var out []string
	var run []byte
	end := func() {
		if utf8.Valid(run) && len(run) > 0 {
			out = append(out, string(run))
		} else {
			for range run {
				out = append(out, replacement)
			}
		}
		run = nil
	}
	for _, s := range tokens {
		if b, ok := byteToken(s); ok {
			run = append(run, b)
			continue
		}
		end()
		out = append(out, s)
	}
	end()
	return out
}

// FuzzPattern wants any expression to be refused or to find matches in order.
func FuzzPattern(f *testing.F) {
	for expr := range knownPatterns() {
		f.Add(expr, "It's 12 o'clock\n")
	}
	for _, expr := range []string{`(?i:[sdmt]|ll)`, `\p{N}{1,3}+`, `[^\s\p{L}&&[^\p{Han}]]++`, `(?<=a)b|(?<!c)d`, `\x{1f600}\u00e9\h`, `(a*)*b`, `[[:punct:]-z]`, `^.$`, `\b\B\A\z\Z`} {
		f.Add(expr, "aab é\n")
	}
	c := newCategories()
	f.Fuzz(func(t *testing.T, expr, text string) {
		if len(expr) > 200 || len(text) > 200 {
			return
		}
		find, err := c.compile(expr)
		if err != nil {
			refused(t, err)
			return
		}
		at := 0
		if err := find(&budget{left: 1 << 20}, validUTF8(text), func(from, to int) {
			if from < at || to < from || to > len(validUTF8(text)) {
				t.Fatalf("match %d to %d after %d", from, to, at)
			}
			at = to
		}); err != nil {
			refused(t, err)
		}
	})
}

// FuzzCharsMap wants any map of characters to be refused or to rewrite.
func FuzzCharsMap(f *testing.F) {
	f.Add(readGolden(f).Lists["t5"].CharsMap, "ﬁ① é\r\nA")
	f.Add(oneCharacterMap('a', "b"), "abc")
	f.Fuzz(func(t *testing.T, raw []byte, text string) {
		m, err := newCharsMap(raw)
		if err != nil {
			refused(t, err)
			return
		}
		s, err := m.text(newBudget(len(text)), validUTF8(text))
		if err != nil {
			refused(t, err)
		} else if !utf8.ValidString(s) {
			t.Fatalf("%q is broken", s)
		}
	})
}

//go:build !race

package tokenizer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestAPatternThatTakesTooLongIsAnError(t *testing.T) {
	for expr, text := range map[string]string{
		`(?:a|a)*b`:           strings.Repeat("a", 5000),
		`(?:a*)*c|(?:a|aa)+$`: strings.Repeat("a", 5000) + "b",
		`a|b(?=.*c)`:          strings.Repeat("b", 50_000) + "a", // many matches, each of them quick
		`(?:\w\w?)*+c`:        strings.Repeat("a", 50_000),
		`(?<=a*b{0,50})c`:     strings.Repeat("b", 1),
	} {
		find, err := newCategories().compile(expr)
		if errors.Is(err, ErrUnsupported) && strings.Contains(expr, "<=a*") {
			continue // looks back without end
		}
		if err != nil {
			t.Fatal(err)
		}
		b := newBudget(len(text))
		if err := find(b, text, func(int, int) {}); !errors.Is(err, errTooSlow) {
			t.Errorf("%s: error %v with %d left", expr, err, b.left)
		}
	}
}

func TestAMatchIsBoundedInMemory(t *testing.T) {
	find, err := newCategories().compile(`(?:a|b)*c`)
	if err != nil {
		t.Fatal(err)
	}
	b := &budget{left: 1 << 40}
	if err := find(b, strings.Repeat("a", maxRetreats), func(int, int) {}); !errors.Is(err, errTooSlow) {
		t.Errorf("error %v", err)
	}
}

func TestTheErrorOfAPatternHoldsNoText(t *testing.T) {
	find, err := newCategories().compile(`(?:a|a)*b`)
	if err != nil {
		t.Fatal(err)
	}
	if err := find(newBudget(0), "secret "+strings.Repeat("a", 5000), func(int, int) {}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
}

func TestEncodeTellsOfAPatternThatTakesTooLong(t *testing.T) {
	p := preTokenizing{c: newCategories()}
	find, err := p.c.compile(`(?:a|a)*b`)
	if err != nil {
		t.Fatal(err)
	}
	p.then(behaving(find, isolated, false))
	tok := readGolden(t).build(t, "gpt-2")
	tok.cut = p.cutter(true)
	if ids, err := tok.Encode(strings.Repeat("a", 5000), EncodeOptions{AddSpecial: true}); !errors.Is(err, errTooSlow) || ids != nil {
		t.Errorf("%d ids, %v", len(ids), err)
	}
	if _, _, err := tok.EncodePair("x", strings.Repeat("a", 5000), EncodeOptions{}); !errors.Is(err, errTooSlow) {
		t.Errorf("pair: %v", err)
	}
	stopped := errors.New("stopped")
	calls := 0
	if _, err := tok.Encode(strings.Repeat("a", 8<<20), EncodeOptions{Stop: func() error {
		if calls++; calls > 2 {
			return stopped
		}
		return nil
	}}); !errors.Is(err, stopped) || calls != 3 {
		t.Errorf("a text that is stopped: %v after %d calls", err, calls)
	}
}

// A match looks after the same work whether it is to end.
func TestAMatchEndsWhenItIsStopped(t *testing.T) {
	find, err := newCategories().compile(`(?:a|a)*b`)
	if err != nil {
		t.Fatal(err)
	}
	stopped := errors.New("stopped")
	b := newBudget(8 << 20).stoppable(func() error { return stopped })
	all := b.left
	if err := find(b, strings.Repeat("a", 8<<20), func(int, int) {}); err == nil || !errors.Is(b.stopped, stopped) || all-b.left > 2*stopSteps {
		t.Errorf("%v after %d steps", err, all-b.left)
	}
}

// A long text costs memory and time in proportion to the limit of ids, not to its own
// length, and stops when it is asked to.
func TestAttackATextThatIsMuchTooLong(t *testing.T) {
	tok := readGolden(t).build(t, "gpt-2")
	text := strings.Repeat("a", 8<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := tok.Encode(text, EncodeOptions{Limit: 4096})
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; !errors.Is(err, ErrTooMany) || took > 48 {
		t.Errorf("error %v, %d MiB were allocated", err, took)
	}
	stopped := errors.New("stopped")
	calls := 0
	if _, err := tok.Encode(strings.Repeat("word ", 1<<20), EncodeOptions{Stop: func() error {
		if calls++; calls > 2 {
			return stopped
		}
		return nil
	}}); !errors.Is(err, stopped) || calls > 3 {
		t.Errorf("error %v after %d calls", err, calls)
	}
	whole := encode(t, tok, "a short text", EncodeOptions{})
	if ids, err := tok.Encode("a short text", EncodeOptions{Limit: len(whole)}); err != nil || !slices.Equal(ids, whole) {
		t.Errorf("a text at the limit: %v, %v", ids, err)
	}
	if _, err := tok.Encode("a short text", EncodeOptions{Limit: len(whole) - 1}); !errors.Is(err, ErrTooMany) {
		t.Errorf("a text of one token too many: %v", err)
	}
	if ids, err := tok.Encode("a short text", EncodeOptions{Limit: len(whole) - 1, Cut: true}); err != nil || !slices.Equal(ids, whole[:len(whole)-1]) {
		t.Errorf("a text that is cut: %v, %v, want the beginning of %v", ids, err, whole)
	}
	special := strings.Repeat("<|endoftext|>", 5)
	if ids, err := tok.Encode(special, EncodeOptions{ParseSpecial: true, Limit: 4}); !errors.Is(err, ErrTooMany) {
		t.Errorf("five control tokens: %v, %v", ids, err)
	}
}

func TestANormalizerThatFillsMemoryIsStopped(t *testing.T) {
	n := normalizer{}
	for range 6 {
		n = append(n, pure(func(s string) string { return strings.ReplaceAll(s, "a", strings.Repeat("a", maxReplacement)) }))
	}
	if _, err := n.text(newBudget(1000), strings.Repeat("a", 1000)); !errors.Is(err, errTooSlow) {
		t.Errorf("error %v", err)
	}
	// A map of characters that makes much of one.
	m, err := newCharsMap(oneCharacterMap('a', strings.Repeat("b", maxRewritten-1)))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := m.text(newBudget(2), "xa"); err != nil || s != "x"+strings.Repeat("b", maxRewritten-1) {
		t.Errorf("%.80q, %v", s, err)
	}
	if _, err := m.text(newBudget(0), strings.Repeat("a", 50_000)); !errors.Is(err, errTooSlow) {
		t.Errorf("error %v", err)
	}
	if m, err = newCharsMap(oneCharacterMap('a', strings.Repeat("b", maxRewritten))); err != nil {
		t.Fatal(err)
	}
	if s, err := m.text(newBudget(1), "a"); err != nil || s != "a" {
		t.Errorf("a rewriting over the bound gives %.80q, %v", s, err)
	}
}

// oneCharacterMap is a map of characters that rewrites one byte.
func oneCharacterMap(b byte, text string) []byte {
	units := make([]uint32, 512)
	units[0] = 256 << 10                                 // children at 256
	units[256^int(b)] = uint32(b)<<10 | 1<<8 | uint32(b) // its leaf is at 256
	units[256] = 1 << 31                                 // its text begins at 0
	raw := binary.LittleEndian.AppendUint32(nil, uint32(4*len(units)))
	for _, u := range units {
		raw = binary.LittleEndian.AppendUint32(raw, u)
	}
	return append(raw, text+"\x00"...)
}

func TestAMapOfCharactersThatLeadsNowhereRewritesNothing(t *testing.T) {
	for name, unit := range map[string]uint32{"far children": 1<<22 - 1<<10, "a far leaf": 'a' | 1<<8 | (1<<21-1)<<10} {
		units := make([]uint32, 256)
		units[0], units['a'] = unit, unit
		raw := binary.LittleEndian.AppendUint32(nil, 1024)
		for _, u := range units {
			raw = binary.LittleEndian.AppendUint32(raw, u)
		}
		m, err := newCharsMap(raw)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := m.text(newBudget(4), "a\x00é"); err != nil || s != "a\x00é" {
			t.Errorf("%s: %q, %v", name, s, err)
		}
	}
}

// TestEveryKindIsLinearInLongRuns would take minutes where a search is
// quadratic.
func TestEveryKindIsLinearInLongRuns(t *testing.T) {
	g := readGolden(t)
	// All that does not go through a pattern that is not known beforehand.
	names := []string{"split o200k", "split tekken", "split deepseek-v3", "split qwen35", "metaspace first True", "whitespace", "bert split", "each digit",
		"string merged_with_next", "punctuation contiguous", "normal NFC", "normal NFKC", "normal t5", "normal accents", "normal precompiled", "normal llama"}
	for _, k := range g.Kits {
		if !slices.Contains(names, k.Name) && !slices.Contains(trainedKits(g), k.Name) {
			continue
		}
		tok, err := FromFolder(write(t, map[string]string{"tokenizer.json": g.file(t, k)}))
		if err != nil {
			t.Fatal(err)
		}
		for _, unit := range []string{"a", " ", "\n", "é", "<", "▁", "1", "A", "\u0301", " \n", "中"} {
			text := strings.Repeat(unit, 30_000)
			ids := encode(t, tok, text, EncodeOptions{})
			if _, err := tok.Decode(ids, false); err != nil {
				t.Fatalf("%s, %q: %v", k.Name, unit, err)
			}
		}
	}
}

// trainedKits are those that GGUF has, too.
func trainedKits(g *golden) []string {
	var names []string
	for _, entry := range g.GGUF {
		names = append(names, entry.Like)
	}
	return names
}

func TestALongVocabularyIsRefused(t *testing.T) {
	for says, model := range map[string]string{
		"vocab has over 2 entries":  `{"type":"Unigram","vocab":[["x",0],["y",0],["z",0]]}`,
		"merges has over 1 entries": `{"type":"BPE","vocab":{"a":0},"merges":["a a","a a"]}`,
	} {
		_, err := readLimited(strings.NewReader(`{"model":`+model+`}`), limits{bytes: 1000, tokens: 2, merges: 1})
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want %q", err, says)
		}
	}
	if _, err := readLimited(strings.NewReader(`{"model":{"type":"`+strings.Repeat("x", 100)+`"}}`), limits{bytes: 100}); !errors.Is(err, ErrInvalid) {
		t.Errorf("error %v", err)
	}
}

// The bound of each list is of all that is kept of it.
func TestAListThatComesAgainReplacesTheFirst(t *testing.T) {
	const added, lists = `"added_tokens":[{"id":1,"content":"x"},{"id":2,"content":"y"}]`, `"vocab":{"a":0,"b":1},"merges":["a b"]`
	for _, text := range []string{`{` + added + `,` + added + `,"model":{` + lists + `,` + lists + `}}`, `{"model":{` + lists + `},` + added + `,"model":{` + lists + `},` + added + `}`} {
		d, err := readLimited(strings.NewReader(text), limits{bytes: 1000, tokens: 2, merges: 1})
		if err != nil {
			t.Fatal(err)
		}
		if m := d.model; len(d.added) != 2 || len(m.vocab) != 2 || len(m.merges) != 1 {
			t.Errorf("%s: %d added tokens, %d tokens, %d merges are kept; want 2, 2, 1", text, len(d.added), len(m.vocab), len(m.merges))
		}
	}
}

func TestTokensThatBranchTooMuchAreRefused(t *testing.T) {
	added := newAddedTokens()
	var err error
	for i := 0; err == nil && i < 2000; i++ {
		err = added.add(fmt.Sprintf("%04d", i)+strings.Repeat("x", 1000), int32(i), addedRules{})
	}
	if !errors.Is(err, ErrInvalid) || len(added.nodes) > maxAddedNodes {
		t.Errorf("%d nodes, %v", len(added.nodes), err)
	}
}

func TestMergesThatFollowFromScoresAreBounded(t *testing.T) {
	m := func(tokens ...string) map[string]any {
		return map[string]any{keyModel: "llama", keyTokens: append(tokens, "<unk>"), keyTokenType: make1(len(tokens) + 1), keyScores: make([]float32, len(tokens)+1)}
	}
	var long []string
	for i := range maxCut/maxTokenBytes/maxTokenBytes + 1 {
		long = append(long, strings.Repeat("ab", maxTokenBytes/2-1)+string(rune('a'+i)))
	}
	if _, err := FromGGUF(m(long...)); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "too long to find their merges") {
		t.Errorf("error %v", err)
	}
	if _, err := FromGGUF(m("a", "aa", "aaaa")); err != nil {
		t.Error(err)
	}
}

// make1 are the types of ordinary tokens.
func make1(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = 1
	}
	return out
}

func TestWhatGGUFMayNotSayOfOtherAlgorithms(t *testing.T) {
	base := func(model string) map[string]any {
		return map[string]any{keyModel: model, keyTokens: []string{"<unk>", "a", "b"}, keyTokenType: []int32{2, 1, 1}, keyScores: []float32{0, -1, -2}, keyMerges: []string{}}
	}
	for _, model := range []string{"llama", "gemma4", "bert", "t5"} {
		if _, err := FromGGUF(base(model)); err != nil {
			t.Errorf("%s: %v", model, err)
		}
	}
	tests := map[string]struct {
		model, key string
		v          any
		says       string
	}{
		"fewer scores than tokens":  {model: "llama", key: keyScores, v: []float32{1}, says: "want a list of 3 floats"},
		"no scores":                 {model: "t5", key: keyScores, says: "want a list of 3 floats"},
		"a score that is no number": {model: "t5", key: keyScores, v: []float32{0, float32(math.NaN()), 0}, says: "the score of token 1 is not finite"},
		"a prefix that is text":     {model: "llama", key: keySpacePrefix, v: "yes", says: "want true or false"},
		"spaces that are text":      {model: "t5", key: keyExtraSpaces, v: "yes", says: "want true or false"},
		"a map that is text":        {model: "t5", key: keyCharsMap, v: "yes", says: "want a list of bytes"},
		"a map that is broken":      {model: "t5", key: keyCharsMap, v: []int8{1, 2}, says: "precompiled_charsmap has 2 bytes"},
		"a merge of three":          {model: "gemma4", key: keyMerges, v: []string{"a b c"}, says: "two tokens and a space"},
		"a start that is no token":  {model: "bert", key: "tokenizer.ggml.cls_token_id", v: uint64(7), says: "one of 3 tokens"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := base(tc.model)
			m[tc.key] = tc.v
			if tc.v == nil {
				delete(m, tc.key)
			}
			if _, err := FromGGUF(m); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %q", err, tc.says)
			}
		})
	}
}

// TestAttackExpressionsThatNeverCompile: a model's expression takes no time that grows with
// a power of its depth.
func TestAttackExpressionsThatNeverCompile(t *testing.T) {
	c := newCategories()
	nothing := strings.Repeat("(?:", maxGroups) + strings.Repeat("){1000}", maxGroups)
	if _, err := c.compile(nothing); err != nil {
		t.Errorf("a repetition of nothing: %v", err)
	}
	sets := func(depth int) string { return "(?i)" + strings.Repeat("[b", depth) + strings.Repeat("]", depth) }
	if _, err := c.compile(sets(maxFolded)); err != nil {
		t.Errorf("%d sets without case: %v", maxFolded, err)
	}
	const deep = maxGroups / 2
	if _, err := c.compile(sets(deep)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("%d sets without case: %v, want them refused", deep, err)
	}
}

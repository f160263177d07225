//go:build !race

package tokenizer

import (
	"errors"
	"strconv"
	"strings"
	"testing"
)

// A model's tokenizer is bounded by its tokens, which the memory for it is promised by.
func TestATokenizerOfFarMoreTokensThanItsModelIsRefused(t *testing.T) {
	var vocab strings.Builder
	for i := range 40_000 {
		vocab.WriteString(`,"d` + strings.Repeat("e", i%7) + string(rune(0x4e00+i/7)) + `":` + strconv.Itoa(i+4))
	}
	f := write(t, map[string]string{"tokenizer.json": `{"version":"1.0","model":{"type":"BPE","vocab":{"a":0,"b":1," ":2,"c":3` + vocab.String() + `},"merges":[]}}`})
	if _, err := FromModel(f, 512); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "33280") {
		t.Errorf("40,000 tokens for a model of 512: %v", err)
	}
	if tok, err := FromModel(f, 32_000); err != nil || tok.Size() != 40_004 {
		t.Errorf("40,000 tokens for a model of 32,000: %v", err)
	}
}

// So is that of a GGUF file, with the merges that it lists or that follow from scores.
func TestATokenizerOfMetadataIsBoundedByItsModel(t *testing.T) {
	metadata := func(model string, tokens int, text func(i int) string) map[string]any {
		m := map[string]any{keyModel: model, keyPre: "gpt-2", keyTokenType: make1(tokens), keyScores: make([]float32, tokens)}
		var texts, merges []string
		for i := range tokens {
			texts = append(texts, text(i))
			for n := range min(i, 6) {
				merges = append(merges, texts[i-n-1]+" "+texts[i])
			}
		}
		m[keyTokens], m[keyMerges] = texts, merges
		return m
	}
	numbers := func(i int) string { return strconv.Itoa(10_000 + i) }
	for name, c := range map[string]struct {
		model        string
		tokens, rows int
		text         func(i int) string
		want         error
		says         string
	}{
		"more tokens":        {"llama", 40_000, 512, numbers, ErrInvalid, "40000 entries, more than 33280"},
		"as many":            {"llama", 40_000, 32_000, numbers, nil, ""},
		"merges of a list":   {"gpt2", 30_000, 512, numbers, ErrInvalid, "179979 entries, more than 133120"},
		"merges of scores":   {"llama", 600, 512, func(i int) string { return strings.Repeat("a", i+1) }, ErrUnsupported, "over 133120 merges"},
		"of a larger model":  {"llama", 600, 32_000, func(i int) string { return strings.Repeat("a", i+1) }, nil, ""},
		"without any tokens": {"llama", 0, 512, numbers, ErrInvalid, "empty"},
	} {
		if _, err := FromModelMetadata(metadata(c.model, c.tokens, c.text), c.rows); !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// The text of all tokens is bounded by their number too.
func TestATokenizerOfLongTokensIsRefused(t *testing.T) {
	for _, c := range []struct {
		bytes   int
		refused bool
	}{{bytes: 60}, {bytes: 300, refused: true}} {
		var vocab strings.Builder
		for i := range 10_000 {
			vocab.WriteString(`,"` + strconv.Itoa(10_000+i) + strings.Repeat("e", c.bytes-5) + `":` + strconv.Itoa(i+1))
		}
		f := write(t, map[string]string{"tokenizer.json": `{"version":"1.0","model":{"type":"BPE","vocab":{"a":0` + vocab.String() + `},"merges":[]}}`})
		_, err := FromModel(f, 10_000)
		if c.refused != errors.Is(err, ErrInvalid) || c.refused && !strings.Contains(err.Error(), "bytes in total") || !c.refused && err != nil {
			t.Errorf("10,000 tokens of %d bytes: %v", c.bytes, err)
		}
	}
}

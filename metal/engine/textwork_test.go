//go:build !race

package engine

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/embed"
)

// groups changes a tokenizer so that it looks at the rest of a run of digits for each group of it.
func groups(t *testing.T) func(string) string {
	return func(text string) string {
		var definition map[string]any
		if err := json.Unmarshal([]byte(text), &definition); err != nil {
			t.Fatal(err)
		}
		definition["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"Regex": `\d{1,3}(?=(?:\d{3})*\b)`}, "behavior": "Isolated", "invert": false}
		changed, err := json.Marshal(definition)
		if err != nil {
			t.Fatal(err)
		}
		return string(changed)
	}
}

// TestManyTextsTakeNoMoreWorkThanOne: a list of texts of which each may take all the work of a text is
// refused, so that a request does not keep a processor for a minute.
func TestManyTextsTakeNoMoreWorkThanOne(t *testing.T) {
	for _, name := range []string{"qwen3 embed", "qwen3 rerank", "bert rerank"} {
		p := withTokenizer(t, name, groups(t))
		read := func(texts ...string) *Refusal {
			o := embed.Options{Truncate: true}
			all := p.embedTexts(EmbedRequest{Texts: texts, Options: o})
			if p.task == model.Rerank {
				var refusal *Refusal
				if all, refusal = p.rerankTexts(RerankRequest{Query: "q", Documents: texts, Options: o}); refusal != nil {
					return refusal
				}
			}
			e, refusal := p.embeddingOf(t.Context(), "a", all)
			if refusal == nil {
				e.release()
			}
			return refusal
		}
		digits := strings.Repeat("7", 4000)
		if refusal := read(digits); refusal != nil {
			t.Errorf("%s: one text: %v", name, refusal)
		}
		if refusal := read(slices.Repeat([]string{digits}, 10)...); refusal == nil || refusal.Kind != Invalid {
			t.Errorf("%s: 10 texts: %v", name, refusal)
		}
		if refusal := read(slices.Repeat([]string{strings.Repeat("word 123 ", 200)}, 500)...); refusal != nil {
			t.Errorf("%s: 500 texts of words: %v", name, refusal)
		}
	}
}

// Package tokenizertest makes a small vocabulary for tests of what is done with tokens.
//
// Start reading at New.
package tokenizertest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// The tokens of the vocabulary, by their ids. End is a control token; BlankA is "a" after
// a blank.
const (
	A, B, BlankA, Opens, Closes, End, Line = 0, 1, 2, 3, 4, 5, 6
)

// New returns the vocabulary. With dropFirst, its decoder omits the first blank of a text.
func New(t *testing.T, dropFirst bool) *tokenizer.Tokenizer { return With(t, dropFirst) }

// With is New with further control tokens, whose ids follow that of Line.
func With(t *testing.T, dropFirst bool, control ...string) *tokenizer.Tokenizer {
	t.Helper()
	decoder := map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}
	if dropFirst {
		decoder["prepend_scheme"] = "always"
	}
	added := []any{}
	for id, text := range map[int]string{Opens: "<think>", Closes: "</think>", End: "<end>"} {
		added = append(added, map[string]any{"id": id, "content": text, "special": id == End, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	vocab := map[string]int{"a": A, "b": B, "▁a": BlankA, "<think>": Opens, "</think>": Closes, "<end>": End, "\n": Line}
	for i, text := range control {
		vocab[text] = Line + 1 + i
		added = append(added, map[string]any{"id": Line + 1 + i, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	raw, err := json.Marshal(map[string]any{
		"model":   map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
		"decoder": decoder, "added_tokens": added,
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := folder.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.FromFolder(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

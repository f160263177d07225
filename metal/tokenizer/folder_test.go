package tokenizer

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/folder"
)

// write makes a model folder of these files.
func write(t testing.TB, files map[string]string) *folder.Folder {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := folder.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// tinyJSON is a tokenizer.json of byte-level BPE over a few bytes; its fields
// may be replaced.
func tinyJSON(t testing.TB, change map[string]any) string {
	t.Helper()
	parts := map[string]any{
		"version": "1.0", "truncation": map[string]any{"max_length": 1}, "padding": nil,
		"added_tokens": []any{
			map[string]any{"id": 7, "content": "<s>", "special": true},
			map[string]any{"id": 8, "content": "<e>", "special": true},
		},
		"normalizer":    nil,
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false},
		"decoder":       map[string]any{"type": "ByteLevel"},
		"post_processor": map[string]any{
			"type": "TemplateProcessing",
			"single": []any{
				map[string]any{"SpecialToken": map[string]any{"id": "<s>", "type_id": 0}}, map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}},
			},
			"pair": []any{
				map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}, map[string]any{"Sequence": map[string]any{"id": "B", "type_id": 1}},
			},
			"special_tokens": map[string]any{"<s>": map[string]any{"id": "<s>", "ids": []int{7}, "tokens": []string{"<s>"}}},
		},
		"model": map[string]any{
			"type": "BPE", "vocab": map[string]int{"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "Ã": 5, "©": 6},
			"merges": []any{"a b", []string{"Ġ", "ab"}},
		},
	}
	maps.Copy(parts, change)
	raw, err := json.Marshal(parts)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestAFolderGivesItsTokenizer(t *testing.T) {
	tok, err := FromFolder(write(t, map[string]string{
		"tokenizer.json":         tinyJSON(t, nil),
		"tokenizer_config.json":  `{"bos_token": {"content": "<s>"}, "eos_token": "<e>"}`,
		"generation_config.json": `{"eos_token_id": [8, 7], "pad_token_id": 8}`,
		"config.json":            `{"eos_token_id": 3, "bos_token_id": 5}`,
	}))
	if err != nil {
		t.Fatal(err)
	}
	ids := encode(t, tok, "ab ab<e>é", EncodeOptions{AddBOS: true, ParseSpecial: true})
	if want := []int32{7, 3, 4, 8, 5, 6}; !slices.Equal(ids, want) {
		t.Errorf("ids %v, want %v", ids, want)
	}
	if text, err := tok.Decode(ids, true); err != nil || text != "ab abé" {
		t.Errorf("%q, %v", text, err)
	}
	s := tok.Special()
	if s.BOS != 7 || s.EOS != 8 || s.Padding != 8 || !s.AddBOS || s.AddEOS || !slices.Equal(s.Ends(), []int32{8, 7}) {
		t.Errorf("special tokens %+v", s)
	}
}

func TestAFolderWithoutATokenizerSaysSo(t *testing.T) {
	if _, err := FromFolder(write(t, nil)); !errors.Is(err, folder.ErrMissing) || !strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("error %v", err)
	}
}

//go:build !race

package tokenizer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/folder"
)

// TestAttackANumberThatAnErrorRepeats: encoding/json repeats a number of another type
// in its error, and a model's file can make it as long as the file.
func TestAttackANumberThatAnErrorRepeats(t *testing.T) {
	long := strings.Repeat("1", 1<<18)
	model := `"model":{"type":"BPE","vocab":{"a":0},"merges":[]}`
	for name, c := range map[string]struct{ file, text string }{
		"the id of a token":      {"tokenizer.json", `{"version":"1.0","model":{"type":"BPE","vocab":{"a":` + long + `},"merges":[]}}`},
		"a field of the model":   {"tokenizer.json", `{"version":"1.0","model":{"type":"BPE","dropout":` + long + `,"vocab":{"a":0},"merges":[]}}`},
		"an added token":         {"tokenizer.json", `{"version":"1.0","added_tokens":[{"id":` + long + `}],` + model + `}`},
		"a field of a component": {"tokenizer.json", `{"version":"1.0","decoder":{"type":"Strip","content":"a","start":` + long + `,"stop":0},` + model + `}`},
		"a key":                  {"tokenizer_config.json", `{"added_tokens_decoder":{"` + long + `":{}}}`},
		"an id of an end":        {"generation_config.json", `{"eos_token_id":[` + long + `]}`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"tokenizer.json": `{"version":"1.0",` + model + `}`, c.file: c.text} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f, err := folder.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err = FromFolder(f); !errors.Is(err, ErrInvalid) || len(err.Error()) > 2*excerpt.MessageBytes {
				t.Errorf("an error of %d bytes: %.200v", len(err.Error()), err)
			}
		})
	}
}

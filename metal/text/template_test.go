//go:build !race

package text_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

// A template from outside replaces those of the model, also broken ones.
func TestATemplateReplacesThatOfTheModel(t *testing.T) {
	folder, file := filepath.Join(t.TempDir(), "model"), filepath.Join(t.TempDir(), "model.gguf")
	if err := tinymodel.WriteFolder(folder, tinymodel.Default(), tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)}); err != nil {
		t.Fatal(err)
	}
	if err := tinymodel.Write(file, tinymodel.Default()); err != nil {
		t.Fatal(err)
	}
	rendered := func(path, template string) (string, error) {
		f, err := weights.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		opened, err := text.OpenWith(t.Context(), f, template)
		if err != nil {
			return "", err
		}
		return opened.Render(t.Context(), text.Chat{Messages: []chat.Message{{Role: "user", Content: "hello"}}})
	}
	const template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ bos_token }}"
	for _, path := range []string{folder, file} {
		own, err := rendered(path, "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := rendered(path, template)
		if err != nil || got == own || got[:len("<user>hello")] != "<user>hello" || len(got) == len("<user>hello") {
			t.Errorf("%s: %q (%v), its own template writes %q", path, got, err, own)
		}
		if _, err := rendered(path, "{% for %}"); !errors.Is(err, chat.ErrTemplate) {
			t.Errorf("%s: a broken template gives %v", path, err)
		}
	}
	want, err := rendered(folder, template)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "chat_template.jinja"), []byte("{% for %}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rendered(folder, ""); !errors.Is(err, chat.ErrTemplate) {
		t.Errorf("the broken template of the model gives %v", err)
	}
	if got, err := rendered(folder, template); err != nil || got != want {
		t.Errorf("instead of a broken template: %q (%v), want %q", got, err, want)
	}
}

// The memory for a tokenizer is promised by the tokens of the model, in both formats.
func TestAGGUFFileWithFarMoreTokensThanItsModelIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.gguf")
	if err := tinymodel.Write(file, tinymodel.Default()); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tokens, _ := f.Metadata["tokenizer.ggml.tokens"].([]string)
	kinds, _ := f.Metadata["tokenizer.ggml.token_type"].([]int32)
	for i := range 40_000 {
		tokens, kinds = append(tokens, fmt.Sprint(100_000+i)), append(kinds, 1)
	}
	f.Metadata["tokenizer.ggml.tokens"], f.Metadata["tokenizer.ggml.token_type"] = tokens, kinds
	if _, err := text.Open(t.Context(), f); !errors.Is(err, tokenizer.ErrInvalid) {
		t.Errorf("%d tokens for a model of %d: %v", len(tokens), f.Dim.Vocabulary, err)
	}
}

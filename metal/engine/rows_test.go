package engine_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// Gemma 3 270M and 1B have 262144 rows and a tokenizer with one token more.
func TestATokenWithoutARowIsRefusedWhereAPromptNeedsIt(t *testing.T) {
	const soft = "<image_soft_token>"
	dir, rows := filepath.Join(t.TempDir(), "model"), tinymodel.Default().Vocabulary
	if err := tinymodel.WriteFolder(dir, tinymodel.Default(), tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	addToken(t, filepath.Join(dir, "tokenizer.json"), soft, rows)
	e := ready(t, engine.Options{ModelPath: dir}, ref.Options{})
	plain, with := "Hello", "Hello "+soft
	bias := func(id int) engine.Request {
		params := sample.Neutral()
		params.Bias = map[int32]float32{int32(id): 1}
		return engine.Request{Prompt: &plain, MaxTokens: 1, Sampling: &params}
	}
	for name, c := range map[string]struct {
		r     engine.Request
		param string
	}{
		"a text without it":   {r: engine.Request{Prompt: &plain, MaxTokens: 3}},
		"a form":              {r: engine.Request{Prompt: &plain, MaxTokens: 8, Constraint: form(grammar.Regex, "[a-z]{4}")}},
		"the last row":        {r: engine.Request{Tokens: []int32{int32(rows) - 1}, MaxTokens: 3}},
		"a bias for the last": {r: bias(rows - 1)},
		"a bias for it":       {r: bias(rows), param: "logit_bias"},
		"a text with it":      {r: engine.Request{Prompt: &with, MaxTokens: 3}, param: "prompt"},
		"a message with it":   {r: engine.Request{Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: with}}}, MaxTokens: 3}, param: "prompt"},
		"its id":              {r: engine.Request{Tokens: []int32{int32(rows)}, MaxTokens: 3}, param: "prompt"},
	} {
		s, err := e.Generate(t.Context(), c.r)
		if c.param == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			collect(t, s)
			continue
		}
		if r := new(engine.Refusal); !errors.As(err, &r) || r.Kind != engine.Invalid || r.Param != c.param || !strings.Contains(r.Message, "tokens") && !strings.Contains(r.Message, "the model has") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// addToken adds a control token to a tokenizer.json.
func addToken(t *testing.T, path, content string, id int) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&all); err != nil {
		t.Fatal(err)
	}
	all["added_tokens"] = append(all["added_tokens"].([]any), map[string]any{"id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	if raw, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

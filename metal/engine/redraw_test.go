//go:build !race

package engine_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// opener is a model that writes <tool_call> by itself: the token that it draws as the third
// is called so.
func opener(t *testing.T, dir string) string {
	t.Helper()
	retemplate(t, dir, brief(hermes))
	e := ready(t, engine.Options{ModelPath: dir}, ref.Options{})
	p := sample.Greedy()
	a := ask(t, e, asking(func(r *engine.Request) {
		r.Calls, r.Sampling, r.MaxTokens, r.Chat.Tools = nil, &p, 3, []byte(weatherAndNow)
	}))
	stop(e)
	path := filepath.Join(dir, "tokenizer.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	model := config["model"].(map[string]any)
	vocab := model["vocab"].(map[string]any)
	for token, id := range vocab {
		if int32(id.(float64)) == a.tokens[len(a.tokens)-1] {
			delete(vocab, token)
			vocab["<tool_call>"] = id
			model["merges"] = slices.DeleteFunc(model["merges"].([]any), func(m any) bool {
				left, right, _ := strings.Cut(m.(string), " ")
				return left == token || right == token || left+right == token
			})
			config["added_tokens"] = append(config["added_tokens"].([]any), map[string]any{"id": id, "content": "<tool_call>", "special": false, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
			break
		}
	}
	if raw, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A token that the device drew and that fits no call is drawn again by the host, also
// where the next step was built on it and where a layer cannot forget a token.
func TestTokensOfACallAreDrawnAgainUnderItsForm(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := tinymodel.WriteFolder(plain, tinymodel.Default(), tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	called := 0
	for name, dir := range map[string]string{"a model": opener(t, plain), "a hybrid": opener(t, hybrid(t))} {
		p := sample.Greedy()
		request := heldTo(func(*engine.Calls) {}, &p)
		request.MaxTokens = 60
		all := []engine.Request{request, request}
		for i, r := range requests() {
			if i < 2 {
				all = append(all, r)
			}
		}
		want := together(t, ready(t, engine.Options{ModelPath: dir, Sequences: 4}, ref.Options{}), all)
		var fromHost atomic.Int64
		e := ready(t, engine.Options{ModelPath: dir, Sequences: 4, PrefixCache: true}, ref.Options{Ahead: true}, countInputs(&fromHost))
		for range 2 { // with what is remembered of the first time
			got := together(t, e, all)
			for i := range want {
				if !slices.Equal(got[i].tokens, want[i].tokens) || got[i].text != want[i].text {
					t.Errorf("%s, request %d: %v %q ahead, %v %q without", name, i, got[i].tokens, got[i].text, want[i].tokens, want[i].text)
				}
			}
		}
		a := ask(t, e, request)
		calls, _ := made(a)
		if called += len(calls); len(calls) == 0 && a.finished.Reason != engine.Length || a.finished.TextCalls > 0 || strings.Contains(a.text, "tool_call") {
			t.Errorf("%s: %q and %q, %+v", name, a.text, calls, a.finished)
		}
		waitFor(t, "the return of the last request's memory", func() bool { return e.Status().Memory.KV == 0 })
	}
	if called == 0 {
		t.Error("no model made a call")
	}
}

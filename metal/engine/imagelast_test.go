//go:build !race

package engine_test

import (
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/text"
)

// TestAPromptThatEndsInAnImageContinuesFromItsPrefix: the cached block leaves its last token, which is of the
// image. A step without the image failed, with all answers in it, and the prefix cache was dropped.
func TestAPromptThatEndsInAnImageContinuesFromItsPrefix(t *testing.T) {
	const cached = 256
	const template = `{% for part in messages[0]['content'] %}{{ '<|image_pad|>' if part['type'] == 'image' else part['text'] }}{% endfor %}`
	e := ready(t, engine.Options{ModelPath: seeing(t, "qwen3_vl"), PrefixCache: true, CacheMemory: 16 << 20, Sequences: 4, ChatTemplate: template}, ref.Options{Ahead: true}, paced)
	p := sample.Greedy()
	request := func(n int) engine.Request {
		m := chat.Message{Role: "user", Parts: []chat.Part{{Text: strings.Repeat("x", n)}, {Image: true}}}
		return engine.Request{Chat: &text.Chat{Messages: []chat.Message{m}}, Images: [][]byte{picture(t, 16, 16, 1)}, Sampling: &p, MaxTokens: 3}
	}
	n := 240
	s, err := e.Generate(t.Context(), request(n))
	if err != nil {
		t.Fatal(err)
	}
	n += cached + 1 - len(s.Prompt())
	drain(t, s)
	s.Close()
	first := ask(t, e, request(n))
	other, err := e.Generate(t.Context(), engine.Request{Tokens: tokensOf(1, 40, 400), Sampling: &p, MaxTokens: 300, IgnoreEnd: true, Tenant: "another"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := ask(t, e, request(n))
	if again.finished.Err != nil || again.finished.Usage.Cached != cached || !slices.Equal(again.tokens, first.tokens) {
		t.Errorf("%v with %+v from the prefix, %v without", again.tokens, again.finished, first.tokens)
	}
	if a := collect(t, other); a.finished.Err != nil || a.finished.Usage.Generated != 300 {
		t.Errorf("the answer of another: %+v", a.finished)
	}
}

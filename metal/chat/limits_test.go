//go:build !race

package chat

import (
	"errors"
	"strings"
	"testing"
)

// The limits of a render grow with its conversation, so that one of a million tokens
// renders, and stay bounded.
func TestLimitsGrowWithTheConversation(t *testing.T) {
	const source = `{% for m in messages %}{% set content = m.content | trim %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}` +
		`{{ '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}{% endfor %}`
	tmpl, err := Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	var long []Message
	bytes := 0
	for range 8 {
		m := Message{Role: "user", Content: "thought</think>" + strings.Repeat("word ", 1<<18)}
		long, bytes = append(long, m), bytes+len(m.Content)
	}
	if _, err := tmpl.Render(t.Context(), long, Options{Limits: LimitsFor(bytes)}); err != nil {
		t.Errorf("a conversation of %d bytes: %v", bytes, err)
	}
	if _, err := tmpl.Render(t.Context(), long, Options{Limits: LimitsFor(4)}); !errors.Is(err, ErrTemplate) {
		t.Errorf("%d bytes with the limits of a short conversation: %v", bytes, err)
	}
	for bytes, want := range map[int]int{0: leastMade, 4 << 20: 64 << 20, 1 << 62: mostMade} {
		if got := LimitsFor(bytes).Bytes; got != want {
			t.Errorf("a conversation of %d bytes may make %d, want %d", bytes, got, want)
		}
	}
}

//go:build !race

package text

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/toolcall"
)

// allocated is how many bytes are allocated to render a conversation.
func allocated(t *testing.T, x *Text, c Chat) (bytes uint64, written string) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	written, err := x.Render(t.Context(), c)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	return after.TotalAlloc - before.TotalAlloc, written
}

// TestAttackSignsThatPackageJSONEscapes: text of <, > and & takes no more memory than letters,
// where calls or the template's arguments are written again before a render.
func TestAttackSignsThatPackageJSONEscapes(t *testing.T) {
	const n = 1 << 20
	user := chat.Message{Role: "user", Content: "u"}
	for _, format := range []toolcall.Format{toolcall.Mistral, toolcall.Kimi, toolcall.DeepSeekV31} {
		x := templated(t, calling("{{ call.function.arguments | string }}"))
		x.calls, x.written = format, format == toolcall.DeepSeekV31
		render := func(text string) (uint64, string) {
			extra := `{"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":{"a":"` + text + `"}}}]}`
			return allocated(t, x, Chat{Messages: []chat.Message{user, {Role: "assistant", Extra: []byte(extra)}}})
		}
		letters, _ := render(strings.Repeat("a", n))
		signs, written := render(strings.Repeat("<>&", n/3))
		if !strings.Contains(written, strings.Repeat("<>&", n/3)) {
			t.Errorf("%s: the arguments are not what was sent", format)
		}
		if signs > letters+letters/4 {
			t.Errorf("%s: %d bytes are allocated for signs, %d for letters", format, signs, letters)
		}
	}
	x := templated(t, both)
	render := func(text string) (n uint64) {
		n, _ = allocated(t, x, Chat{Messages: []chat.Message{user}, Arguments: []byte(`{"x":"` + text + `"}`), Effort: "high"})
		return n
	}
	if letters, signs := render(strings.Repeat("a", n)), render(strings.Repeat("<", n)); signs > letters+letters/4 {
		t.Errorf("%d bytes are allocated for signs in arguments of the template, %d for letters", signs, letters)
	}
}

// TestCallsAreWrittenOnce: calls are read where they stand and written into one buffer, however
// often they are written before a render.
func TestCallsAreWrittenOnce(t *testing.T) {
	const n = 1 << 20
	extra := `{"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":{"a":"` + strings.Repeat(`\"`, n/2) + `"}}}]}`
	messages := []chat.Message{{Role: "assistant", Extra: []byte(extra)}}
	for name, rewrite := range map[string]func([]chat.Message) ([]chat.Message, error){
		"arguments as text": func(m []chat.Message) ([]chat.Message, error) { return rewritten(m, argumentsAsText) },
		"short ids":         shortIDs,
		"numbered ids":      numberedIDs,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		out, err := rewrite(messages)
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatal(err)
		}
		if all, most := after.TotalAlloc-before.TotalAlloc, uint64(len(out[0].Extra)+n/4); all > most {
			t.Errorf("%s: %d bytes are allocated for %d", name, all, len(out[0].Extra))
		}
	}
}

func TestJSONForTemplatesIsRead(t *testing.T) {
	for _, text := range []string{"", "plain", "<>&", "\"quoted\" \\ and\n\t\r\x00\x1f\x7f", "\u2028 \u00e9 \U0001f600", "broken \xff utf-8", "\xff\xfe\u00e9\xe2\x82", "\ufffd\xffa"} {
		var got string
		if err := json.Unmarshal(write(quoted(text)), &got); err != nil || got != strings.ToValidUTF8(text, "\ufffd") {
			t.Errorf("%q is read as %q: %v", text, got, err)
		}
	}
	if got := string(write(object(member{"b", as(view("1"))}, member{"a\"", as(nil)}, member{"c", as(view(`{"x": [2]}`))}))); got != `{"b":1,"a\"":null,"c":{"x": [2]}}` {
		t.Errorf("an object is written as %s", got)
	}
	if got := string(write(list(nil))); got != "[]" {
		t.Errorf("no calls are written as %s", got)
	}
}

// TestTooManyArgumentsAreRefusedBeforeTheyAreRead: an effort is added to the arguments of the
// template after their values are counted.
func TestTooManyArgumentsAreRefusedBeforeTheyAreRead(t *testing.T) {
	x := templated(t, both)
	c := Chat{Messages: []chat.Message{{Role: "user", Content: "u"}}, Arguments: []byte(`{"x":0` + strings.Repeat(`,"x":0`, 1<<20) + `}`)}
	render := func(effort string) uint64 {
		c.Effort = effort
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := x.Render(t.Context(), c)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, chat.ErrMessages) {
			t.Errorf("error %v, want %v", err, chat.ErrMessages)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	if plain, effort := render(""), render("high"); effort > 2*plain+1<<20 {
		t.Errorf("%d KiB are allocated with an effort, %d without", effort>>10, plain>>10)
	}
}

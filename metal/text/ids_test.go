//go:build !race

package text

import (
	"errors"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/toolcall"
)

func TestIdsOfCallsAreThoseThatMistralsTemplatesTake(t *testing.T) {
	const long = "call_0123456789abcdef01234567"
	out, err := shortIDs([]chat.Message{{Role: "user", Content: "a"},
		{Role: "assistant", Extra: []byte(`{"tool_calls":[{"id":"` + long + `","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}},{"id":"abcDEF123","type":"function","function":{"name":"g"}}]}`)},
		{Role: "tool", Content: "r", Extra: []byte(`{"tool_call_id":"` + long + `"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	written, _ := shortenID(view(`"` + long + `"`))
	short := write(written)
	calls, result := string(out[1].Extra), string(out[2].Extra)
	if len(short) != 11 || !shortID.Match(short[1:10]) || !strings.Contains(calls, `"id":`+string(short)) || result != `{"tool_call_id":`+string(short)+`}` {
		t.Errorf("%s, %s, %s", short, calls, result)
	}
	if !strings.Contains(calls, `"id":"abcDEF123"`) || !strings.Contains(calls, `{"b":1,"a":2}`) || out[0].Extra != nil {
		t.Errorf("what needs no change was changed: %s", calls)
	}
	if _, err := shortIDs([]chat.Message{{Extra: []byte(`{"tool_call_id":5}`)}}); !errors.Is(err, chat.ErrMessages) {
		t.Errorf("an id of no kind: %v", err)
	}
}

// Calls with too many values are refused before they are read to be rewritten.
func TestAttackCallsOfManyValuesAreNotRead(t *testing.T) {
	x := templated(t, calling(callsOf[toolcall.Kimi]))
	for _, x.calls = range []toolcall.Format{toolcall.Mistral, toolcall.Kimi, toolcall.DeepSeekV3} {
		x.written = x.calls == toolcall.DeepSeekV3
		extra := `{"tool_calls":7,"x":[` + strings.Repeat("{},", 140_000) + `{}]}`
		_, err := x.Render(t.Context(), Chat{Messages: []chat.Message{{Role: "user", Content: "a", Extra: []byte(extra)}}})
		if !errors.Is(err, chat.ErrMessages) || !strings.Contains(err.Error(), "send fewer") {
			t.Errorf("%s: %v", x.calls, err)
		}
	}
}

//go:build !race

package chat

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestValuesAreCountedOutsideOfStrings(t *testing.T) {
	for raw, want := range map[string]int{``: 0, `7`: 0, `"a,b:[{"`: 0, `"\",\\"`: 0, `"\`: 0, `"`: 0, `[]`: 1, `{"a":[1,2],"b":"x,\"y"}`: 6, `[{},{},"",[0]]`: 7} {
		if got := Values([]byte(raw)); got != want {
			t.Errorf("%s has %d values, want %d", raw, got, want)
		}
	}
}

// A template is not charged for its input: 16 MiB of empty objects became 800 MiB, in a
// variable that no template reads.
func TestAttackVariablesOfManyValues(t *testing.T) {
	many := func(n int, value string) string {
		return strings.TrimSuffix(strings.Repeat(value+",", n), ",")
	}
	templates, err := NewTemplates(map[string]string{defaultTemplate: `{{ messages[0].content }}`})
	if err != nil {
		t.Fatal(err)
	}
	few, most := many(1000, "{}"), many(maxValues/2, "{}")
	for name, tc := range map[string]struct {
		extra, tools, arguments string
		fits                    bool
	}{
		"arguments":                           {arguments: `{"x":[` + most + `]}`},
		"tools":                               {tools: `[` + most + `,{}]`},
		"tools, counted before they are read": {tools: `[` + most + `,{}`},
		"a message":                           {extra: `{"x":[` + most + `]}`},
		"together":                            {extra: `{"x":[` + many(maxValues/4, "{}") + `]}`, arguments: `{"x":[` + many(maxValues/4, "{}") + `]}`},
		"few":                                 {extra: `{"x":[` + few + `]}`, tools: `[` + few + `]`, arguments: `{"x":[` + few + `]}`, fits: true},
		"a text of many":                      {arguments: `{"x":"` + most + `"}`, fits: true},
	} {
		messages := []Message{{Role: "user", Content: "a", Extra: json.RawMessage(tc.extra)}}
		_, err := templates.Render(t.Context(), messages, Options{Tools: json.RawMessage(tc.tools), Arguments: json.RawMessage(tc.arguments)})
		if tc.fits && err != nil || !tc.fits && (!errors.Is(err, ErrMessages) || !strings.Contains(err.Error(), "send fewer")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

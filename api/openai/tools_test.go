package openai

import (
	"errors"
	"strings"
	"testing"
)

func TestToolsThatCannotBeMeantAreRefused(t *testing.T) {
	tool := func(function string) string { return `"tools":[{"type":"function","function":` + function + `}]` }
	user := `"messages":[{"role":"user","content":"a"}]`
	for name, c := range map[string]struct{ body, param, says string }{
		"a choice without tools":  {user + `,"tool_choice":"required"`, "tool_choice", "'tools' is empty"},
		"a choice of no tool":     {user + `,` + tool(`{"name":"f"}`) + `,"tool_choice":{"type":"function","function":{"name":"g"}}`, "tool_choice", "names 'g'"},
		"a choice of no kind":     {user + `,` + tool(`{"name":"f"}`) + `,"tool_choice":"any"`, "tool_choice", "auto, none, required"},
		"a choice of some":        {user + `,` + tool(`{"name":"f"}`) + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{}}`, "tool_choice.type", "not supported"},
		"a tool of another type":  {user + `,"tools":[{"type":"custom","custom":{}}]`, "tools[0].type", "send functions"},
		"a tool without a name":   {user + `,` + tool(`{}`), "tools[0].function.name", "required"},
		"a name of other letters": {user + `,` + tool(`{"name":"a b"}`), "tools[0].function.name", "letters"},
		"parameters of no kind":   {user + `,` + tool(`{"name":"f","parameters":[]}`), "tools[0].function.parameters", "an object"},
		"a field of no tool":      {user + `,` + tool(`{"name":"f","colour":1}`), "tools[0].function.colour", "is unknown"},
		"two of one name":         {user + `,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}]`, "tools", "'f'"},
		"very many tools":         {user + `,"tools":[` + strings.Repeat(`{"type":"function","function":{"name":"f"}},`, MaxTools) + `{"type":"function","function":{"name":"f"}}]`, "tools", "at most 1024"},
		"an effort of no kind":    {user + `,"reasoning_effort":"much"`, "reasoning_effort", "one of"},
		"a result of no call":     {`"messages":[{"role":"tool","tool_call_id":"x","content":"a"}]`, "messages[0].tool_call_id", "no earlier call"},
		"a result without an id":  {`"messages":[{"role":"tool","content":"a"}]`, "messages[0].tool_call_id", "required"},
		"a user's calls":          {`"messages":[{"role":"user","content":"a","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]}]`, "messages[0].tool_calls", "assistant"},
		"an id of a user":         {`"messages":[{"role":"user","content":"a","tool_call_id":"c"}]`, "messages[0].tool_call_id", "role tool"},
		"arguments of no kind":    {`"messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"[1]"}}]}]`, "messages[0].tool_calls[0].function.arguments", "JSON object"},
		"a call without an id":    {`"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]`, "messages[0].tool_calls[0].id", "required"},
		"neither text nor calls":  {`"messages":[{"role":"assistant","tool_calls":[]}]`, "messages[0].content", "required"},
	} {
		_, err := strictly().Chat([]byte(`{"model":"m",` + c.body + `}`))
		if e := new(Error); !errors.As(err, &e) || e.Param != c.param || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

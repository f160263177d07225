package openai

import (
	"errors"
	"strings"
	"testing"
)

// TestSchemasKeepNoMemoryOfTheirWhiteSpace: responses are stored with their schemas for a day, and
// count the JSON that a client sees.
func TestSchemasKeepNoMemoryOfTheirWhiteSpace(t *testing.T) {
	schema, err := Compact([]byte("{" + strings.Repeat(" ", 1<<20) + "}"))
	if err != nil || string(schema) != "{}" || cap(schema) > 1<<10 {
		t.Errorf("%q takes %d bytes, %v", schema, cap(schema), err)
	}
	var tool Tool
	if err := tool.decodeParameters("p", []byte("{"+strings.Repeat(" ", 1<<20)+"}")); err != nil || cap(tool.Parameters) > 1<<10 {
		t.Errorf("%q takes %d bytes, %v", tool.Parameters, cap(tool.Parameters), err)
	}
}

func TestToolsThatCannotBeMeantAreRefused(t *testing.T) {
	tool := func(function string) string { return `"tools":[{"type":"function","function":` + function + `}]` }
	user := `"messages":[{"role":"user","content":"a"}]`
	for name, c := range map[string]struct{ body, param, says string }{
		"a choice without tools":  {body: user + `,"tool_choice":"required"`, param: "tool_choice", says: "'tools' is empty"},
		"a choice of no tool":     {body: user + `,` + tool(`{"name":"f"}`) + `,"tool_choice":{"type":"function","function":{"name":"g"}}`, param: "tool_choice", says: "names 'g'"},
		"a choice of no kind":     {body: user + `,` + tool(`{"name":"f"}`) + `,"tool_choice":"any"`, param: "tool_choice", says: "auto, none, required"},
		"a choice of some":        {body: user + `,` + tool(`{"name":"f"}`) + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{}}`, param: "tool_choice.type", says: "not supported"},
		"a tool of another type":  {body: user + `,"tools":[{"type":"custom","custom":{}}]`, param: "tools[0].type", says: "send functions"},
		"a tool without a name":   {body: user + `,` + tool(`{}`), param: "tools[0].function.name", says: "required"},
		"a name of other letters": {body: user + `,` + tool(`{"name":"a b"}`), param: "tools[0].function.name", says: "letters"},
		"parameters of no kind":   {body: user + `,` + tool(`{"name":"f","parameters":[]}`), param: "tools[0].function.parameters", says: "an object"},
		"a field of no tool":      {body: user + `,` + tool(`{"name":"f","colour":1}`), param: "tools[0].function.colour", says: "is unknown"},
		"two of one name":         {body: user + `,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}]`, param: "tools", says: "'f'"},
		"very many tools":         {body: user + `,"tools":[` + strings.Repeat(`{"type":"function","function":{"name":"f"}},`, MaxTools) + `{"type":"function","function":{"name":"f"}}]`, param: "tools", says: "at most 1024"},
		"an effort of no kind":    {body: user + `,"reasoning_effort":"much"`, param: "reasoning_effort", says: "one of"},
		"a result of no call":     {body: `"messages":[{"role":"tool","tool_call_id":"x","content":"a"}]`, param: "messages[0].tool_call_id", says: "no earlier call"},
		"a result without an id":  {body: `"messages":[{"role":"tool","content":"a"}]`, param: "messages[0].tool_call_id", says: "required"},
		"a user's calls":          {body: `"messages":[{"role":"user","content":"a","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]}]`, param: "messages[0].tool_calls", says: "assistant"},
		"an id of a user":         {body: `"messages":[{"role":"user","content":"a","tool_call_id":"c"}]`, param: "messages[0].tool_call_id", says: "role tool"},
		"arguments of no kind":    {body: `"messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"[1]"}}]}]`, param: "messages[0].tool_calls[0].function.arguments", says: "JSON object"},
		"a call without an id":    {body: `"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]`, param: "messages[0].tool_calls[0].id", says: "required"},
		"neither text nor calls":  {body: `"messages":[{"role":"assistant","tool_calls":[]}]`, param: "messages[0].content", says: "required"},
	} {
		_, err := strictly().Chat([]byte(`{"model":"m",` + c.body + `}`))
		if e := new(Error); !errors.As(err, &e) || e.Param != c.param || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

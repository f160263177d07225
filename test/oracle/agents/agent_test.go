package agents

import (
	"encoding/json"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
)

// says renders what the model says next.
func says(t *testing.T, name, messages, tools string) string {
	t.Helper()
	const macros = `{%- macro dictate(text) -%}<<{{ text }}>>{%- endmacro -%}{%- macro drone(text) -%}<<{{ text }}...>>{%- endmacro -%}`
	tpl, err := chat.Parse(macros + templateOf(name))
	if err != nil {
		t.Fatal(err)
	}
	m, err := chat.ParseMessages([]byte(messages))
	if err != nil {
		t.Fatal(err)
	}
	out, err := tpl.Render(t.Context(), m, chat.Options{Tools: json.RawMessage(tools), AddGenerationPrompt: true})
	if err != nil {
		t.Fatal(err)
	}
	_, said, _ := strings.Cut(out, "<<")
	return strings.TrimSuffix(said, ">>")
}

func tool(name, properties string, required ...string) string {
	r, _ := json.Marshal(required)
	return `{"type":"function","function":{"name":"` + name + `","description":"d","parameters":{"type":"object","properties":{` + properties + `},"required":` + string(r) + `}}}`
}

func TestTheAgentUsesTheToolsThatAProgramOffers(t *testing.T) {
	const task = `{"role":"user","content":"In the repository /r the test fails."}`
	called := func(arguments string) string {
		return `{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"t","arguments":` + arguments + `}}]}`
	}
	result := func(s string) string { return `{"role":"tool","tool_call_id":"c","content":"` + s + `"}` }
	text := `{"type":"string"}`
	bash := tool("bash", `"command":`+text+`,"why":`+text, "command", "why")
	for name, c := range map[string]struct {
		model    string
		messages []string
		tools    []string
		want     string
	}{
		"the task":           {model: hermes, messages: []string{task}, tools: []string{bash}, want: "I run the test.\n<tool_call>\n" + `{"name": "bash", "arguments": {"command": "sh test.sh", "why": "Fix the price"}}` + "\n</tool_call>"},
		"the task, in XML":   {model: xml, messages: []string{task}, tools: []string{tool("Bash", `"command":`+text)}, want: "I run the test.\n<tool_call>\n<function=Bash>\n<parameter=command>\nsh test.sh\n</parameter>\n</function>\n</tool_call>"},
		"a list of commands": {model: hermes, messages: []string{task}, tools: []string{tool("shell", `"command":{"type":"array"}`)}, want: "I run the test.\n<tool_call>\n" + `{"name": "shell", "arguments": {"command": ["sh", "-c", "sh test.sh"]}}` + "\n</tool_call>"},
		"a list of edits":    {model: hermes, messages: []string{task, called("{}"), result("1: echo $(($1 + $2))")}, tools: []string{bash, tool("edit", `"path":`+text+`,"edits":{"type":"array","items":{"properties":{"oldText":`+text+`,"newText":`+text+`}}}`)}, want: "price.sh adds where it has to multiply.\n<tool_call>\n" + `{"name": "edit", "arguments": {"path": "/r/price.sh", "edits": [{"oldText": "echo $(($1 + $2))", "newText": "echo $(($1 * $2))"}]}}` + "\n</tool_call>"},
		"a patch":            {model: hermes, messages: []string{task, called("{}"), result("1: echo $(($1 + $2))")}, tools: []string{bash, tool("apply_patch", `"input":`+text)}, want: "price.sh adds where it has to multiply.\n<tool_call>\n" + `{"name": "apply_patch", "arguments": {"input": "*** Begin Patch\n*** Update File: price.sh\n@@\n-echo $(($1 + $2))\n+echo $(($1 * $2))\n*** End Patch"}}` + "\n</tool_call>"},
		"edits remembered":   {model: hermes, messages: []string{task, `{"role":"assistant","content":"echo $(($1 * $2))"}`, `{"role":"user","content":"What did you change?"}`}, want: "I changed price.sh: it multiplies now."},
		"no memory":          {model: hermes, messages: []string{`{"role":"user","content":"What did you change?"}`}, tools: []string{bash}, want: "I have changed nothing."},
		"no end":             {model: hermes, messages: []string{`{"role":"user","content":"Talk until I stop you."}`}, want: "The price is the count times the price of one. ..."},
		"a title":            {model: hermes, messages: []string{`{"role":"system","content":"You are a title generator."}`, `{"role":"user","content":"Talk until I stop you."}`}, want: "Fix the price"},
		"going in circles":   {model: hermes, messages: []string{task, strings.Repeat(called("{}")+",", 13) + result("what?")}, tools: []string{bash}, want: "I give up after 13 calls."},
	} {
		got := says(t, c.model, "["+strings.Join(c.messages, ",")+"]", "["+strings.Join(c.tools, ",")+"]")
		if got != c.want {
			t.Errorf("%s: it says\n%s\nwant\n%s", name, got, c.want)
		}
	}
}

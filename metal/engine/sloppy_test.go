//go:build !race

package engine_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// saying is a model that answers in these pieces, with a template of a family.
func saying(t *testing.T, template string, pieces ...string) *engine.Engine {
	t.Helper()
	c := tinymodel.Default()
	c.Name, c.Untied, c.Type, c.Context, c.Vocabulary = "sloppy", true, weights.F32, 2048, 480
	c.Script = &tinymodel.Script{Template: template + "<|cue|>", Lines: []tinymodel.Line{{Cue: "<|cue|>", Says: pieces}}}
	path := filepath.Join(t.TempDir(), "sloppy.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	return ready(t, engine.Options{ModelPath: path}, ref.Options{})
}

const threeTools = `[{"type":"function","function":{"name":"write","description":"A","parameters":{"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"},"mode":{"type":"integer"},"model":true},
   "required":["path","content"],"$schema":"http://json-schema.org/draft-04/schema","not":{"required":["rm"]},"unknown":[1]}}},
 {"type":"function","function":{"name":"now","description":"A"}},
 {"type":"function","function":{"name":"python","description":"A","parameters":{"type":"object","properties":{"code":{"type":"string"}}}}}]`

// What models get wrong, through a whole engine that holds calls to their form.
func TestSloppyCallsAreRepaired(t *testing.T) {
	const wrote = `write{"path": "README.md", "content": "hello"}`
	for name, c := range map[string]struct {
		template string
		pieces   []string
		want     string
	}{
		"a closing tag is dropped":      {template: coder, pieces: []string{"<tool_call>\n", "<function=", "write>\n", "<parameter=", "path>\nREADME.md", "\n<param", "eter=content>\nhello", "\n</parameter>", "\n</function>", "\n</tool_call>"}, want: wrote},
		"a closing tag is misspelt":     {template: coder, pieces: []string{"<tool_call>\n<function=write>\n", "<parameter=path>\nREADME.md\n", "</param>", "\n<parameter=content>\n", "hello\n</function>", "\n</tool_call>"}, want: wrote},
		"JSON between tags":             {template: coder, pieces: []string{"<tool_call>\n{\"name\": ", `"write", "arguments": `, `{"path": "README.md", `, `"content": "hello"}}`, "\n</tool_call>"}, want: wrote},
		"tags where JSON is":            {template: hermes, pieces: []string{"<tool_call>\n<function=write>\n", "<parameter=path>\nREADME.md\n</parameter>\n", "<parameter=content>\nhello\n</parameter>\n", "</function>\n</tool_call>"}, want: wrote},
		"null for arguments":            {template: hermes, pieces: []string{"<tool_call>", `{"name": "now", `, `"arguments": null}`, "</tool_call>"}, want: `now{}`},
		"an empty string":               {template: hermes, pieces: []string{"<tool_call>", `{"name": "now", `, `"arguments": ""}`, "</tool_call>"}, want: `now{}`},
		"no arguments":                  {template: hermes, pieces: []string{"<tool_call>", `{"name": `, `"functions.now"}`, "</tool_call>"}, want: `now{}`},
		"null of a Llama":               {template: llama, pieces: []string{`{"name": "now", `, `"parameters": null}`}, want: `now{}`},
		"a line end, 5.0, a comma":      {template: hermes, pieces: []string{"<tool_call>", `{"name": "write", "arguments": {"path": "a` + "\n", `b", "content": "", "mode": `, `5.0`, `, }}`, "</tool_call>"}, want: `write{"path": "a\nb", "content": "", "mode": 5 }`},
		"two in one tag":                {template: hermes, pieces: []string{"<tool_call>\n", `{"name": "now"}`, "\n" + `{"name": "now", `, `"arguments": {}}`, "\n</tool_call>"}, want: `now{}now{}`},
		"code for a tool of one string": {template: harmony, pieces: []string{"<|channel|>commentary", " to=functions.python ", "<|constrain|>code", "<|message|>print(", `"x")`, "<|call|>"}, want: `python{"code": "print(\"x\")"}`},
		"a call of no tool":             {template: harmony, pieces: []string{"<|channel|>commentary", " to=browser.search ", "<|message|>{\"q\": 1}", "<|call|>"}, want: `{"q": 1}`},
		"text around a call":            {template: mistral, pieces: []string{"Sure. ", "[TOOL_CALLS]now", "[ARGS]", "{}"}, want: `Sure.now{}`},
	} {
		e := saying(t, c.template, c.pieces...)
		got := saidAndCalled(t, e, engine.Request{Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "Hi"}}, Tools: []byte(threeTools)}, Calls: &engine.Calls{}, MaxTokens: 40})
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		stop(e)
	}
}

// A model that makes a mistake in a call continues with a call of a declared tool.
func TestACallThatCannotBeRepairedContinuesUnderItsForm(t *testing.T) {
	for name, c := range map[string]struct {
		template, begin string
		pieces          []string
	}{
		"a tool that is not declared": {template: hermes, pieces: []string{"<tool_call>", `{"name": "`, `rm", "arguments": {}}`, "</tool_call>"}},
		"no JSON":                     {template: hermes, pieces: []string{"<tool_call>", "oh no", "</tool_call>"}},
		"no JSON in the arguments":    {template: hermes, begin: `now{`, pieces: []string{"<tool_call>", `{"name": "now", "arguments": {`, `x}}`}},
		"no tool between tags":        {template: coder, pieces: []string{"<tool_call>\n", "<function=", "rm>\n"}},
		"no tool of Mistral's":        {template: mistral, pieces: []string{"[TOOL_CALLS]", "rm[ARGS]{}"}},
		"no JSON of a Llama":          {template: llama, begin: `now{`, pieces: []string{`{"name": "now", "parameters": `, `{ `, `x}`}},
		"no JSON of GPT-OSS":          {template: harmony, begin: `now{`, pieces: []string{"<|channel|>commentary to=functions.now", "<|message|>{", "xy"}},
	} {
		e := saying(t, c.template, c.pieces...)
		a := ask(t, e, engine.Request{Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "Hi"}}, Tools: []byte(threeTools)}, Calls: &engine.Calls{}, MaxTokens: 60})
		called := ""
		for _, call := range a.calls {
			called += call.Name + call.Arguments
			if call.Name != "" && call.Name != "now" && call.Name != "write" && call.Name != "python" {
				t.Errorf("%s: it calls %q", name, call.Name)
			}
		}
		if called == "" && (c.begin != "" || a.finished.Reason != engine.Length) || !strings.HasPrefix(called, c.begin) || strings.Contains(called, "x}") || a.finished.TextCalls > 0 {
			t.Errorf("%s: %q and %+v, %+v", name, a.text, a.calls, a.finished)
		}
		stop(e)
	}
}

// Tools that are too many to be held are called all the same, and what is no call is text.
func TestCallsThatCannotBeHeldAreText(t *testing.T) {
	huge := strings.Replace(threeTools, `"name":"now","description":"A"`, `"name":"now","description":"A","parameters":{"x":"`+strings.Repeat("y", 300<<10)+`"}`, 1)
	for name, c := range map[string]struct {
		pieces []string
		want   string
		text   int
	}{
		"a call":  {pieces: []string{"<tool_call>", `{"name": "write", `, `"arguments": {"path": "a"}}`, "</tool_call>"}, want: `write{"path": "a"}`, text: 0},
		"no call": {pieces: []string{"So <tool_call>", `{"name": "write", `, `"arguments": oh}`, "</tool_call>"}, want: `So {"name": "write", "arguments": oh}`, text: 1},
	} {
		e := saying(t, brief(hermes), c.pieces...)
		a := ask(t, e, engine.Request{Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "Hi"}}, Tools: []byte(huge)}, Calls: &engine.Calls{}, MaxTokens: 60})
		said := a.text
		for _, call := range a.calls {
			said += call.Name + call.Arguments
		}
		if said != c.want || a.finished.TextCalls != c.text {
			t.Errorf("%s: %q, %+v", name, said, a.finished)
		}
		stop(e)
	}
}

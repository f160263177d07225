//go:build !race

package responses

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/openai"
)

// withTools decodes a request with tools, and returns its ignored fields.
func withTools(t *testing.T, tools, more string) (*Request, []string) {
	t.Helper()
	var d openai.Decoder
	r, err := Decode(&d, []byte(`{"model":"m","input":"a","tools":`+tools+more+`}`))
	if err != nil {
		t.Fatal(err)
	}
	return r, d.Ignored()
}

// marshalled returns a value as clients receive it.
func marshalled(t *testing.T, v any) string {
	t.Helper()
	b, err := openai.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestNamespacesAreFlattenedIntoUniqueFunctions(t *testing.T) {
	const tools = `[{"type":"function","name":"mcp__a__f"},{"type":"namespace","name":"mcp__a","description":"Group.","tools":[` +
		`{"type":"function","name":"f","description":"d","parameters":{"type":"object"}},{"type":"custom","name":"g"},{"type":"web_search"}]},` +
		`{"type":"namespace","name":"b__","tools":[{"type":"function","name":"f"}]},{"type":"namespace","name":"empty","description":"d","tools":[]}]`
	r, ignored := withTools(t, tools, "")
	var names []string
	for _, f := range r.Use.Tools {
		names = append(names, f.Name)
	}
	if want := []string{"mcp__a__f", "mcp__a__f_2", "mcp__a__g", "b__f"}; !slices.Equal(names, want) {
		t.Errorf("the functions are %q, want %q", names, want)
	}
	if d := r.Use.Tools[1].Description; d != "Group.\n\nd" {
		t.Errorf("the first function of a group is described as %q", d)
	}
	if want := []string{"tools[].tools[web_search]"}; !slices.Equal(ignored, want) {
		t.Errorf("ignored are %q, want %q", ignored, want)
	}
	for function, of := range r.Names {
		if got := r.FunctionNames()(of.Namespace, of.Name); got != function {
			t.Errorf("%+v is called %s, want %s", of, got, function)
		}
	}
	if got := r.FunctionNames()("gone", "f"); got != "gone__f" {
		t.Errorf("a tool of an earlier response is called %s", got)
	}
	const shown = `[{"type":"function","name":"mcp__a__f","description":null,"parameters":null,"strict":false},{"type":"namespace","name":"mcp__a","description":"Group.","tools":[` +
		`{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":false},{"type":"custom","name":"g","description":null,"format":{"type":"text"}}]},` +
		`{"type":"namespace","name":"b__","description":"","tools":[{"type":"function","name":"f","description":null,"parameters":null,"strict":false}]},{"type":"namespace","name":"empty","description":"d","tools":[]}]`
	if d := cmp.Diff(shown, marshalled(t, r.Tools)); d != "" {
		t.Error(d)
	}
}

func TestLongNamesOfNamespacesAreShortenedAndStayUnique(t *testing.T) {
	long := strings.Repeat("n", 100)
	r, _ := withTools(t, `[{"type":"namespace","name":"`+long+`","tools":[{"type":"function","name":"`+long+`a"},{"type":"function","name":"`+long+`b"}]}]`, "")
	seen := map[string]bool{}
	for _, f := range r.Use.Tools {
		if err := openai.CheckTool("", f); err != nil || seen[f.Name] {
			t.Errorf("%s: %v", f.Name, err)
		}
		seen[f.Name] = true
	}
}

// The model is given a function with one text parameter.
func TestCustomToolsAreShownAsFunctions(t *testing.T) {
	const plain = `{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`
	for name, tc := range map[string]struct{ format, description, parameters string }{
		"any text":     {description: "d", parameters: plain},
		"text":         {format: `,"format":{"type":"text"}`, description: "d", parameters: plain},
		"a Lark text":  {format: `,"format":{"type":"grammar","syntax":"lark","definition":"start: /a/"}`, description: "d\n\nThe input must match this grammar, written for Lark:\nstart: /a/", parameters: plain},
		"a regex text": {format: `,"format":{"type":"grammar","syntax":"regex","definition":"a|b"}`, description: "d", parameters: strings.Replace(plain, `"string"`, `"string","pattern":"^(?:a|b)$"`, 1)},
	} {
		r, ignored := withTools(t, `[{"type":"custom","name":"f","description":"d"`+tc.format+`}]`, "")
		f := r.Use.Tools[0]
		if f.Description != tc.description || string(f.Parameters) != tc.parameters || f.Strict || !r.Names["f"].Custom || ignored != nil {
			t.Errorf("%s: %q %s, ignored %q", name, f.Description, f.Parameters, ignored)
		}
	}
}

func TestToolsOfTheVendorsServersAreLeftOut(t *testing.T) {
	const tools = `[{"type":"web_search","external_web_access":true},{"type":"local_shell"},{"type":"file_search","vector_store_ids":["v"]},{"type":"code_interpreter","container":{"type":"auto"}},` +
		`{"type":"image_generation"},{"type":"mcp","server_label":"l","server_url":"https://x"},{"type":"computer_use_preview"},{"type":"tool_search"},{"type":"function","name":"f"}]`
	r, ignored := withTools(t, tools, "")
	want := []string{"tools[web_search]", "tools[local_shell]", "tools[file_search]", "tools[code_interpreter]", "tools[image_generation]", "tools[mcp]", "tools[computer_use_preview]", "tools[tool_search]"}
	if len(r.Use.Tools) != 1 || len(r.Tools) != 1 || !slices.Equal(ignored, want) {
		t.Errorf("%d tools, ignored are %q", len(r.Use.Tools), ignored)
	}
}

func TestChoicesAmongTools(t *testing.T) {
	const tools = `[{"type":"function","name":"f"},{"type":"custom","name":"g"},{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]`
	for choice, want := range map[string]struct {
		use       openai.ToolUse
		functions []string
	}{
		`"required"`:                                     {use: openai.ToolUse{Choice: "required"}, functions: []string{"f", "g", "n__f"}},
		`{"type":"function","name":"f"}`:                 {use: openai.ToolUse{Function: "f"}, functions: []string{"f", "g", "n__f"}},
		`{"type":"custom","name":"g"}`:                   {use: openai.ToolUse{Function: "g"}, functions: []string{"f", "g", "n__f"}},
		`{"type":"function","namespace":"n","name":"f"}`: {use: openai.ToolUse{Function: "n__f"}, functions: []string{"f", "g", "n__f"}},
		`{"type":"allowed_tools","mode":"required","tools":[{"type":"custom","name":"g"}]}`:               {use: openai.ToolUse{Choice: "required"}, functions: []string{"g"}},
		`{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","namespace":"n","name":"f"}]}`: {use: openai.ToolUse{Choice: "auto"}, functions: []string{"n__f"}},
	} {
		r, _ := withTools(t, tools, `,"tool_choice":`+choice)
		var functions []string
		for _, f := range r.Use.Tools {
			functions = append(functions, f.Name)
		}
		if r.Use.Choice != want.use.Choice || r.Use.Function != want.use.Function || !slices.Equal(functions, want.functions) {
			t.Errorf("%s: %+v", choice, r.Use)
		}
		if got := marshalled(t, r.Choice); got != choice {
			t.Errorf("%s is shown as %s", choice, got)
		}
	}
	r, _ := withTools(t, `[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]`, `,"tool_choice":{"type":"function","name":"f"}`)
	if r.Use.Function != "n__f" {
		t.Errorf("a choice without a namespace means %q", r.Use.Function)
	}
	// The choice may precede the tools.
	var err error
	r, err = Decode(&openai.Decoder{}, []byte(`{"tool_choice":{"type":"custom","name":"g"},"model":"m","input":"a","tools":`+tools+`}`))
	if err != nil || r.Use.Function != "g" {
		t.Errorf("%+v, %v", r, err)
	}
	var d openai.Decoder
	_, err = Decode(&d, []byte(`{"model":"m","input":"a","tools":[{"type":"web_search"},{"type":"function","name":"f"}],`+
		`"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"web_search"},{"type":"function","name":"f"}]}}`))
	if want := []string{"tools[web_search]", "tool_choice.tools[web_search]"}; err != nil || !slices.Equal(d.Ignored(), want) {
		t.Errorf("%v, ignored are %q", err, d.Ignored())
	}
}

// Codex declares tools in the input as well.
func TestToolsOfTheInputAreAvailable(t *testing.T) {
	r, err := Decode(&openai.Decoder{}, []byte(`{"model":"m","input":[{"role":"user","content":"a"},{"type":"additional_tools","role":"developer","tools":[{"type":"custom","name":"g"}]}],"tools":[{"type":"function","name":"f"}]}`))
	if err != nil || len(r.Use.Tools) != 2 || len(r.Tools) != 2 || len(r.Input) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestStructuredOutput(t *testing.T) {
	for format, want := range map[string]struct {
		constraint *openai.Constraint
		shown      string
	}{
		`{"type":"text"}`:        {shown: `{"type":"text"}`},
		`null`:                   {shown: `{"type":"text"}`},
		`{"type":"json_object"}`: {constraint: &openai.Constraint{Kind: openai.ConstraintObject, Param: "text.format"}, shown: `{"type":"json_object"}`},
		`{"type":"json_schema","name":"a","strict":true,"schema":{"type": "object"}}`: {constraint: &openai.Constraint{Kind: openai.ConstraintSchema, Text: `{"type":"object"}`, Param: "text.format.schema"},
			shown: `{"type":"json_schema","name":"a","description":null,"schema":{"type":"object"},"strict":true}`},
		`{"type":"json_schema","name":"a","description":"d","schema":true}`: {constraint: &openai.Constraint{Kind: openai.ConstraintSchema, Text: `true`, Param: "text.format.schema"},
			shown: `{"type":"json_schema","name":"a","description":"d","schema":true,"strict":false}`},
	} {
		r, err := Decode(&openai.Decoder{}, []byte(`{"model":"m","input":"a","text":{"format":`+format+`}}`))
		if err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		if d := cmp.Diff(want.constraint, r.Sampling.Constraint); d != "" {
			t.Errorf("%s: %s", format, d)
		}
		if got := marshalled(t, r.Format); got != want.shown {
			t.Errorf("%s is shown as %s", format, got)
		}
	}
}

// A response that was truncated within a call, as clients send it back.
func TestCallThatBrokeOffIsAcceptedBack(t *testing.T) {
	const call = `{"type":"function_call","call_id":"c","name":"f","status":"incomplete","arguments":"{\"a"}`
	body := []byte(`{"model":"m","input":[` + call + `,{"type":"function_call_output","call_id":"c","output":"x"},{"role":"assistant","content":[]},{"role":"assistant","content":""}]}`)
	r, err := Decode(strictly(), body)
	if err != nil {
		t.Fatal(err)
	}
	arguments, err := r.Input[0].FunctionArguments()
	if err != nil || string(arguments) != "{}" || *r.Input[0].Arguments != `{"a` || r.Input[0].Status != StatusIncomplete {
		t.Errorf("%s, %v; %+v", arguments, err, r.Input[0])
	}
}

func TestArgumentsOfCalls(t *testing.T) {
	text := func(s string) *string { return &s }
	for name, tc := range map[string]struct {
		item Item
		want string
	}{
		"a function":             {item: Item{Type: ItemCall, Arguments: text(`{"a": 1}`)}, want: `{"a": 1}`},
		"a call that broke off":  {item: Item{Type: ItemCall, Arguments: text(`{"a`)}, want: `{}`},
		"arguments of a list":    {item: Item{Type: ItemCall, Arguments: text(`[]`)}, want: `{}`},
		"a custom tool":          {item: Item{Type: ItemCustomCall, Input: text("a\n\"<b>\"")}, want: `{"input":"a\n\"<b>\""}`},
		"a custom tool, nothing": {item: Item{Type: ItemCustomCall, Input: text("")}, want: `{"input":""}`},
	} {
		got, err := tc.item.FunctionArguments()
		if err != nil || string(got) != tc.want || !json.Valid(got) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

// A response contains its tools and the choice among them, and is stored for a day.
func TestAttackChoicesOfManyTools(t *testing.T) {
	chosen := strings.Repeat(`{"type":"function","name":"f"},`, 100_000) + `{"type":"web_search"}`
	choice := `"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[` + chosen + `]}`
	for name, test := range map[string]struct{ fields, param string }{
		"many choices":                  {fields: `"tools":[{"type":"function","name":"f"}],` + choice, param: "tool_choice.tools"},
		"many choices before the tools": {fields: choice + `,"tools":[{"type":"function","name":"f"}]`, param: "tool_choice.tools"},
		"many tools":                    {fields: `"tools":[` + manyTools(100_000) + `]`, param: "tools"},
		"many tools in a namespace":     {fields: `"tools":[{"type":"namespace","name":"n","tools":[` + manyTools(100_000) + `]}]`, param: "tools"},
		"many tools that are left out":  {fields: `"tools":[` + strings.Repeat(`{"type":"web_search"},`, 100_000) + `{"type":"web_search"}]`, param: "tools"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(&openai.Decoder{}, []byte(`{"model":"m","input":"a",`+test.fields+`}`))
			var e *openai.Error
			if !errors.As(err, &e) || e.Status != http.StatusBadRequest || e.Param != test.param {
				t.Errorf("%v", err)
			}
		})
	}
	r, err := Decode(&openai.Decoder{}, []byte(`{"model":"m","input":"a","tools":[`+manyTools(openai.MaxTools)+`]}`))
	if err != nil || len(r.Use.Tools) != openai.MaxTools {
		t.Errorf("as many tools as are allowed: %v", err)
	}
	for name, tools := range map[string]string{"tools": `"tools":[` + manyTools(1000) + `]`, "tools in a namespace": `"tools":[{"type":"namespace","name":"n","tools":[` + manyTools(1000) + `]}]`} {
		took := func(choice string) uint64 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := Decode(&openai.Decoder{}, []byte(`{"model":"m","input":"a",`+tools+choice+`}`)); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			return after.TotalAlloc - before.TotalAlloc
		}
		alone := took("")
		if all := took(`,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[` + manyTools(1000) + `]}`); all > 5*alone {
			t.Errorf("a choice of all %s takes %d bytes, the tools take %d", name, all, alone)
		}
	}
}

func manyTools(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`{"type":"function","name":"f%d"}`, i)
	}
	return strings.Join(all, ",")
}

// TestToolsOfOneLongNameAreNamedInOneLook: their names begin alike, and each search for a free one
// continues where the last one ended.
func TestToolsOfOneLongNameAreNamedInOneLook(t *testing.T) {
	var tools []string
	for i := range openai.MaxTools - 1 {
		tools = append(tools, fmt.Sprintf(`{"type":"function","name":"%x"}`, i))
	}
	body := []byte(`{"model":"m","input":"a","tools":[{"type":"namespace","name":"` + strings.Repeat("n", maxFunctionName) + `","tools":[` + strings.Join(tools, ",") + `]}]}`)
	var r *Request
	allocations := testing.AllocsPerRun(1, func() {
		var err error
		if r, err = Decode(&openai.Decoder{}, body); err != nil {
			t.Fatal(err)
		}
	})
	if most := 100 * len(tools); int(allocations) > most {
		t.Errorf("%d tools took %.0f allocations, more than %d", len(tools), allocations, most)
	}
	if len(r.Names) != len(tools) || len(r.Use.Tools) != len(tools) {
		t.Fatalf("%d of %d tools have a name of their own", len(r.Names), len(tools))
	}
	for name := range r.Names {
		if len(name) > maxFunctionName {
			t.Errorf("the name %s has %d characters", name, len(name))
		}
	}
}

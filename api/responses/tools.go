package responses

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
)

// Types of tools.
const (
	toolFunction  = "function"
	toolCustom    = "custom"
	toolNamespace = "namespace"
)

// Tool is a function or a custom tool in the format of a response.
type Tool struct {
	Type        string  `json:"type"`
	Name        string  `json:"name"`
	Description *string `json:"description"`
	// Parameters and Strict belong to functions, Format to custom tools.
	Parameters json.RawMessage `json:"parameters,omitempty"`
	Strict     *bool           `json:"strict,omitempty"`
	Format     *ToolFormat     `json:"format,omitempty"`
}

// DeclaredTool is a tool of a response, or a namespace of them.
type DeclaredTool struct {
	Tool
	// Tools belong to namespaces.
	Tools []Tool `json:"tools,omitzero"`
}

// ToolFormat is the format of the input of a custom tool: any text, or the text of
// a grammar.
type ToolFormat struct {
	Type       string `json:"type"`
	Syntax     string `json:"syntax,omitempty"`
	Definition string `json:"definition,omitempty"`
}

// ToolName is what a function that is shown to the model stands for.
type ToolName struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Custom tools take one text.
	Custom bool `json:"custom,omitempty"`
}

// namespaceSeparator joins a namespace and a name, as MCP clients do.
const namespaceSeparator = "__"

// maxFunctionName is the maximum length of the name of a function.
const maxFunctionName = 128

// FunctionNames returns a function that returns the name of the function which stands for a
// tool.
func (r *Request) FunctionNames() func(namespace, name string) string {
	functions := make(map[[2]string]string, len(r.Names))
	for function, of := range r.Names {
		functions[[2]string{of.Namespace, of.Name}] = function
	}
	return func(namespace, name string) string {
		if function, known := functions[[2]string{namespace, name}]; known {
			return function
		}
		return joined(namespace, name)
	}
}

func joined(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return strings.TrimSuffix(namespace, namespaceSeparator) + namespaceSeparator + name
}

// named registers a tool under the name of a function that no other tool has. Many long names
// may begin alike: a search continues where the last one ended.
func (d *decoder) named(of ToolName) (string, error) {
	if d.r.Names == nil {
		d.r.Names, d.known, d.next = map[string]ToolName{}, map[[2]string]bool{}, map[string]int{}
	}
	tool := [2]string{of.Namespace, of.Name}
	if d.known[tool] {
		return "", openai.Invalid("tools", "The tool name '%s' appears twice. Give each tool a unique name.", openai.Shorten(of.Name))
	}
	d.known[tool] = true
	base := joined(of.Namespace, of.Name)
	function, begins := suffixed(base, ""), base[:min(len(base), maxFunctionName-longestSuffix)]
	for n := max(2, d.next[begins]); ; n++ {
		if _, taken := d.r.Names[function]; !taken {
			break
		}
		function, d.next[begins] = suffixed(base, "_"+strconv.Itoa(n)), n+1
	}
	d.r.Names[function] = of
	return function, nil
}

// longestSuffix of a name: there are at most openai.MaxTools.
const longestSuffix = len("_1024")

// suffixed appends a suffix to a name, and shortens that to what a function may
// have.
func suffixed(base, suffix string) string {
	return base[:min(len(base), maxFunctionName-len(suffix))] + suffix
}

// typeOfTool returns the member "type" of an object and ignores other members.
func typeOfTool(param string, raw json.RawMessage) (string, error) {
	if openai.Kind(raw) != "object" {
		return "", openai.WrongKind(param, "an object", raw)
	}
	form := ""
	for name, value := range openai.Members(raw) {
		if string(name) == "type" {
			if err := openai.String(&form)(param+".type", value); err != nil {
				return "", err
			}
		}
	}
	if form == "" {
		return "", openai.Required(param + ".type")
	}
	return form, nil
}

// tools reads a list of tools. Tools that OpenAI's servers run are left out,
// because nothing is run on this server.
func (d *decoder) tools(param string, raw json.RawMessage) error {
	return openai.Array(param, raw, func(param string, raw json.RawMessage) error {
		if err := d.declare(); err != nil {
			return err
		}
		form, err := typeOfTool(param, raw)
		if err != nil {
			return err
		}
		if form == toolNamespace {
			return d.namespace(param, raw)
		}
		t, err := d.tool(form, "", param, raw)
		if t != nil {
			d.r.Tools = append(d.r.Tools, DeclaredTool{Tool: *t})
		}
		return err
	})
}

// declare counts a tool before it is read: each of them is compared with all others.
func (d *decoder) declare() error {
	if d.declared++; d.declared > openai.MaxTools {
		return openai.TooManyTools()
	}
	return nil
}

// tool reads a function or a custom tool; it returns nil for one that is left out.
func (d *decoder) tool(form, namespace, param string, raw json.RawMessage) (*Tool, error) {
	switch {
	case form == toolFunction:
		return d.function(namespace, param, raw)
	case form == toolCustom:
		return d.custom(namespace, param, raw)
	}
	return nil, d.leaveOut(form, param, raw)
}

// leaveOut ignores a tool that nothing runs here.
func (d *decoder) leaveOut(form, param string, raw json.RawMessage) error {
	if d.Strict {
		return openai.Unsupported(param+".type", fmt.Sprintf("Server tools of type '%s' are not supported; send functions, which the client runs.", openai.Shorten(form)))
	}
	return d.LeaveOut(param, form, raw)
}

func (d *decoder) function(namespace, param string, raw json.RawMessage) (*Tool, error) {
	var f openai.Tool
	skip := ""
	fields := f.ToolFields("parameters")
	fields["type"] = openai.String(&skip)
	if err := d.Object(raw, param, fields, toolUnused); err != nil {
		return nil, err
	}
	t := &Tool{Type: toolFunction, Name: f.Name, Description: described(f.Description), Parameters: f.Parameters, Strict: &f.Strict}
	if t.Parameters == nil {
		t.Parameters = json.RawMessage("null")
	}
	return t, d.show(param, f, ToolName{Namespace: namespace, Name: f.Name})
}

// custom reads a tool that takes one text. The model is shown a function with one
// string. A regular expression is part of its schema; a grammar is only part of its
// description.
func (d *decoder) custom(namespace, param string, raw json.RawMessage) (*Tool, error) {
	var f openai.Tool
	format := ToolFormat{Type: "text"}
	skip := ""
	err := d.Object(raw, param, map[string]openai.Field{
		"type": openai.String(&skip), "name": openai.String(&f.Name), "description": openai.Optional(openai.String(&f.Description)),
		"format": openai.Optional(d.toolFormat(&format)),
	}, toolUnused)
	if err != nil {
		return nil, err
	}
	t := &Tool{Type: toolCustom, Name: f.Name, Description: described(f.Description), Format: &format}
	input := struct {
		Type    string `json:"type"`
		Pattern string `json:"pattern,omitempty"`
	}{Type: "string"}
	switch format.Syntax {
	case syntaxRegex:
		input.Pattern = "^(?:" + format.Definition + ")$"
	case syntaxLark:
		f.Description = strings.TrimSpace(f.Description + "\n\nThe input must match this grammar, written for Lark:\n" + format.Definition)
	}
	schema, err := openai.Marshal(input)
	if err != nil {
		return nil, err
	}
	f.Parameters = json.RawMessage(`{"type":"object","properties":{"` + inputMember + `":` + string(schema) + `},"required":["` + inputMember + `"],"additionalProperties":false}`)
	return t, d.show(param, f, ToolName{Namespace: namespace, Name: f.Name, Custom: true})
}

// Syntaxes of the grammar of a custom tool.
const (
	syntaxLark  = "lark"
	syntaxRegex = "regex"
)

func (d *decoder) toolFormat(f *ToolFormat) openai.Field {
	return func(param string, raw json.RawMessage) error {
		*f = ToolFormat{}
		err := d.Object(raw, param, map[string]openai.Field{
			"type": openai.String(&f.Type), "syntax": openai.Optional(openai.String(&f.Syntax)), "definition": openai.Optional(openai.String(&f.Definition)),
		})
		switch {
		case err != nil:
			return err
		case f.Type == "text":
			f.Syntax, f.Definition = "", ""
			return nil
		case f.Type != "grammar":
			return openai.Invalid(param+".type", "'%s' must be text or grammar, not '%s'.", param+".type", openai.Shorten(f.Type))
		case f.Syntax != syntaxLark && f.Syntax != syntaxRegex:
			return openai.Invalid(param+".syntax", "'%s' must be lark or regex, not '%s'.", param+".syntax", openai.Shorten(f.Syntax))
		case f.Definition == "":
			return openai.Required(param + ".definition")
		}
		return nil
	}
}

// namespace reads a group of tools. The model is shown each of them under a name
// that begins with that of the group, and the first one with the description of
// the group.
func (d *decoder) namespace(param string, raw json.RawMessage) error {
	group := DeclaredTool{Tool: Tool{Type: toolNamespace, Description: new(string)}, Tools: []Tool{}}
	var tools json.RawMessage
	skip := ""
	err := d.Object(raw, param, map[string]openai.Field{
		"type": openai.String(&skip), "name": openai.String(&group.Name), "description": openai.Optional(openai.String(group.Description)), "tools": openai.Raw(&tools),
	})
	switch {
	case err != nil:
		return err
	case tools == nil:
		return openai.Required(param + ".tools")
	}
	if err := openai.CheckTool(param, openai.Tool{Name: group.Name}); err != nil {
		return err
	}
	first := len(d.r.Use.Tools)
	err = openai.Array(param+".tools", tools, func(param string, raw json.RawMessage) error {
		if err := d.declare(); err != nil {
			return err
		}
		form, err := typeOfTool(param, raw)
		if err != nil {
			return err
		}
		t, err := d.tool(form, group.Name, param, raw)
		if t != nil {
			group.Tools = append(group.Tools, *t)
		}
		return err
	})
	if all := d.r.Use.Tools; len(all) > first && *group.Description != "" {
		all[first].Description = strings.TrimSpace(*group.Description + "\n\n" + all[first].Description)
	}
	d.r.Tools = append(d.r.Tools, group)
	return err
}

// show adds the function that the model sees of a tool.
func (d *decoder) show(param string, f openai.Tool, of ToolName) error {
	if err := openai.CheckTool(param, f); err != nil {
		return err
	}
	var err error
	if f.Name, err = d.named(of); err != nil {
		return err
	}
	d.r.Use.Tools = append(d.r.Use.Tools, f)
	return nil
}

func described(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// choice is a choice among the tools, as a request gives it.
type choice struct {
	// only is the tool that the model must call.
	only *chosen
	// allowed are the tools that the model may call; nil means all.
	allowed []chosen
	mode    string
}

// chosen names a tool.
type chosen struct {
	Type      string `json:"type"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// allowedTools is a choice of several tools in the format of a response.
type allowedTools struct {
	Type  string   `json:"type"`
	Mode  string   `json:"mode"`
	Tools []chosen `json:"tools"`
}

const choiceAllowed = "allowed_tools"

// decodeChoice reads the choice after the tools, which bound it.
func (d *decoder) decodeChoice() error {
	const param = "tool_choice"
	r, raw := d.r, d.rawChoice
	if raw == nil {
		return nil
	}
	if openai.Kind(raw) == "string" {
		err := r.Use.DecodeChoice(param, raw)
		r.Choice = r.Use.Choice
		return err
	}
	form, err := typeOfTool(param, raw)
	switch {
	case err != nil:
		return err
	case form == toolFunction || form == toolCustom:
		d.choice.only = &chosen{}
		r.Choice = d.choice.only
		return d.chosen(d.choice.only)(param, raw)
	case form == choiceAllowed:
		return d.allowedTools(param, raw)
	}
	return openai.Unsupported(param+".type", fmt.Sprintf("A tool choice of type '%s' is not supported; name a function or a custom tool, or send auto, none or required.", openai.Shorten(form)))
}

func (d *decoder) chosen(c *chosen) openai.Field {
	return func(param string, raw json.RawMessage) error {
		err := d.Object(raw, param, map[string]openai.Field{"type": openai.String(&c.Type), "name": openai.String(&c.Name), "namespace": openai.Optional(openai.String(&c.Namespace))})
		if err == nil && c.Name == "" {
			return openai.Required(param + ".name")
		}
		return err
	}
}

// allowedTools reads a choice of several tools. Those that are left out of the
// tools are left out here, too.
func (d *decoder) allowedTools(param string, raw json.RawMessage) error {
	d.choice.allowed = []chosen{}
	skip, named := "", 0
	err := d.Object(raw, param, map[string]openai.Field{
		"type": openai.String(&skip), "mode": openai.String(&d.choice.mode),
		"tools": func(list string, raw json.RawMessage) error {
			return openai.Array(list, raw, func(param string, raw json.RawMessage) error {
				if named++; named > d.declared {
					return openai.Invalid(list, "'%s' names more tools than the %d in 'tools'. Name each of them at most once.", list, d.declared)
				}
				form, err := typeOfTool(param, raw)
				if err != nil {
					return err
				}
				if form != toolFunction && form != toolCustom {
					return d.leaveOut(form, param, raw)
				}
				var c chosen
				err = d.chosen(&c)(param, raw)
				d.choice.allowed = append(d.choice.allowed, c)
				return err
			})
		},
	})
	switch {
	case err != nil:
		return err
	case d.choice.mode != openai.ChoiceAuto && d.choice.mode != openai.ChoiceRequired:
		return openai.Invalid(param+".mode", "'%s.mode' must be auto or required, not '%s'.", param, openai.Shorten(d.choice.mode))
	case named == 0:
		return openai.Invalid(param+".tools", "'%s.tools' must name at least one tool.", param)
	}
	d.r.Choice = allowedTools{choiceAllowed, d.choice.mode, d.choice.allowed}
	return nil
}

// offer applies the choice to the tools.
func (d *decoder) offer() error {
	r, c := d.r, d.choice
	switch {
	case c.only != nil:
		r.Use.Function = r.chosenNames()(*c.only)
	case c.allowed != nil:
		if err := d.allow(); err != nil {
			return err
		}
		r.Use.Choice = c.mode
	case r.Choice == nil:
		r.Choice = openai.ChoiceAuto
	}
	return r.Use.Check()
}

// chosenNames returns a function that returns the name of the function which stands for a
// chosen tool. Where no tool has just its name, one in a namespace may have it.
func (r *Request) chosenNames() func(chosen) string {
	names := r.FunctionNames()
	named := make(map[string][]string, len(r.Names)) // functions by the name of their tool
	for function, of := range r.Names {
		named[of.Name] = append(named[of.Name], function)
	}
	return func(c chosen) string {
		function := names(c.Namespace, c.Name)
		if _, known := r.Names[function]; known || c.Namespace != "" {
			return function
		}
		if others := named[c.Name]; len(others) == 1 {
			return others[0]
		}
		return function
	}
}

// allow leaves the allowed tools.
func (d *decoder) allow() error {
	r := d.r
	nameOf, functions := r.chosenNames(), map[string]bool{}
	for _, c := range d.choice.allowed {
		function := nameOf(c)
		if _, known := r.Names[function]; !known {
			return openai.Invalid("tool_choice", "'tool_choice' names '%s', but no tool has that name.", openai.Shorten(c.Name))
		}
		functions[function] = true
	}
	r.Use.Tools = slices.DeleteFunc(r.Use.Tools, func(t openai.Tool) bool { return !functions[t.Name] })
	return nil
}

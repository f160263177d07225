package openai

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Tool is a function that a model may call.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	// Strict requires arguments that match Parameters.
	Strict bool `json:"-"`
}

// ToolUse holds the tools and the tool choice of a request; each route has its
// own format for them.
type ToolUse struct {
	Tools []Tool `json:"tools,omitempty"`
	// Choice is auto, none or required; empty means auto. Function is the
	// function that the model must call.
	Choice   string `json:"tool_choice,omitempty"`
	Function string `json:"function,omitempty"`
	// Single allows at most one call.
	Single bool `json:"single,omitempty"`
}

// MaxTools is how many tools a request may declare, several times what OpenAI allows.
const MaxTools = 1024

// TooManyTools returns the error of a request that declares more.
func TooManyTools() *Error {
	return Invalid("tools", "A request may declare at most %d tools.", MaxTools)
}

// ArrayOfTools is Array for tools. It refuses one too many before it is read, also where the
// others are left out.
func ArrayOfTools(param string, raw json.RawMessage, one Field) error {
	n := 0
	return decodeArray(param, raw, func(param string, raw json.RawMessage) error {
		if n++; n > MaxTools {
			return TooManyTools()
		}
		return one(param, raw)
	})
}

// Choices of tools.
const (
	ChoiceAuto     = "auto"
	ChoiceNone     = "none"
	ChoiceRequired = "required"
)

// Offered returns the tools that the model may use: none when the choice is
// none.
func (u *ToolUse) Offered() []Tool {
	if u.Choice == ChoiceNone {
		return nil
	}
	return u.Tools
}

// Strict reports whether one of the tools is strict.
func (u *ToolUse) Strict() bool {
	return slices.ContainsFunc(u.Tools, func(t Tool) bool { return t.Strict })
}

// Definitions returns the tools in the format of chat templates, which is the
// same for all routes.
func Definitions(tools []Tool) (string, error) {
	type definition struct {
		Type     string `json:"type"`
		Function Tool   `json:"function"`
	}
	var all []definition
	for _, t := range tools {
		all = append(all, definition{"function", t})
	}
	raw, err := Marshal(all)
	if err != nil {
		return "", fmt.Errorf("definitions of tools: %w", err)
	}
	return string(raw), nil
}

// Check rejects a choice that the tools do not allow.
func (u *ToolUse) Check() error {
	if len(u.Tools) > MaxTools {
		return TooManyTools()
	}
	seen := make(map[string]bool, len(u.Tools))
	for _, t := range u.Tools {
		if seen[t.Name] {
			return Invalid("tools", "The tool name '%s' appears twice. Give each tool a unique name.", t.Name)
		}
		seen[t.Name] = true
	}
	switch {
	case len(u.Tools) == 0 && (u.Choice == ChoiceRequired || u.Function != ""):
		return Invalid("tool_choice", "'tool_choice' requires a tool call, but 'tools' is empty.")
	case u.Function != "" && !seen[u.Function]:
		return Invalid("tool_choice", "'tool_choice' names '%s', but no tool has that name.", Shorten(u.Function))
	}
	return nil
}

var toolName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

// CheckTool rejects an invalid name or invalid parameters of a tool.
func CheckTool(param string, t Tool) error {
	switch {
	case t.Name == "":
		return required(param + ".name")
	case !toolName.MatchString(t.Name):
		return Invalid(param+".name", "'%s' must be 1 to 128 letters, digits, dots, dashes and underscores, not '%s'.", param+".name", Shorten(t.Name))
	}
	return nil
}

// ToolFields returns the fields of a function's definition; parameters is the
// name of the field with its schema.
func (t *Tool) ToolFields(parameters string) map[string]Field {
	return map[string]Field{
		"name":        String(&t.Name),
		"description": optional(stringInto(&t.Description)),
		"strict":      optional(boolInto(&t.Strict)),
		parameters:    optional(t.decodeParameters),
	}
}

func (t *Tool) decodeParameters(param string, raw json.RawMessage) error {
	if kind(raw) != "object" {
		return wrongKind(param, "a JSON schema, which is an object", raw)
	}
	var err error
	t.Parameters, err = Compact(raw)
	return err
}

// toolFields returns the fields of chat completions.
func (u *ToolUse) toolFields(d *Decoder) map[string]field {
	return map[string]field{
		"tools":               optional(u.tools(d)),
		"tool_choice":         optional(u.choice(d)),
		"parallel_tool_calls": optional(u.Parallel),
	}
}

// Parallel reads whether the model may call more than one tool.
func (u *ToolUse) Parallel(param string, raw json.RawMessage) error {
	var parallel bool
	err := boolInto(&parallel)(param, raw)
	u.Single = !parallel
	return err
}

func (u *ToolUse) tools(d *Decoder) field {
	return func(param string, raw json.RawMessage) error {
		return ArrayOfTools(param, raw, func(param string, raw json.RawMessage) error {
			var form string
			var t Tool
			given := false
			err := d.Object(raw, param, map[string]field{
				"type": stringInto(&form),
				"function": func(param string, raw json.RawMessage) error {
					given = true
					if err := d.Object(raw, param, t.ToolFields("parameters"), functionUnused); err != nil {
						return err
					}
					return CheckTool(param, t)
				},
				"custom": func(string, json.RawMessage) error { return nil }, // refused by its type
			}, toolUnused)
			switch {
			case err != nil:
				return err
			case form == "":
				return required(param + ".type")
			case form != "function":
				return Unsupported(param+".type", fmt.Sprintf("Tools of type '%s' are not supported; send functions.", Shorten(form)))
			case !given:
				return required(param + ".function")
			}
			u.Tools = append(u.Tools, t)
			return nil
		})
	}
}

// DecodeChoice reads one of the words auto, none and required.
func (u *ToolUse) DecodeChoice(param string, raw json.RawMessage) error {
	if err := stringInto(&u.Choice)(param, raw); err != nil {
		return err
	}
	if !slices.Contains([]string{ChoiceAuto, ChoiceNone, ChoiceRequired}, u.Choice) {
		return Invalid(param, "'%s' must be auto, none, required or a function's name in an object, not '%s'.", param, Shorten(u.Choice))
	}
	return nil
}

func (u *ToolUse) choice(d *Decoder) field {
	return func(param string, raw json.RawMessage) error {
		if kind(raw) == "string" {
			return u.DecodeChoice(param, raw)
		}
		var form string
		err := d.Object(raw, param, map[string]field{
			"type": stringInto(&form),
			"function": func(param string, raw json.RawMessage) error {
				return d.Object(raw, param, map[string]field{"name": stringInto(&u.Function)})
			},
			"allowed_tools": func(string, json.RawMessage) error { return nil }, // refused by its type
			"custom":        func(string, json.RawMessage) error { return nil },
		})
		switch {
		case err != nil:
			return err
		case form != "function":
			return Unsupported(param+".type", fmt.Sprintf("A tool choice of type '%s' is not supported; name a function, or send auto, none or required.", Shorten(form)))
		case u.Function == "":
			return required(param + ".function.name")
		}
		return nil
	}
}

// MaxCallName is the maximum length of the name of an earlier call, in bytes: each of its
// results may repeat it in the prompt. It is twice that of a tool, as models invent names.
const MaxCallName = 256

// CheckCallName refuses a longer one.
func CheckCallName(param, name string) error {
	if len(name) > MaxCallName {
		return Invalid(param, "'%s' has %d bytes, at most %d are allowed. Omit calls of tools that do not exist.", param, len(name), MaxCallName)
	}
	return nil
}

// Call is a tool call in an earlier turn.
type Call struct {
	ID, Name string
	// Arguments is a JSON object.
	Arguments json.RawMessage
}

func (m *Message) calls(d *Decoder) field {
	return func(param string, raw json.RawMessage) error {
		return decodeArray(param, raw, func(param string, raw json.RawMessage) error {
			if err := d.Part(param); err != nil {
				return err
			}
			var form string
			var c Call
			err := d.Object(raw, param, map[string]field{
				"id":    stringInto(&c.ID),
				"type":  optional(stringInto(&form)),
				"index": optional(integer(0, maxTokensBound, func(int64) {})), // of a stream, which some send back
				"function": func(param string, raw json.RawMessage) error {
					return d.Object(raw, param, map[string]field{"name": stringInto(&c.Name), "arguments": c.DecodeArguments})
				},
				"custom": func(string, json.RawMessage) error { return nil },
			})
			switch {
			case err != nil:
				return err
			case form != "" && form != "function":
				return Unsupported(param+".type", fmt.Sprintf("Tool calls of type '%s' are not supported; send functions.", Shorten(form)))
			case c.ID == "":
				return required(param + ".id")
			case c.Name == "":
				return required(param + ".function.name")
			}
			if c.Arguments == nil {
				c.Arguments = json.RawMessage("{}")
			}
			m.Calls = append(m.Calls, c)
			return CheckCallName(param+".function.name", c.Name)
		})
	}
}

// DecodeArguments reads an object that is encoded as a string, as in tool
// calls. Arguments that a limit cut, as a response contains them, are accepted:
// the call then has none.
func (c *Call) DecodeArguments(param string, raw json.RawMessage) error {
	var text string
	if err := stringInto(&text)(param, raw); err != nil {
		return err
	}
	if json.Valid([]byte(text)) && kind(json.RawMessage(text)) != "object" && kind(json.RawMessage(text)) != "null" {
		return Invalid(param, "'%s' must be a JSON object encoded as a string. Omit an invalid call.", param)
	}
	c.Arguments = ObjectOf(text)
	return nil
}

// ObjectOf returns the JSON object in a text, or an empty object if the text
// contains none.
func ObjectOf(text string) json.RawMessage {
	text = strings.TrimSpace(text)
	if !json.Valid([]byte(text)) || kind(json.RawMessage(text)) != "object" {
		text = "{}"
	}
	return json.RawMessage(text)
}

// checkResults requires that every tool result follows its call, and adds the
// name of the function, which some chat templates use.
func checkResults(all []Message) error {
	names := map[string]string{}
	for i := range all {
		m := &all[i]
		for _, c := range m.Calls {
			names[c.ID] = c.Name
		}
		if m.Role != RoleTool {
			continue
		}
		name, ok := names[m.CallID]
		if !ok {
			param := fmt.Sprintf("messages[%d].tool_call_id", i)
			return Invalid(param, "'%s' is %s, but no earlier call in 'tool_calls' has that id.", param, Shorten(m.CallID))
		}
		m.Name = name
	}
	return nil
}

// ToolCall is a tool call in a response, or the part that a chunk adds to it.
type ToolCall struct {
	// Index is nil in a response that is not streamed.
	Index    *int         `json:"index,omitempty"`
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function ToolFunction `json:"function"`
}

// ToolFunction is the function of a call.
type ToolFunction struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// CallIDPrefix is the prefix of call ids.
const CallIDPrefix = "call_"

// NewToolCall returns a call with a new id.
func NewToolCall(name, arguments string) ToolCall {
	return ToolCall{ID: NewID(CallIDPrefix), Type: "function", Function: ToolFunction{Name: name, Arguments: arguments}}
}

// Call returns a chunk that begins a call.
func (a ChatAnswer) Call(index int, name, arguments string) ChatCompletionChunk {
	c := NewToolCall(name, arguments)
	c.Index = &index
	return a.chunk(ChatChunkChoice{Index: a.Index, Delta: Delta{ToolCalls: []ToolCall{c}}})
}

// Arguments returns a chunk that adds to the arguments of a call.
func (a ChatAnswer) Arguments(index int, text string) ChatCompletionChunk {
	return a.chunk(ChatChunkChoice{Index: a.Index, Delta: Delta{ToolCalls: []ToolCall{{Index: &index, Function: ToolFunction{Arguments: text}}}}})
}

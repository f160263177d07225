package responses

import (
	"encoding/json"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
)

// Types of items.
const (
	ItemMessage   = "message"
	ItemCall      = "function_call"
	ItemOutput    = "function_call_output"
	ItemReasoning = "reasoning"
)

// Item is an input or output item of a response: a message, a function call,
// the output of a function, or reasoning.
type Item struct {
	ID     string `json:"id"`
	Type   string `json:"type"`
	Role   string `json:"role,omitempty"`
	Status string `json:"status"`
	// Summary of a reasoning item is always present and empty.
	Summary []Part `json:"summary,omitzero"`
	Content []Part `json:"content,omitzero"`
	// CallID is the id of a call, and of its output.
	CallID string `json:"call_id,omitempty"`
	Name   string `json:"name,omitempty"`
	// Arguments of a call are a JSON object.
	Arguments *string `json:"arguments,omitempty"`
	Output    *string `json:"output,omitempty"`
}

// Part is a content part of an item.
type Part struct {
	Type string `json:"type"`
	Text string `json:"text"`
	// Annotations and Logprobs of an output_text are always present and empty.
	Annotations *[]any `json:"annotations,omitempty"`
	Logprobs    *[]any `json:"logprobs,omitempty"`
}

// Text returns the text of all parts.
func (i Item) Text() string {
	var b strings.Builder
	for _, p := range i.Content {
		b.WriteString(p.Text)
	}
	return b.String()
}

// Bytes returns the size of all texts.
func (i Item) Bytes() int64 {
	n := len(i.Name) + len(i.CallID)
	for _, p := range i.Content {
		n += len(p.Text)
	}
	for _, text := range []*string{i.Arguments, i.Output} {
		if text != nil {
			n += len(*text)
		}
	}
	return int64(n)
}

// prefixes are the prefixes of item ids.
var prefixes = map[string]string{ItemMessage: "msg_", ItemCall: "fc_", ItemOutput: "fco_", ItemReasoning: "rs_"}

// newItem returns a completed item.
func newItem(kind string) Item {
	return Item{ID: prefixes[kind] + hex16(), Type: kind, Status: StatusCompleted}
}

func message(role string, parts ...Part) Item {
	i := newItem(ItemMessage)
	i.Role, i.Content = role, parts
	return i
}

func (d decoder) item(param string, raw json.RawMessage) (Item, error) {
	kind := ItemMessage
	if openai.Kind(raw) != "object" {
		return Item{}, openai.WrongKind(param, "an object", raw)
	}
	for name, value := range openai.Members(raw) {
		if string(name) == "type" {
			if err := openai.String(&kind)(param+".type", value); err != nil {
				return Item{}, err
			}
		}
	}
	item, skip := newItem(kind), ""
	fields := map[string]openai.Field{"type": openai.String(&skip), "id": openai.Optional(openai.String(&skip)), "status": openai.Optional(openai.String(&skip))}
	switch kind {
	case ItemMessage:
		return item, d.message(&item, param, raw, fields)
	case ItemCall:
		return item, d.call(&item, param, raw, fields)
	case ItemOutput:
		return item, d.output(&item, param, raw, fields)
	case ItemReasoning:
		return item, d.thoughts(&item, param, raw, fields)
	}
	return item, openai.Unsupported(param+".type", "Items of type '"+openai.Shorten(kind)+"' are not supported; send messages, function calls, function call outputs, and reasoning.")
}

func (d decoder) message(i *Item, param string, raw json.RawMessage, fields map[string]openai.Field) error {
	var content json.RawMessage
	fields["role"], fields["content"] = openai.String(&i.Role), openai.Raw(&content)
	err := d.Object(raw, param, fields, messageUnused)
	switch {
	case err != nil:
		return err
	case content == nil:
		return openai.Required(param + ".content")
	}
	switch i.Role {
	case openai.RoleSystem, openai.RoleDeveloper, openai.RoleUser, openai.RoleAssistant:
	case "":
		return openai.Required(param + ".role")
	default:
		return openai.Invalid(param+".role", "'%s.role' must be one of system, developer, user, assistant, not '%s'.", param, openai.Shorten(i.Role))
	}
	i.Content, err = d.parts(param+".content", content, i.Role)
	return err
}

func (d decoder) call(i *Item, param string, raw json.RawMessage, fields map[string]openai.Field) error {
	var c openai.Call
	fields["call_id"], fields["name"], fields["arguments"] = openai.String(&i.CallID), openai.String(&i.Name), c.DecodeArguments
	err := d.Object(raw, param, fields, callUnused)
	switch {
	case err != nil:
		return err
	case i.CallID == "":
		return openai.Required(param + ".call_id")
	case i.Name == "":
		return openai.Required(param + ".name")
	case c.Arguments == nil:
		return openai.Required(param + ".arguments")
	}
	text := string(c.Arguments)
	i.Arguments = &text
	return nil
}

func (d decoder) output(i *Item, param string, raw json.RawMessage, fields map[string]openai.Field) error {
	fields["call_id"], fields["output"] = openai.String(&i.CallID), d.result(i)
	err := d.Object(raw, param, fields, outputUnused)
	switch {
	case err != nil:
		return err
	case i.CallID == "":
		return openai.Required(param + ".call_id")
	case i.Output == nil:
		return openai.Required(param + ".output")
	}
	return nil
}

// result reads a text, or a list of texts, which may be empty.
func (d decoder) result(i *Item) openai.Field {
	return func(param string, raw json.RawMessage) error {
		i.Output = new(string)
		if openai.Kind(raw) == "string" {
			return openai.String(i.Output)(param, raw)
		}
		return openai.Array(param, raw, func(at string, raw json.RawMessage) error {
			p, err := d.part(at, raw, "input_text")
			*i.Output += p.Text
			return err
		})
	}
}

// thoughts reads reasoning in the format of a response. Encrypted
// reasoning of other servers cannot be read, and a summary does not replace the
// reasoning.
func (d decoder) thoughts(i *Item, param string, raw json.RawMessage, fields map[string]openai.Field) error {
	i.Summary = []Part{}
	fields["content"] = openai.Optional(func(param string, raw json.RawMessage) error {
		return openai.Array(param, raw, func(at string, raw json.RawMessage) error {
			p := Part{}
			err := d.Object(raw, at, map[string]openai.Field{"type": openai.String(&p.Type), "text": openai.String(&p.Text)})
			if err == nil && p.Type != partThought {
				err = openai.Invalid(at+".type", "'%s.type' must be %s here, not '%s'.", at, partThought, openai.Shorten(p.Type))
			}
			i.Content = append(i.Content, p)
			return err
		})
	})
	return d.Object(raw, param, fields, thoughtUnused)
}

func (d decoder) parts(param string, raw json.RawMessage, role string) ([]Part, error) {
	want := "input_text"
	if role == openai.RoleAssistant {
		want = "output_text"
	}
	if openai.Kind(raw) == "string" {
		p := Part{Type: want}
		err := openai.String(&p.Text)(param, raw)
		if err == nil && p.Text == "" {
			err = openai.Invalid(param, "'%s' must not be empty.", param)
		}
		return []Part{p}, err
	}
	var out []Part
	err := openai.Array(param, raw, func(at string, raw json.RawMessage) error {
		p, err := d.part(at, raw, want)
		out = append(out, p)
		return err
	})
	if err == nil && len(out) == 0 {
		return nil, openai.Invalid(param, "'%s' must not be empty.", param)
	}
	return out, err
}

func (d decoder) part(param string, raw json.RawMessage, want string) (Part, error) {
	var p Part
	later := func(string, json.RawMessage) error { return nil }
	var text *string
	err := d.Object(raw, param, map[string]openai.Field{
		"type": openai.String(&p.Type),
		"text": func(param string, raw json.RawMessage) error { text = &p.Text; return openai.String(text)(param, raw) },
		// These parts are rejected by type further down, regardless of their
		// content.
		"image_url": later, "file_id": later, "detail": later, "file_data": later, "file_url": later, "filename": later, "input_audio": later, "refusal": later,
	}, partUnused)
	switch {
	case err != nil:
		return p, err
	case p.Type == "":
		return p, openai.Required(param + ".type")
	case p.Type != "input_text" && p.Type != "output_text":
		return p, openai.Unsupported(param+".type", "Content parts of type '"+openai.Shorten(p.Type)+"' are not supported; send text.")
	case p.Type != want:
		return p, openai.Invalid(param+".type", "'%s.type' must be %s here, not %s.", param, want, p.Type)
	case text == nil:
		return p, openai.Required(param + ".text")
	}
	return p, nil
}

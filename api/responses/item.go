package responses

import (
	"encoding/json"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
)

// Types of items.
const (
	ItemMessage      = "message"
	ItemCall         = "function_call"
	ItemOutput       = "function_call_output"
	ItemCustomCall   = "custom_tool_call"
	ItemCustomOutput = "custom_tool_call_output"
	ItemReasoning    = "reasoning"
	// ItemReference stands for a stored item with its id.
	ItemReference = "item_reference"
	// itemTools declares more tools; no item is left of it.
	itemTools = "additional_tools"
	// partImage is the type of content parts that are images.
	partImage = "input_image"
)

// Item is an input or output item of a response: a message, a call of a function
// or of a custom tool, the output of a call, or reasoning.
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
	// Namespace of the tool that is called; it may be empty.
	Namespace string `json:"namespace,omitempty"`
	// Arguments of a function are a JSON object, unless the call is incomplete.
	Arguments *string `json:"arguments,omitempty"`
	// Input of a custom tool is any text.
	Input  *string `json:"input,omitempty"`
	Output *string `json:"output,omitempty"`
}

// Part is a content part of an item.
type Part struct {
	Type string `json:"type"`
	Text string `json:"text"`
	// Annotations and Logprobs of an output_text are always present.
	Annotations *[]any                `json:"annotations,omitempty"`
	Logprobs    *[]openai.ChatLogprob `json:"logprobs,omitempty"`
	// ImageURL of an input_image is a data URL.
	ImageURL string `json:"image_url,omitempty"`
}

// MarshalJSON writes an input_image without a text.
func (p Part) MarshalJSON() ([]byte, error) {
	type plain Part
	if p.Type != partImage {
		return openai.Marshal(plain(p))
	}
	return openai.Marshal(map[string]string{"type": p.Type, "image_url": p.ImageURL, "detail": "auto"})
}

// Image returns the image of an input_image; ok is false for other parts.
func (p Part) Image() (m openai.Image, ok bool) {
	if p.Type != partImage {
		return m, false
	}
	return openai.FromDataURL(p.ImageURL)
}

// Text returns the text of all parts.
func (i Item) Text() string {
	var b strings.Builder
	for _, p := range i.Content {
		b.WriteString(p.Text)
	}
	return b.String()
}

// IsCall reports whether the item calls a tool, and IsOutput whether it is the
// output of one.
func (i Item) IsCall() bool { return i.Type == ItemCall || i.Type == ItemCustomCall }

// IsOutput is described with IsCall.
func (i Item) IsOutput() bool { return i.Type == ItemOutput || i.Type == ItemCustomOutput }

// logprobBytes and contentPartBytes are about the sizes of one log-probability and
// of one content part, without their texts.
const (
	logprobBytes     = 64
	contentPartBytes = 96
)

// escapedBytes is the length of a text in JSON, without its quotation marks.
func escapedBytes(text string) int {
	n := len(text)
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"', c == '\\', c == '\n', c == '\r', c == '\t':
			n++
		case c < ' ':
			n += len(`\u0000`) - 1
		case c == "\u2028"[0] && (strings.HasPrefix(text[i:], "\u2028") || strings.HasPrefix(text[i:], "\u2029")):
			n += len(`\u2028`) - len("\u2028")
		}
	}
	return n
}

// Bytes returns about the memory that the item takes as JSON, which is at least that of its
// texts and content parts.
func (i Item) Bytes() int64 {
	n := len(i.ID) + len(i.Name) + len(i.CallID) + len(i.Namespace)
	for _, p := range i.Content {
		n += contentPartBytes + escapedBytes(p.Text) + len(p.ImageURL)
		if p.Logprobs == nil {
			continue
		}
		for _, l := range *p.Logprobs {
			n += logprobBytes + 9*len(l.Token)
			for _, top := range l.TopLogprobs {
				n += logprobBytes + 9*len(top.Token)
			}
		}
	}
	for _, text := range []*string{i.Arguments, i.Input, i.Output} {
		if text != nil {
			n += escapedBytes(*text)
		}
	}
	return int64(n)
}

// prefixes are the prefixes of item ids.
var prefixes = map[string]string{ItemMessage: "msg_", ItemCall: "fc_", ItemOutput: "fco_", ItemCustomCall: "ctc_", ItemCustomOutput: "ctco_", ItemReasoning: "rs_"}

// newItem returns a completed item that the given Mac stores, if one does.
func newItem(kind, mac string) Item {
	return Item{ID: idAt(prefixes[kind], mac), Type: kind, Status: StatusCompleted}
}

func message(role string, parts ...Part) Item {
	i := newItem(ItemMessage, "")
	i.Role, i.Content = role, parts
	return i
}

// typeOf returns the type of an input item. Messages and references need none.
func typeOf(param string, raw json.RawMessage) (string, error) {
	kind, named, said := ItemMessage, false, false
	for name, value := range openai.Members(raw) {
		switch string(name) {
		case "type":
			if openai.Kind(value) != "null" {
				err := openai.String(&kind)(param+".type", value)
				return kind, err
			}
		case "id":
			named = openai.Kind(value) == "string"
		case "role", "content":
			said = true
		}
	}
	if named && !said {
		kind = ItemReference
	}
	return kind, nil
}

// item reads an input item and adds it to the request.
func (d *decoder) item(param string, raw json.RawMessage) error {
	if err := d.Part(param); err != nil {
		return err
	}
	if openai.Kind(raw) != "object" {
		return openai.WrongKind(param, "an object", raw)
	}
	kind, err := typeOf(param, raw)
	if err != nil {
		return err
	}
	item, skip := newItem(kind, ""), ""
	fields := map[string]openai.Field{"type": openai.Optional(openai.String(&skip)), "id": openai.Optional(openai.String(&skip)), "status": openai.Optional(openai.String(&skip))}
	switch kind {
	case ItemMessage:
		err = d.message(&item, param, raw, fields)
	case ItemCall, ItemCustomCall:
		err = d.call(&item, param, raw, fields)
	case ItemOutput, ItemCustomOutput:
		err = d.output(&item, param, raw, fields)
	case ItemReasoning:
		err = d.thoughts(&item, param, raw, fields)
	case ItemReference:
		err = d.reference(&item, param, raw, fields)
	case itemTools:
		return d.moreTools(param, raw, fields)
	default:
		return openai.Unsupported(param+".type", "Items of type '"+openai.Shorten(kind)+"' are not supported; send messages, calls of functions and custom tools, their outputs, reasoning, and references to these.")
	}
	d.r.Input = append(d.r.Input, item)
	return err
}

func (d *decoder) reference(i *Item, param string, raw json.RawMessage, fields map[string]openai.Field) error {
	i.ID = ""
	fields["id"] = openai.String(&i.ID)
	err := d.Object(raw, param, fields)
	if err == nil && i.ID == "" {
		return openai.Required(param + ".id")
	}
	return err
}

// moreTools reads an item that declares tools. They are available in the whole
// response.
func (d *decoder) moreTools(param string, raw json.RawMessage, fields map[string]openai.Field) error {
	skip := ""
	fields["role"], fields["tools"] = openai.Optional(openai.String(&skip)), openai.Optional(d.tools)
	return d.Object(raw, param, fields)
}

func (d *decoder) message(i *Item, param string, raw json.RawMessage, fields map[string]openai.Field) error {
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

// call reads a call of a function or of a custom tool.
func (d *decoder) call(i *Item, param string, raw json.RawMessage, fields map[string]openai.Field) error {
	fields["call_id"], fields["name"], fields["namespace"] = openai.String(&i.CallID), openai.String(&i.Name), openai.Optional(openai.String(&i.Namespace))
	what, text := "arguments", &i.Arguments
	if i.Type == ItemCustomCall {
		what, text = "input", &i.Input
	}
	fields[what] = present(text)
	if i.Type == ItemCall {
		fields[what] = i.arguments
	}
	err := d.Object(raw, param, fields, callUnused)
	switch {
	case err != nil:
		return err
	case i.CallID == "":
		return openai.Required(param + ".call_id")
	case i.Name == "":
		return openai.Required(param + ".name")
	case *text == nil:
		return openai.Required(param + "." + what)
	}
	return openai.CheckCallName(param+".name", joined(i.Namespace, i.Name))
}

// arguments reads a JSON object that is encoded as a string. A response that
// reached its token limit may end in the middle of a call, and clients send it
// back: a call with such arguments is incomplete.
func (i *Item) arguments(param string, raw json.RawMessage) error {
	var text string
	if err := openai.String(&text)(param, raw); err != nil {
		return err
	}
	switch valid := json.Valid([]byte(text)); {
	case strings.TrimSpace(text) == "":
		text = "{}"
	case !valid:
		i.Status = StatusIncomplete
	case openai.Kind(json.RawMessage(text)) != "object" && openai.Kind(json.RawMessage(text)) != "null":
		return openai.Invalid(param, "'%s' must be a JSON object encoded as a string. Omit an invalid call.", param)
	}
	i.Arguments = &text
	return nil
}

func (d *decoder) output(i *Item, param string, raw json.RawMessage, fields map[string]openai.Field) error {
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
func (d *decoder) result(i *Item) openai.Field {
	return func(param string, raw json.RawMessage) error {
		i.Output = new(string)
		if openai.Kind(raw) == "string" {
			return openai.String(i.Output)(param, raw)
		}
		var texts []string
		err := openai.Array(param, raw, func(at string, raw json.RawMessage) error {
			p, err := d.part(at, raw, "input_text", false)
			texts = append(texts, p.Text)
			return err
		})
		*i.Output = strings.Join(texts, "")
		return err
	}
}

// thoughts reads reasoning in the format of a response. Encrypted
// reasoning of other servers cannot be read, and a summary does not replace the
// reasoning.
func (d *decoder) thoughts(i *Item, param string, raw json.RawMessage, fields map[string]openai.Field) error {
	i.Summary = []Part{}
	fields["content"] = openai.Optional(func(param string, raw json.RawMessage) error {
		return openai.Array(param, raw, func(at string, raw json.RawMessage) error {
			if err := d.Part(at); err != nil {
				return err
			}
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

// parts reads the content of a message. Only that of an assistant, who may have
// only reasoned, can be empty.
func (d *decoder) parts(param string, raw json.RawMessage, role string) ([]Part, error) {
	want := "input_text"
	if role == openai.RoleAssistant {
		want = "output_text"
	}
	if openai.Kind(raw) == "string" {
		p := Part{Type: want}
		err := openai.String(&p.Text)(param, raw)
		if err == nil && p.Text == "" && role != openai.RoleAssistant {
			err = openai.Invalid(param, "'%s' must not be empty.", param)
		}
		return []Part{p}, err
	}
	out := []Part{}
	err := openai.Array(param, raw, func(at string, raw json.RawMessage) error {
		p, err := d.part(at, raw, want, role == openai.RoleUser)
		out = append(out, p)
		return err
	})
	if err == nil && len(out) == 0 && role != openai.RoleAssistant {
		return nil, openai.Invalid(param, "'%s' must not be empty.", param)
	}
	return out, err
}

// part reads a part of a message or of an output; images says whether it may be one.
func (d *decoder) part(param string, raw json.RawMessage, want string, images bool) (Part, error) {
	var p Part
	if err := d.Part(param); err != nil {
		return p, err
	}
	later := func(string, json.RawMessage) error { return nil }
	var text *string
	var image openai.Image
	err := d.Object(raw, param, map[string]openai.Field{
		"type": openai.String(&p.Type),
		"image_url": openai.Optional(func(param string, raw json.RawMessage) error {
			err := d.ImageURL(&image)(param, raw)
			p.ImageURL = image.DataURL()
			return err
		}),
		"text": func(param string, raw json.RawMessage) error { text = &p.Text; return openai.String(text)(param, raw) },
		// These parts are rejected by type further down, regardless of their
		// content.
		"file_id": later, "detail": later, "file_data": later, "file_url": later, "filename": later, "input_audio": later, "refusal": later,
	}, partUnused)
	switch {
	case err != nil:
		return p, err
	case p.Type == "":
		return p, openai.Required(param + ".type")
	case p.Type == partImage && want == "input_text" && images:
		if p.ImageURL == "" {
			return p, openai.Unsupported(param+".image_url", "An image needs a URL here; files of this API are not supported.")
		}
		return p, nil
	case p.Type != "input_text" && p.Type != "output_text":
		return p, openai.Unsupported(param+".type", "Content parts of type '"+openai.Shorten(p.Type)+"' are not supported in this place; send text, and images in messages of the user.")
	case p.Type != want:
		return p, openai.Invalid(param+".type", "'%s.type' must be %s here, not %s.", param, want, p.Type)
	case text == nil:
		return p, openai.Required(param + ".text")
	}
	return p, nil
}

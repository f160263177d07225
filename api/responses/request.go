package responses

import (
	"encoding/json"
	"math"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	maxTokensBound = math.MaxInt32
	// maxMetadata pairs, with keys and values of so many characters.
	maxMetadata, maxMetadataKey, maxMetadataValue = 16, 64, 512
)

// Request is the body of POST /v1/responses.
type Request struct {
	Model        string
	Instructions *string
	Input        []Item
	// MaxOutputTokens of the answer, where there is a limit.
	MaxOutputTokens   *int
	Temperature, TopP *float64
	Stream            bool
	// Store keeps the response; it is true unless the client says otherwise.
	Store bool
	// Previous is the response that this one goes on from; empty for none.
	Previous string
	Metadata map[string]string
	User     *string
}

// Item is one of what a response answers to: a message.
type Item struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Role    string `json:"role"`
	Status  string `json:"status"`
	Content []Part `json:"content"`
}

// Part is a piece of an item's content.
type Part struct {
	Type string `json:"type"`
	Text string `json:"text"`
	// Annotations and Logprobs are always there, and empty, in an output_text.
	Annotations *[]any `json:"annotations,omitempty"`
	Logprobs    *[]any `json:"logprobs,omitempty"`
}

// Text of all parts.
func (i Item) Text() string {
	var b strings.Builder
	for _, p := range i.Content {
		b.WriteString(p.Text)
	}
	return b.String()
}

// Decode reads a body. Its error is an *openai.Error.
func Decode(body []byte) (*Request, error) {
	if err := openai.CheckJSON(body); err != nil {
		return nil, err
	}
	r := &Request{Store: true, Metadata: map[string]string{}}
	var instructions, user string
	err := openai.Object(body, "", map[string]openai.Field{
		"model":                openai.String(&r.Model),
		"input":                r.decodeInput,
		"instructions":         openai.Optional(present(&r.Instructions, &instructions)),
		"max_output_tokens":    openai.Optional(openai.Int(&r.MaxOutputTokens, 1, maxTokensBound)),
		"temperature":          openai.Optional(openai.Float(&r.Temperature, 0, 2)),
		"top_p":                openai.Optional(openai.Float(&r.TopP, 0, 1)),
		"stream":               openai.Optional(openai.Bool(&r.Stream)),
		"store":                openai.Optional(openai.Bool(&r.Store)),
		"previous_response_id": openai.Optional(openai.String(&r.Previous)),
		"metadata":             openai.Optional(r.decodeMetadata),
		"user":                 openai.Optional(present(&r.User, &user)),

		"background":             openai.Idle("false"),
		"context_management":     openai.Idle("[]"),
		"conversation":           openai.Idle(),
		"include":                openai.Idle("[]"),
		"max_tool_calls":         openai.Idle(),
		"moderation":             openai.Idle(),
		"parallel_tool_calls":    openai.Idle("true", "false"),
		"prompt":                 openai.Idle(),
		"prompt_cache_key":       openai.Idle(),
		"prompt_cache_options":   openai.Idle(),
		"prompt_cache_retention": openai.Idle(),
		"reasoning":              openai.Idle("{}"),
		"safety_identifier":      openai.Idle(),
		"service_tier":           openai.Idle(`"auto"`, `"default"`),
		"stream_options":         openai.Idle("{}", `{"include_obfuscation":false}`),
		"text":                   openai.Idle("{}", `{"format":{"type":"text"}}`),
		"tool_choice":            openai.Idle(`"none"`, `"auto"`),
		"tools":                  openai.Idle("[]"),
		"top_logprobs":           openai.Idle("0"),
		"truncation":             openai.Idle(`"disabled"`),
	})
	switch {
	case err != nil:
		return nil, err
	case r.Model == "":
		return nil, openai.Required("model")
	case len(r.Input) == 0:
		return nil, openai.Required("input")
	}
	return r, nil
}

// present takes a string whose absence is told from an empty one.
func present(to **string, value *string) openai.Field {
	return func(param string, raw json.RawMessage) error {
		*to = value
		return openai.String(value)(param, raw)
	}
}

func (r *Request) decodeMetadata(param string, raw json.RawMessage) error {
	if openai.Kind(raw) != "object" {
		return openai.WrongKind(param, "an object", raw)
	}
	for name, value := range openai.Members(raw) {
		var text string
		if err := openai.String(&text)(param+"."+string(name), value); err != nil {
			return err
		}
		r.Metadata[string(name)] = text
		if len(r.Metadata) > maxMetadata || len(name) > maxMetadataKey || len(text) > maxMetadataValue {
			return openai.Invalid(param, "'%s' may have %d pairs, with keys of %d bytes and values of %d.", param, maxMetadata, maxMetadataKey, maxMetadataValue)
		}
	}
	return nil
}

func (r *Request) decodeInput(param string, raw json.RawMessage) error {
	switch openai.Kind(raw) {
	case "string":
		var text string
		if err := openai.String(&text)(param, raw); err != nil {
			return err
		}
		if text == "" {
			return openai.Invalid(param, "'%s' must not be empty.", param)
		}
		r.Input = []Item{message(openai.RoleUser, Part{Type: "input_text", Text: text})}
		return nil
	case "array":
		return openai.Array(param, raw, func(at string, raw json.RawMessage) error {
			item, err := decodeItem(at, raw)
			r.Input = append(r.Input, item)
			return err
		})
	}
	return openai.WrongKind(param, "a string or a list of items", raw)
}

func message(role string, parts ...Part) Item {
	return Item{ID: newItemID(), Type: "message", Role: role, Status: "completed", Content: parts}
}

func newItemID() string { return "msg_" + hex16() }

func decodeItem(param string, raw json.RawMessage) (Item, error) {
	item, kind, skip := message(""), "message", ""
	var content json.RawMessage
	if openai.Kind(raw) != "object" {
		return item, openai.WrongKind(param, "an object", raw)
	}
	for name, value := range openai.Members(raw) {
		if string(name) == "type" {
			if err := openai.String(&kind)(param+".type", value); err != nil {
				return item, err
			}
		}
	}
	if kind != "message" {
		return item, openai.Unsupported(param+".type", "Items of the type '"+openai.Shorten(kind)+"' cannot be read; send messages.")
	}
	err := openai.Object(raw, param, map[string]openai.Field{
		"type": openai.String(&skip), "id": openai.Optional(openai.String(&skip)), "status": openai.Optional(openai.String(&skip)),
		"role": openai.String(&item.Role), "content": openai.Raw(&content),
	})
	switch {
	case err != nil:
		return item, err
	case content == nil:
		return item, openai.Required(param + ".content")
	}
	switch item.Role {
	case openai.RoleSystem, openai.RoleDeveloper, openai.RoleUser, openai.RoleAssistant:
	case "":
		return item, openai.Required(param + ".role")
	default:
		return item, openai.Invalid(param+".role", "'%s.role' must be one of system, developer, user, assistant, not '%s'.", param, openai.Shorten(item.Role))
	}
	item.Content, err = decodeParts(param+".content", content, item.Role)
	return item, err
}

func decodeParts(param string, raw json.RawMessage, role string) ([]Part, error) {
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
		p, err := decodePart(at, raw, want)
		out = append(out, p)
		return err
	})
	if err == nil && len(out) == 0 {
		return nil, openai.Invalid(param, "'%s' must not be empty.", param)
	}
	return out, err
}

func decodePart(param string, raw json.RawMessage, want string) (Part, error) {
	var p Part
	later := func(string, json.RawMessage) error { return nil }
	var text *string
	err := openai.Object(raw, param, map[string]openai.Field{
		"type": openai.String(&p.Type),
		"text": func(param string, raw json.RawMessage) error { text = &p.Text; return openai.String(text)(param, raw) },
		// What an answer's part holds when a client sends it back whole.
		"annotations": openai.Idle("[]"), "logprobs": openai.Idle("[]"),
		// These parts are refused by type below, whatever they hold.
		"image_url": later, "file_id": later, "detail": later, "file_data": later, "file_url": later, "filename": later, "input_audio": later, "refusal": later,
	})
	switch {
	case err != nil:
		return p, err
	case p.Type == "":
		return p, openai.Required(param + ".type")
	case p.Type != "input_text" && p.Type != "output_text":
		return p, openai.Unsupported(param+".type", "Parts of the type '"+openai.Shorten(p.Type)+"' cannot be read; send text.")
	case p.Type != want:
		return p, openai.Invalid(param+".type", "'%s.type' must be %s here, not %s.", param, want, p.Type)
	case text == nil:
		return p, openai.Required(param + ".text")
	}
	return p, nil
}

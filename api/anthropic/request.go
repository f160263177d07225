package anthropic

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	// maxTokensBound keeps limits within the integer range of every back end.
	maxTokensBound = math.MaxInt32
	// maxStops is the maximum number of stop sequences that an engine supports.
	maxStops = 16
)

// Types of content blocks.
const (
	BlockText       = "text"
	BlockImage      = "image"
	BlockThinking   = "thinking"
	BlockToolUse    = "tool_use"
	BlockToolResult = "tool_result"
)

// Request is the body of POST /v1/messages, and of .../count_tokens, which has
// no MaxTokens.
type Request struct {
	Model     string
	MaxTokens int
	// System is the system prompt without Attribution; both may be empty.
	System string
	// Attribution is the block by which Claude Code identifies the client to Anthropic. It
	// is at the head of the system prompt and differs between sessions.
	Attribution string
	Messages    []Message
	// Stop sequences end the text.
	Stop              []string
	Stream            bool
	Temperature, TopP *float64
	TopK              *int
	// Use is the choice of tools.
	Use openai.ToolUse
	// Thinking enables or disables thinking, if the model supports it; nil means that
	// the request does not set it. Effort is how much the model is to think, empty
	// for its default.
	Thinking *bool
	Effort   string
	// Constraint restricts the form of the response; nil means no restriction.
	Constraint *openai.Constraint
}

// Thinks reports whether the response has thinking: only a request that enables it
// gets any.
func (r *Request) Thinks() bool { return r.Thinking != nil && *r.Thinking }

// Message is one turn.
type Message struct {
	// Role is user or assistant, or system for instructions between them.
	Role   string
	Blocks []Block
}

// Block is one content block of a message. Its type determines which fields are
// set.
type Block struct {
	Type string
	// Text is the text of a text block, a thinking block or a tool result.
	Text string
	// ID identifies a tool use, and its result refers to it; Name and Input (a
	// JSON object) are those of the tool.
	ID, Name string
	Input    json.RawMessage
	// Image of an image block.
	Image *openai.Image
	// Failed marks a tool result as an error.
	Failed bool
}

// decoder fills a Request.
type decoder struct {
	*openai.Decoder
	r *Request
	// counts is set for requests that only count tokens.
	counts bool
}

// Decode reads the body of POST /v1/messages. It returns an *openai.Error.
func Decode(d *openai.Decoder, body []byte) (*Request, error) {
	return decoder{d, &Request{}, false}.decode(body)
}

// DecodeCount reads the body of POST /v1/messages/count_tokens. It returns an
// *openai.Error.
func DecodeCount(d *openai.Decoder, body []byte) (*Request, error) {
	return decoder{d, &Request{}, true}.decode(body)
}

func (d decoder) decode(body []byte) (*Request, error) {
	if err := openai.CheckJSON(body); err != nil {
		return nil, err
	}
	r, route := d.r, countUnused
	fields := map[string]openai.Field{
		"model":       openai.String(&r.Model),
		"messages":    d.messages,
		"system":      openai.Optional(d.system),
		"tools":       openai.Optional(d.tools),
		"tool_choice": openai.Optional(d.choice),
		"thinking":    openai.Optional(d.thinking),
		"thread":      openai.Optional(noThreads),

		"output_config": openai.Optional(d.outputConfig),
		"output_format": openai.Optional(d.outputFormat),
	}
	if !d.counts {
		maps.Copy(fields, d.settings())
		route = messageUnused
	}
	if err := d.Object(body, "", fields, route, promptUnused); err != nil {
		return nil, err
	}
	switch {
	case r.Model == "":
		return nil, openai.Required("model")
	case len(r.Messages) == 0:
		return nil, openai.Required("messages")
	case r.MaxTokens == 0 && !d.counts:
		return nil, openai.Required("max_tokens")
	}
	return r, r.Use.Check()
}

// settings returns the fields of a request that generates a response.
func (d decoder) settings() map[string]openai.Field {
	r := d.r
	return map[string]openai.Field{
		"max_tokens":     maxTokens(&r.MaxTokens),
		"stop_sequences": openai.Optional(r.decodeStops),
		"stream":         openai.Optional(openai.Bool(&r.Stream)),
		"temperature":    openai.Optional(openai.Float(&r.Temperature, 0, 1)),
		"top_p":          openai.Optional(openai.Float(&r.TopP, 0, 1)),
		"top_k":          openai.Optional(openai.Int(&r.TopK, 0, math.MaxInt32)),
	}
}

func maxTokens(to *int) openai.Field {
	return func(param string, raw json.RawMessage) error {
		var n *int
		if err := openai.Int(&n, 1, maxTokensBound)(param, raw); err != nil {
			return err
		}
		*to = *n
		return nil
	}
}

func (r *Request) decodeStops(param string, raw json.RawMessage) error {
	return openai.Array(param, raw, func(at string, raw json.RawMessage) error {
		var s string
		if err := openai.String(&s)(at, raw); err != nil {
			return err
		}
		if s == "" {
			return openai.Invalid(at, "'%s' must not be an empty string, which would stop the output at once.", at)
		}
		if len(r.Stop) == maxStops {
			return openai.Invalid(param, "'%s' must have at most %d strings.", param, maxStops)
		}
		r.Stop = append(r.Stop, s)
		return nil
	})
}

// system accepts a string or text blocks, which it joins with an empty
// line.
func (d decoder) system(param string, raw json.RawMessage) error {
	blocks, err := d.content(param, raw, openai.RoleSystem)
	if err != nil {
		return err
	}
	if len(blocks) > 0 {
		d.r.Attribution, blocks[0].Text = CutAttribution(blocks[0].Text)
		if blocks[0].Text == "" {
			blocks = blocks[1:]
		}
	}
	d.r.System = joined(blocks, "\n\n")
	return nil
}

// AttributionPrefix is the beginning of the attribution block.
const AttributionPrefix = "x-anthropic-billing-header:"

// CutAttribution separates the attribution block from the head of a system prompt.
// It is the first line, if that line begins with x-anthropic-billing-header.
func CutAttribution(system string) (attribution, rest string) {
	if !strings.HasPrefix(system, AttributionPrefix) {
		return "", system
	}
	attribution, rest, _ = strings.Cut(system, "\n")
	return attribution, strings.TrimLeft(rest, "\n")
}

// noThreads refuses conversations that the server continues. The details have
// the official clients send the whole conversation instead.
func noThreads(param string, _ json.RawMessage) error {
	e := openai.Unsupported(param, "Send the whole conversation in 'messages'.")
	e.Details = json.RawMessage(`{"error_code":"thread_unsupported_request","unsupported":["thread"]}`)
	return e
}

// outputConfig reads the format of the response.
func (d decoder) outputConfig(param string, raw json.RawMessage) error {
	return d.Object(raw, param, map[string]openai.Field{
		"effort": openai.Optional(openai.Effort(&d.r.Effort)),
		"format": openai.Optional(d.outputFormat),
	}, outputUnused)
}

// outputFormat reads a JSON schema that the response has to match.
func (d decoder) outputFormat(param string, raw json.RawMessage) error {
	var form string
	var schema json.RawMessage
	err := d.Object(raw, param, map[string]openai.Field{"type": openai.String(&form), "schema": openai.Raw(&schema), "name": openai.Optional(openai.String(new(string)))})
	switch {
	case err != nil:
		return err
	case form != "json_schema":
		return openai.Invalid(param+".type", "'%s.type' must be json_schema, not '%s'.", param, openai.Shorten(form))
	case schema == nil:
		return openai.Required(param + ".schema")
	case d.r.Constraint != nil:
		return openai.Invalid(param, "'%s' and '%s' both constrain the form of the response. Send only one of them.", strings.TrimSuffix(d.r.Constraint.Param, ".schema"), param)
	}
	c, err := openai.SchemaConstraint(param+".schema", schema)
	d.r.Constraint = &c
	return err
}

func joined(blocks []Block, between string) string {
	var texts []string
	for _, b := range blocks {
		texts = append(texts, b.Text)
	}
	return strings.Join(texts, between)
}

func (d decoder) messages(param string, raw json.RawMessage) error {
	return openai.Array(param, raw, func(at string, raw json.RawMessage) error {
		if err := d.Part(at); err != nil {
			return err
		}
		var m Message
		var content json.RawMessage
		err := d.Object(raw, at, map[string]openai.Field{"role": openai.String(&m.Role), "content": openai.Raw(&content)}, turnUnused)
		switch {
		case err != nil:
			return err
		case m.Role != openai.RoleUser && m.Role != openai.RoleAssistant && m.Role != openai.RoleSystem:
			return openai.Invalid(at+".role", "'%s.role' must be user, assistant or system, not '%s'.", at, openai.Shorten(m.Role))
		case content == nil:
			return openai.Required(at + ".content")
		}
		m.Blocks, err = d.content(at+".content", content, m.Role)
		if err == nil && len(m.Blocks) == 0 && m.Role != openai.RoleAssistant { // a limit may end a response before its first block
			return openai.Invalid(at+".content", "'%s.content' must not be empty.", at)
		}
		d.r.Messages = append(d.r.Messages, m)
		return err
	})
}

// content accepts a string or a list of blocks that the role allows.
func (d decoder) content(param string, raw json.RawMessage, role string) ([]Block, error) {
	if openai.Kind(raw) == "string" {
		b := Block{Type: BlockText}
		if err := openai.String(&b.Text)(param, raw); err != nil || b.Text == "" {
			return nil, err
		}
		return []Block{b}, nil
	}
	if openai.Kind(raw) != "array" {
		return nil, openai.WrongKind(param, "a string or a list of blocks", raw)
	}
	var out []Block
	err := openai.Array(param, raw, func(at string, raw json.RawMessage) error {
		b, err := d.block(at, raw, role)
		if b.Type == blockRedacted && err == nil {
			return d.LeaveOut(at, b.Type, raw)
		}
		out = append(out, b)
		return err
	})
	return out, err
}

// blockRedacted is thinking that only the server that wrote it can read.
const blockRedacted = "redacted_thinking"

// blocksOf are the types of blocks that each role allows.
var blocksOf = map[string][]string{
	openai.RoleSystem:    {BlockText},
	openai.RoleUser:      {BlockText, BlockImage, BlockToolResult},
	openai.RoleAssistant: {BlockText, BlockThinking, BlockToolUse},
	BlockToolResult:      {BlockText},
}

// block reads a block by its type.
func (d decoder) block(param string, raw json.RawMessage, role string) (Block, error) {
	var b Block
	if err := d.Part(param); err != nil {
		return b, err
	}
	if openai.Kind(raw) != "object" {
		return b, openai.WrongKind(param, "an object", raw)
	}
	for name, value := range openai.Members(raw) {
		if string(name) == "type" {
			if err := openai.String(&b.Type)(param+".type", value); err != nil {
				return b, err
			}
		}
	}
	if b.Type == "" {
		return b, openai.Required(param + ".type")
	}
	if b.Type == blockRedacted && role == openai.RoleAssistant && !d.Strict {
		return b, nil // left out
	}
	if !slices.Contains(blocksOf[role], b.Type) {
		return b, openai.Unsupported(param+".type", fmt.Sprintf("Content blocks of type '%s' are not supported in this place; supported types: %s.",
			openai.Shorten(b.Type), strings.Join(blocksOf[role], ", ")))
	}
	return b, d.members(&b, param, raw)
}

// members reads the members of a block.
func (d decoder) members(b *Block, param string, raw json.RawMessage) error {
	var skip string
	fields := map[string]openai.Field{"type": openai.String(&skip)}
	own := blockUnused[b.Type]
	need := map[string]*string{}
	switch b.Type {
	case BlockText:
		fields["text"] = openai.String(&b.Text)
		need["text"] = &b.Text
	case BlockImage:
		b.Image = new(openai.Image)
		fields["source"] = d.source(b.Image)
	case BlockThinking:
		// Anthropic uses the signature to detect a modified text.
		fields["thinking"], fields["signature"] = openai.String(&b.Text), openai.String(&skip)
	case BlockToolUse:
		fields["id"], fields["name"], fields["input"] = openai.String(&b.ID), openai.String(&b.Name), b.decodeInput
		need["id"], need["name"] = &b.ID, &b.Name
	case BlockToolResult:
		fields["tool_use_id"], fields["content"] = openai.String(&b.ID), openai.Optional(d.result(b))
		fields["is_error"] = openai.Optional(openai.Bool(&b.Failed))
		need["tool_use_id"] = &b.ID
	}
	if err := d.Object(raw, param, fields, own, blockCache); err != nil {
		return err
	}
	for _, name := range []string{"text", "id", "name", "tool_use_id"} {
		if value, ok := need[name]; ok && *value == "" {
			return openai.Required(param + "." + name)
		}
	}
	if err := openai.CheckCallName(param+".name", b.Name); err != nil {
		return err
	}
	if b.Type == BlockImage && b.Image.Param == "" {
		return openai.Required(param + ".source")
	}
	if b.Type == BlockToolUse && b.Input == nil {
		return openai.Required(param + ".input")
	}
	return nil
}

// source reads the source of an image.
func (d decoder) source(to *openai.Image) openai.Field {
	return func(param string, raw json.RawMessage) error {
		var kind, skip string
		data, url := new(openai.Image), new(openai.Image)
		err := d.Object(raw, param, map[string]openai.Field{
			"type": openai.String(&kind), "media_type": openai.String(&skip), "data": openai.ImageData(data), "url": d.ImageURL(url), "file_id": openai.String(&skip),
		})
		switch {
		case err != nil:
			return err
		case kind == "base64" && data.Param == "":
			return openai.Required(param + ".data")
		case kind == "base64":
			*to = *data
		case kind == "url" && url.Param == "":
			return openai.Required(param + ".url")
		case kind == "url":
			*to = *url
		case kind == "":
			return openai.Required(param + ".type")
		default:
			return openai.Unsupported(param+".type", fmt.Sprintf("Images with a source of type '%s' are not supported; supported types: base64, url.", openai.Shorten(kind)))
		}
		return nil
	}
}

func (b *Block) decodeInput(param string, raw json.RawMessage) error {
	if openai.Kind(raw) != "object" {
		return openai.WrongKind(param, "an object", raw)
	}
	b.Input = raw
	return nil
}

func (d decoder) result(b *Block) openai.Field {
	return func(param string, raw json.RawMessage) error {
		blocks, err := d.content(param, raw, BlockToolResult)
		b.Text = joined(blocks, "\n")
		return err
	}
}

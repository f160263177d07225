package responses

import (
	"encoding/json"
	"math"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	maxTokensBound = math.MaxInt32
	// Maximum number of metadata pairs, and maximum number of characters of their
	// keys and values.
	maxMetadata, maxMetadataKey, maxMetadataValue = 16, 64, 512
)

// Request is the body of POST /v1/responses.
type Request struct {
	Model        string
	Instructions *string
	Input        []Item
	// MaxOutputTokens is the maximum number of tokens to generate; nil means no
	// limit.
	MaxOutputTokens   *int
	Temperature, TopP *float64
	Stream            bool
	// Store keeps the response for later requests. Default: true.
	Store bool
	// Previous is the id of the response that this one continues; it may be
	// empty.
	Previous string
	Metadata map[string]string
	User     *string
	// Use is the choice of tools; Effort is the reasoning effort, empty for the
	// model's default.
	Use    openai.ToolUse
	Effort string
}

// Decode reads a request body. It returns an *openai.Error.
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
		"tools":                openai.Optional(r.decodeTools),
		"tool_choice":          openai.Optional(r.decodeChoice),
		"parallel_tool_calls":  openai.Optional(r.Use.Parallel),
		"reasoning":            openai.Optional(r.decodeReasoning),

		"background":             openai.Idle("false"),
		"context_management":     openai.Idle("[]"),
		"conversation":           openai.Idle(),
		"include":                openai.Idle("[]"),
		"max_tool_calls":         openai.Idle(),
		"moderation":             openai.Idle(),
		"prompt":                 openai.Idle(),
		"prompt_cache_key":       openai.Idle(),
		"prompt_cache_options":   openai.Idle(),
		"prompt_cache_retention": openai.Idle(),
		"safety_identifier":      openai.Idle(),
		"service_tier":           openai.Idle(`"auto"`, `"default"`),
		"stream_options":         openai.Idle("{}", `{"include_obfuscation":false}`),
		"text":                   openai.Idle("{}", `{"format":{"type":"text"}}`),
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
	return r, r.Use.Check()
}

// present accepts a string and distinguishes an absent one from an empty one.
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
		if _, twice := r.Metadata[string(name)]; twice {
			at := openai.Shorten(param + "." + string(name))
			return openai.Invalid(at, "The parameter '%s' appears twice.", at)
		}
		r.Metadata[string(name)] = text
		if len(r.Metadata) > maxMetadata || utf8.RuneCount(name) > maxMetadataKey || utf8.RuneCountInString(text) > maxMetadataValue {
			return openai.Invalid(param, "'%s' must have at most %d pairs, with keys of at most %d characters and values of at most %d characters.", param, maxMetadata, maxMetadataKey, maxMetadataValue)
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

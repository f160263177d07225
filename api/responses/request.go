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
	// CacheKey names the conversation, as in chat completions.
	CacheKey string
}

// decoder fills a Request.
type decoder struct {
	*openai.Decoder
	r *Request
}

// Decode reads a request body. It returns an *openai.Error.
func Decode(d *openai.Decoder, body []byte) (*Request, error) {
	if err := openai.CheckJSON(body); err != nil {
		return nil, err
	}
	r := &Request{Store: true, Metadata: map[string]string{}}
	err := d.Object(body, "", decoder{d, r}.fields(), requestUnused)
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

func (d decoder) fields() map[string]openai.Field {
	r := d.r
	return map[string]openai.Field{
		"model":                openai.String(&r.Model),
		"input":                d.input,
		"instructions":         openai.Optional(present(&r.Instructions)),
		"max_output_tokens":    openai.Optional(openai.Int(&r.MaxOutputTokens, 1, maxTokensBound)),
		"temperature":          openai.Optional(openai.Float(&r.Temperature, 0, 2)),
		"top_p":                openai.Optional(openai.Float(&r.TopP, 0, 1)),
		"stream":               openai.Optional(openai.Bool(&r.Stream)),
		"store":                openai.Optional(openai.Bool(&r.Store)),
		"prompt_cache_key":     openai.Optional(openai.String(&r.CacheKey)),
		"previous_response_id": openai.Optional(openai.String(&r.Previous)),
		"metadata":             openai.Optional(r.decodeMetadata),
		"user":                 openai.Optional(present(&r.User)),
		"tools":                openai.Optional(d.tools),
		"tool_choice":          openai.Optional(d.choice),
		"parallel_tool_calls":  openai.Optional(r.Use.Parallel),
		"reasoning":            openai.Optional(d.reasoning),
		"stream_options":       openai.Optional(d.streamOptions),
		"text":                 openai.Optional(d.text),
		"include":              openai.Optional(d.include),
	}
}

// present accepts a string and distinguishes an absent one from an empty one.
func present(to **string) openai.Field {
	return func(param string, raw json.RawMessage) error {
		*to = new(string)
		return openai.String(*to)(param, raw)
	}
}

// streamOptions reads options, none of which has an effect.
func (d decoder) streamOptions(param string, raw json.RawMessage) error {
	return d.Object(raw, param, nil, streamUnused)
}

// text reads the form of the output.
func (d decoder) text(param string, raw json.RawMessage) error {
	return d.Object(raw, param, nil, textUnused)
}

// include reads what else the response shall contain. Most of it concerns tools
// of OpenAI's servers and encrypted reasoning, which there are none of here.
func (d decoder) include(param string, raw json.RawMessage) error {
	if d.Strict {
		return openai.Only("[]")(param, raw)
	}
	return openai.Array(param, raw, func(at string, raw json.RawMessage) error {
		var what string
		if err := openai.String(&what)(at, raw); err != nil {
			return err
		}
		if what == "message.output_text.logprobs" {
			return openai.Unsupported(at, "Log-probabilities are not available on this route. Omit it.")
		}
		d.Ignore(param)
		return nil
	})
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

func (d decoder) input(param string, raw json.RawMessage) error {
	r := d.r
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
			item, err := d.item(at, raw)
			r.Input = append(r.Input, item)
			return err
		})
	}
	return openai.WrongKind(param, "a string or a list of items", raw)
}

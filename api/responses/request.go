package responses

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	maxTokensBound = math.MaxInt32
	// maxTopLogprobs is the maximum of top_logprobs.
	maxTopLogprobs = 20
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
	MaxOutputTokens *int
	// Sampling has the parameters of the sampler, and the constraint on the form of
	// the text; its other fields are unused.
	Sampling openai.Parameters
	Stream   bool
	// Store keeps the response for later requests. Default: true.
	Store bool
	// Background has the response continue after its client has left. It is stored.
	Background bool
	// Previous is the id of the response that this one continues; it may be
	// empty.
	Previous string
	Metadata map[string]string
	User     *string
	// Logprobs includes log-probabilities in the text, with those of TopLogprobs
	// alternatives.
	Logprobs    bool
	TopLogprobs int
	// Truncate drops the beginning of a conversation that exceeds the context
	// length.
	Truncate bool
	// Use is the choice among the tools that are shown to the model: each of them is
	// a function. Names has what each function is called in the response.
	Use   openai.ToolUse
	Names map[string]ToolName
	// Effort is the reasoning effort, empty for the model's default.
	Effort string
	// CacheKey names the conversation, as in chat completions.
	CacheKey string
	// CacheSalt separates cached prompts within a tenant, as in chat completions.
	CacheSalt string

	// Tools, Choice and Format are as the response shows them.
	Tools  []DeclaredTool
	Choice any
	Format any
	// MaxToolCalls and SafetyID are shown as well, and have no effect.
	MaxToolCalls *int    `json:"-"`
	SafetyID     *string `json:"-"`
}

// decoder fills a Request.
type decoder struct {
	*openai.Decoder
	r *Request
	// declared counts the tools, those that are left out too.
	declared int
	// known are the tools that have names, by namespace and name; next is the suffix at which
	// the search for a free one continues, by the beginning of the names.
	known map[[2]string]bool
	next  map[string]int
	// choice is the choice among the tools, rawChoice as the request has it.
	choice    choice
	rawChoice json.RawMessage
	// given is set by an input that is not empty.
	given bool
}

// Decode reads a request body. It returns an *openai.Error.
func Decode(d *openai.Decoder, body []byte) (*Request, error) {
	return decode(d, body, true)
}

// DecodeCount reads the body of POST /v1/responses/input_tokens: the fields are
// those of a request for a response, and input may be absent.
func DecodeCount(d *openai.Decoder, body []byte) (*Request, error) {
	return decode(d, body, false)
}

// maxSettings is the maximum size of what DecodeSettings reads: each stream that
// waits holds it, decoded and in events.
const maxSettings = 96 << 10

// DecodeSettings reads the fields of a request that its response shows: all but the
// input, which takes many times its bytes when it is decoded, and of which only the
// type is checked. The body must be valid JSON. A request that shows very much is an
// error, and so is one for which reserve returns one: it is called with the size of
// these fields, in bytes, before they are decoded.
func DecodeSettings(body []byte, reserve func(bytes int) error) (*Request, error) {
	rest, given := []byte{'{'}, false
	for name, value := range openai.Members(body) {
		if string(name) == "input" {
			kind := openai.Kind(value)
			given = kind == "string" || kind == "array"
			continue
		}
		if len(rest)+len(name)+len(value) > maxSettings {
			return nil, openai.Invalid("", "The request has more than %d bytes besides its input.", maxSettings)
		}
		key, err := json.Marshal(string(name))
		if err != nil {
			return nil, err
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(append(rest, key...), ':'), value...)
	}
	if !given {
		return nil, openai.Required("input")
	}
	if err := reserve(len(rest)); err != nil {
		return nil, err
	}
	return DecodeCount(&openai.Decoder{}, append(rest, '}'))
}

func decode(d *openai.Decoder, body []byte, needsInput bool) (*Request, error) {
	if err := openai.CheckJSON(body); err != nil {
		return nil, err
	}
	r := &Request{Store: true, Metadata: map[string]string{}, Tools: []DeclaredTool{}, Format: plainFormat{"text"}}
	to := &decoder{Decoder: d, r: r}
	if err := d.Object(body, "", to.fields(), requestUnused); err != nil {
		return nil, err
	}
	switch {
	case r.Model == "":
		return nil, openai.Required("model")
	case needsInput && !to.given:
		return nil, openai.Required("input")
	case r.Background && !r.Store:
		return nil, openai.Invalid("background", "background can only be used when `store` is true: a response that is not stored cannot be retrieved.")
	}
	if err := to.decodeChoice(); err != nil {
		return nil, err
	}
	r.labels(body)
	return r, to.offer()
}

// labels reads the fields that a response shows although they have no effect.
func (r *Request) labels(body []byte) {
	for name, value := range openai.Members(body) {
		switch string(name) {
		case "max_tool_calls":
			r.MaxToolCalls = orNil[int](value)
		case "safety_identifier":
			r.SafetyID = orNil[string](value)
		}
	}
}

// orNil returns nil for a value of another type: the field is ignored with any.
func orNil[T any](raw json.RawMessage) *T {
	var v *T
	if json.Unmarshal(raw, &v) != nil {
		return nil
	}
	return v
}

// samplingFields are the fields that a request shares with chat completions. Most
// of them belong to other servers' version of the API.
var samplingFields = []string{"temperature", "top_p", "presence_penalty", "frequency_penalty", "top_k", "min_p", "seed", "stop", "priority", "logit_bias",
	"repetition_penalty", "repeat_penalty", "min_tokens", "ignore_eos", "stop_token_ids"}

func (d *decoder) fields() map[string]openai.Field {
	r := d.r
	fields := r.Sampling.Fields(d.Decoder, samplingFields...)
	maps.Copy(fields, map[string]openai.Field{
		"model":                openai.String(&r.Model),
		"input":                openai.Optional(d.input),
		"instructions":         openai.Optional(present(&r.Instructions)),
		"max_output_tokens":    openai.Optional(openai.Int(&r.MaxOutputTokens, 1, maxTokensBound)),
		"stream":               openai.Optional(openai.Bool(&r.Stream)),
		"store":                openai.Optional(openai.Bool(&r.Store)),
		"background":           openai.Optional(openai.Bool(&r.Background)),
		"prompt_cache_key":     openai.Optional(openai.String(&r.CacheKey)),
		"cache_salt":           openai.Optional(openai.Salt(&r.CacheSalt)),
		"previous_response_id": openai.Optional(openai.String(&r.Previous)),
		"metadata":             openai.Optional(r.decodeMetadata),
		"user":                 openai.Optional(present(&r.User)),
		"tools":                openai.Optional(d.tools),
		"tool_choice":          openai.Optional(openai.Raw(&d.rawChoice)),
		"parallel_tool_calls":  openai.Optional(r.Use.Parallel),
		"reasoning":            openai.Optional(d.reasoning),
		"stream_options":       openai.Optional(d.streamOptions),
		"text":                 openai.Optional(d.text),
		"include":              openai.Optional(d.include),
		"top_logprobs":         openai.Optional(d.topLogprobs),
		"truncation":           openai.Optional(d.truncation),
	})
	return fields
}

// present accepts a string and distinguishes an absent one from an empty one.
func present(to **string) openai.Field {
	return func(param string, raw json.RawMessage) error {
		*to = new(string)
		return openai.String(*to)(param, raw)
	}
}

// streamOptions reads options, none of which has an effect.
func (d *decoder) streamOptions(param string, raw json.RawMessage) error {
	return d.Object(raw, param, nil, streamUnused)
}

// text reads the form of the output.
func (d *decoder) text(param string, raw json.RawMessage) error {
	return d.Object(raw, param, map[string]openai.Field{"format": openai.Optional(d.format)}, textUnused)
}

// plainFormat and schemaFormat are forms of the text, as a response shows them.
type plainFormat struct {
	Type string `json:"type"`
}

type schemaFormat struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Schema      json.RawMessage `json:"schema"`
	Strict      bool            `json:"strict"`
}

// format reads the form of the text. A schema is enforced whether or not it is
// strict.
func (d *decoder) format(param string, raw json.RawMessage) error {
	f := schemaFormat{}
	constrain := d.r.Sampling.Constrain
	err := d.Object(raw, param, map[string]openai.Field{
		"type":        openai.String(&f.Type),
		"name":        openai.Optional(openai.String(&f.Name)),
		"description": openai.Optional(present(&f.Description)),
		"schema":      openai.Raw(&f.Schema),
		"strict":      openai.Optional(openai.Bool(&f.Strict)),
	})
	switch {
	case err != nil:
		return err
	case f.Type == "":
		return openai.Required(param + ".type")
	case f.Type == "text", f.Type == "json_object":
		d.r.Format = plainFormat{f.Type}
		if f.Schema != nil {
			return openai.Invalid(param+".schema", "'%s' is only allowed when '%s' is json_schema.", param+".schema", param+".type")
		}
		if f.Type == "text" {
			return nil
		}
		return constrain(openai.Constraint{Kind: openai.ConstraintObject, Param: param})
	case f.Type != "json_schema":
		return openai.Invalid(param+".type", "'%s' must be one of text, json_object, json_schema, not '%s'.", param+".type", openai.Shorten(f.Type))
	case f.Schema == nil:
		return openai.Required(param + ".schema")
	}
	if kind := openai.Kind(f.Schema); kind != "object" && kind != "boolean" {
		return openai.WrongKind(param+".schema", "a JSON schema", f.Schema)
	}
	schema, err := openai.Compact(f.Schema)
	if err != nil {
		return err
	}
	f.Schema = schema
	d.r.Format = f
	return constrain(openai.Constraint{Kind: openai.ConstraintSchema, Text: string(schema), Param: param + ".schema"})
}

// includeLogprobs requests log-probabilities of the output.
const includeLogprobs = "message.output_text.logprobs"

// include reads what else the response shall contain. Apart from
// log-probabilities, this concerns tools of OpenAI's servers and encrypted
// reasoning, which there are none of here.
func (d *decoder) include(param string, raw json.RawMessage) error {
	return openai.Array(param, raw, func(at string, raw json.RawMessage) error {
		var what string
		err := cmp.Or(d.Part(at), openai.String(&what)(at, raw))
		switch {
		case err != nil:
			return err
		case what == includeLogprobs:
			d.r.Logprobs = true
		case d.Strict:
			return openai.Unsupported(at, "Omit it.")
		default:
			d.Ignore(param)
		}
		return nil
	})
}

func (d *decoder) topLogprobs(param string, raw json.RawMessage) error {
	var n *int
	if err := openai.Int(&n, 0, maxTopLogprobs)(param, raw); err != nil {
		return err
	}
	d.r.TopLogprobs = *n
	return nil
}

func (d *decoder) truncation(param string, raw json.RawMessage) error {
	var how string
	if err := openai.String(&how)(param, raw); err != nil {
		return err
	}
	switch how {
	case truncateAuto:
		d.r.Truncate = true
	case truncateDisabled:
	default:
		return openai.Invalid(param, "'%s' must be auto or disabled, not '%s'.", param, openai.Shorten(how))
	}
	return nil
}

// Values of truncation.
const (
	truncateAuto     = "auto"
	truncateDisabled = "disabled"
)

// reasoning reads the reasoning effort. Reasoning is returned unchanged, without
// a summary.
func (d *decoder) reasoning(param string, raw json.RawMessage) error {
	return d.Object(raw, param, map[string]openai.Field{"effort": openai.Optional(openai.Effort(&d.r.Effort))}, reasoningUnused)
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

func (d *decoder) input(param string, raw json.RawMessage) error {
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
		d.given = true
		r.Input = []Item{message(openai.RoleUser, Part{Type: "input_text", Text: text})}
		return nil
	case "array":
		err := openai.Array(param, raw, func(param string, raw json.RawMessage) error {
			d.given = true
			return d.item(param, raw)
		})
		if err == nil && !d.given {
			return openai.Invalid(param, "'%s' must not be empty.", param)
		}
		return err
	}
	return openai.WrongKind(param, "a string or a list of items", raw)
}

// Identify gives the items of the input ids that name the Mac that stores them.
func (r *Request) Identify(mac string) {
	for i := range r.Input {
		if r.Input[i].Type != ItemReference {
			r.Input[i].ID = idAt(prefixes[r.Input[i].Type], mac)
		}
	}
}

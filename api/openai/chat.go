package openai

import (
	"encoding/json"
	"maps"
	"math"
)

// maxTokensBound keeps limits within the integer range of every back end.
const maxTokensBound = math.MaxInt32

// MostPriority is the maximum absolute value of a priority.
const MostPriority = 1000

// maxChoices is the maximum number of choices for a request, as in OpenAI's
// API.
const maxChoices = 128

// maxStops is the maximum number of stop strings, maxStopTokens of stop tokens.
const (
	maxStops      = 4
	maxStopTokens = 128
)

// minRepetition and maxRepetition bound the repetition penalty; 1 has no effect.
const (
	minRepetition = 0.01
	maxRepetition = 100
)

// Chat reads the body of POST /v1/chat/completions. It returns an *Error.
func (d *Decoder) Chat(body []byte) (*ChatRequest, error) {
	if err := checkJSON(body); err != nil {
		return nil, err
	}
	r := new(ChatRequest)
	fields := r.fields(d)
	maps.Copy(fields, r.constraintFields(d))
	maps.Copy(fields, r.toolFields(d))
	maps.Copy(fields, r.reasoningFields(d))
	maps.Copy(fields, map[string]field{
		"messages":              r.messages(d),
		"max_completion_tokens": optional(intInto(&r.MaxCompletionTokens, 1, maxTokensBound)),
		"logprobs":              optional(boolInto(&r.Logprobs)),
		"top_logprobs":          optional(intInto(&r.TopLogprobs, 0, maxTopLogprobs)),
		"response_format":       optional(r.responseFormat(d)),
	})
	if err := d.Object(body, "", fields, chatUnused, textUnused); err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *ChatRequest) check() error {
	if err := r.Parameters.check(); err != nil {
		return err
	}
	if len(r.Messages) == 0 {
		return required("messages")
	}
	if err := r.checkLogprobs(); err != nil {
		return err
	}
	if err := r.ToolUse.Check(); err != nil {
		return err
	}
	if err := checkResults(r.Messages); err != nil {
		return err
	}
	a, b := r.MaxTokens, r.MaxCompletionTokens
	if a != nil && b != nil && *a != *b {
		return Invalid("max_tokens", "'max_tokens' (%d) and 'max_completion_tokens' (%d) set the same limit. Send only one of them.", *a, *b)
	}
	return nil
}

// fields returns the parameters that both text routes share.
func (p *Parameters) fields(d *Decoder) map[string]field {
	return map[string]field{
		"model":          stringInto(&p.Model),
		"max_tokens":     optional(intInto(&p.MaxTokens, 1, maxTokensBound)),
		"temperature":    optional(floatInto(&p.Temperature, 0, 2)),
		"top_p":          optional(floatInto(&p.TopP, 0, 1)),
		"top_k":          optional(intInto(&p.TopK, -1, math.MaxInt32)),
		"min_p":          optional(floatInto(&p.MinP, 0, 1)),
		"seed":           optional(integer(math.MinInt64, math.MaxInt64, func(v int64) { p.Seed = &v })),
		"stop":           optional(p.decodeStop),
		"stream":         optional(boolInto(&p.Stream)),
		"stream_options": optional(p.streamOptions(d)),

		"frequency_penalty": optional(floatInto(&p.FrequencyPenalty, -2, 2)),
		"presence_penalty":  optional(floatInto(&p.PresencePenalty, -2, 2)),

		"repetition_penalty": optional(p.decodeRepetition),
		"repeat_penalty":     optional(p.decodeRepetition),

		"min_tokens":     optional(intInto(&p.MinTokens, 0, maxTokensBound)),
		"ignore_eos":     optional(boolInto(&p.IgnoreEOS)),
		"stop_token_ids": optional(p.decodeStopTokens),

		"return_progress": optional(boolInto(&p.ReturnProgress)),

		"priority":   optional(intInto(&p.Priority, -MostPriority, MostPriority)),
		"n":          optional(intInto(&p.N, 1, maxChoices)),
		"logit_bias": optional(p.decodeBias),

		"prompt_cache_key": optional(stringInto(&p.CacheKey)),
		"cache_salt":       optional(Salt(&p.CacheSalt)),
	}
}

func (p *Parameters) check() error {
	if p.Model == "" {
		return required("model")
	}
	if p.StreamOptions != nil && !p.Stream {
		return Invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")
	}
	return nil
}

func (p *Parameters) decodeStop(param string, raw json.RawMessage) error {
	if kind(raw) == "string" {
		p.Stop = make([]string, 1)
		if err := stringInto(&p.Stop[0])(param, raw); err != nil {
			return err
		}
		return checkStop(param, p.Stop[0])
	}
	if kind(raw) != "array" {
		return wrongKind(param, "a string or a list of strings", raw)
	}
	return decodeArray(param, raw, func(param string, raw json.RawMessage) error {
		var s string
		if err := stringInto(&s)(param, raw); err != nil {
			return err
		}
		if len(p.Stop) == maxStops {
			return Invalid("stop", "'stop' may name at most %d strings.", maxStops)
		}
		p.Stop = append(p.Stop, s)
		return checkStop(param, s)
	})
}

func checkStop(param, s string) error {
	if s == "" {
		return Invalid(param, "'%s' must not be an empty string, which would stop the output at once.", param)
	}
	return nil
}

// decodeRepetition accepts the repetition penalty by either of its names: vLLM's and
// llama.cpp's.
func (p *Parameters) decodeRepetition(param string, raw json.RawMessage) error {
	before := p.RepetitionPenalty
	if err := floatInto(&p.RepetitionPenalty, minRepetition, maxRepetition)(param, raw); err != nil {
		return err
	}
	if before != nil && *before != *p.RepetitionPenalty {
		return Invalid(param, "'repetition_penalty' and 'repeat_penalty' are the same parameter. Send only one of them.")
	}
	return nil
}

func (p *Parameters) decodeStopTokens(param string, raw json.RawMessage) error {
	return decodeArray(param, raw, func(at string, raw json.RawMessage) error {
		if len(p.StopTokens) == maxStopTokens {
			return Invalid(param, "'%s' must have at most %d tokens.", param, maxStopTokens)
		}
		return integer(0, math.MaxInt32, func(v int64) { p.StopTokens = append(p.StopTokens, int32(v)) })(at, raw)
	})
}

func (p *Parameters) streamOptions(d *Decoder) field {
	return func(param string, raw json.RawMessage) error {
		var o StreamOptions
		p.StreamOptions = &o
		return d.Object(raw, param, map[string]field{
			"include_usage":          optional(boolInto(&o.IncludeUsage)),
			"continuous_usage_stats": optional(boolInto(&o.ContinuousUsage)),
		}, streamUnused)
	}
}

func (r *ChatRequest) messages(d *Decoder) field {
	return func(param string, raw json.RawMessage) error {
		return decodeArray(param, raw, func(param string, raw json.RawMessage) error {
			m, err := d.message(param, raw)
			r.Messages = append(r.Messages, m)
			return err
		})
	}
}

func (d *Decoder) message(param string, raw json.RawMessage) (Message, error) {
	var m Message
	if err := d.Part(param); err != nil {
		return m, err
	}
	reasoning := ""
	err := d.Object(raw, param, map[string]field{
		"role":              stringInto(&m.Role),
		"name":              optional(stringInto(&m.Name)),
		"content":           optional(m.Content.decode(d)),
		"reasoning_content": optional(stringInto(&m.Reasoning)),
		"reasoning":         optional(d.reasoningText(&reasoning)),
		"tool_calls":        optional(m.calls(d)),
		"tool_call_id":      optional(stringInto(&m.CallID)),
	}, messageUnused)
	if err != nil {
		return m, err
	}
	switch {
	case m.Reasoning != "" || reasoning == "":
	case m.Role == RoleAssistant:
		m.Reasoning = reasoning
	default:
		if err := d.unknown(param+".reasoning", json.RawMessage("{}")); err != nil {
			return m, err
		}
	}
	return m, m.checkRole(param)
}

// reasoningText reads the other name of reasoning_content. It ignores what is no
// text.
func (d *Decoder) reasoningText(to *string) field {
	return func(param string, raw json.RawMessage) error {
		if kind(raw) == "string" {
			return stringInto(to)(param, raw)
		}
		return d.unknown(param, raw)
	}
}

// checkRole rejects unknown roles, and members that do not belong to a role.
func (m *Message) checkRole(param string) error {
	switch m.Role {
	case RoleSystem, RoleDeveloper, RoleUser, RoleAssistant, RoleTool:
	case "":
		return required(param + ".role")
	case "function":
		return &Error{Status: 400, Type: TypeInvalidRequest, Param: param + ".role", Code: CodeUnsupportedParameter,
			Message: "The role 'function' is not supported; send the role tool."}
	default:
		return Invalid(param+".role", "'%s' must be one of system, developer, user, assistant, tool, not '%s'.", param+".role", Shorten(m.Role))
	}
	switch {
	case len(m.Calls) > 0 && m.Role != RoleAssistant:
		return Invalid(param+".tool_calls", "'%s' is only allowed in messages with the role assistant.", param+".tool_calls")
	case m.Role == RoleTool && m.CallID == "":
		return required(param + ".tool_call_id")
	case m.CallID != "" && m.Role != RoleTool:
		return Invalid(param+".tool_call_id", "'%s' is only allowed in messages with the role tool.", param+".tool_call_id")
	case m.Reasoning != "" && m.Role != RoleAssistant:
		return Invalid(param+".reasoning_content", "'%s' is only allowed in messages with the role assistant.", param+".reasoning_content")
	case m.Role != RoleUser && m.Content.Seen():
		return Unsupported(param+".content", "Images are supported in messages with the role user.")
	case len(m.Content.Parts) == 0 && len(m.Calls) == 0:
		return required(param + ".content")
	}
	return nil
}

func (c *Content) decode(d *Decoder) field {
	return func(param string, raw json.RawMessage) error {
		switch kind(raw) {
		case "string":
			c.Parts = []ContentPart{{Type: "text"}}
			return stringInto(&c.Parts[0].Text)(param, raw)
		case "array":
			return decodeArray(param, raw, func(param string, raw json.RawMessage) error {
				p, err := d.part(param, raw)
				c.Parts = append(c.Parts, p)
				return err
			})
		}
		return wrongKind(param, "a string or a list of parts", raw)
	}
}

func (d *Decoder) part(param string, raw json.RawMessage) (ContentPart, error) {
	var p ContentPart
	if err := d.Part(param); err != nil {
		return p, err
	}
	var text *string
	later := func(string, json.RawMessage) error { return nil }
	err := d.Object(raw, param, map[string]field{
		"type": stringInto(&p.Type),
		"text": func(param string, raw json.RawMessage) error {
			text = &p.Text
			return stringInto(text)(param, raw)
		},
		"image_url": d.imageURL(&p.Image),
		// These parts are rejected by type further down, regardless of their
		// content.
		"input_audio": later, "file": later, "refusal": later,
	}, partUnused)
	switch {
	case err != nil:
		return p, err
	case p.Type == "":
		return p, required(param + ".type")
	case p.Type == "image_url" && p.Image == nil:
		return p, required(param + ".image_url")
	case p.Type == "image_url":
		return p, nil
	case p.Type != "text":
		return p, &Error{Status: 400, Type: TypeInvalidRequest, Param: param + ".type", Code: CodeUnsupportedParameter,
			Message: "Content parts of type '" + Shorten(p.Type) + "' are not supported; send text and image_url parts."}
	case p.Image != nil:
		return p, Invalid(param+".image_url", "'%s.image_url' is only allowed in parts of type image_url.", param)
	case text == nil:
		return p, required(param + ".text")
	}
	return p, nil
}

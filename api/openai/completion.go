package openai

import (
	"encoding/json"
	"maps"
	"math"
)

// Completion reads the body of POST /v1/completions. It returns an *Error.
func (d *Decoder) Completion(body []byte) (*CompletionRequest, error) {
	if err := checkJSON(body); err != nil {
		return nil, err
	}
	r := new(CompletionRequest)
	fields := r.fields(d)
	maps.Copy(fields, r.constraintFields(d))
	maps.Copy(fields, map[string]field{
		"prompt":   r.Prompt.decode,
		"echo":     optional(boolInto(&r.Echo)),
		"logprobs": optional(intInto(&r.Logprobs, 0, maxLogprobs)),
	})
	if err := d.Object(body, "", fields, completionUnused, textUnused); err != nil {
		return nil, err
	}
	if err := r.Parameters.check(); err != nil {
		return nil, err
	}
	if r.Prompt.Text == "" && r.Prompt.Tokens == nil {
		return nil, required("prompt")
	}
	if err := r.checkEcho(); err != nil {
		return nil, err
	}
	return r, nil
}

// decode accepts a string, a list of one string, a list of tokens, or a list of
// one list of tokens.
func (p *Prompt) decode(param string, raw json.RawMessage) error {
	switch kind(raw) {
	case "null":
		return required(param)
	case "string":
		return p.decodeText(param, raw)
	case "array":
		return p.decodeList(param, raw)
	}
	return wrongKind(param, "a string or a list", raw)
}

func (p *Prompt) decodeText(param string, raw json.RawMessage) error {
	if err := stringInto(&p.Text)(param, raw); err != nil {
		return err
	}
	if p.Text == "" {
		return Invalid(param, "'%s' must not be empty.", param)
	}
	return nil
}

func (p *Prompt) decodeList(param string, raw json.RawMessage) error {
	prompts := 0
	err := decodeArray(param, raw, func(at string, raw json.RawMessage) error {
		k := kind(raw)
		if k != "number" {
			prompts++
		}
		switch {
		case prompts > 1 || (prompts == 1 && p.Tokens != nil):
			return Invalid(param, "More than one prompt in '%s' is not supported. Send one request for each prompt.", param)
		case k == "string":
			return p.decodeText(at, raw)
		case k == "number" && prompts == 0:
			return p.decodeToken(at, raw)
		case k == "array":
			if err := decodeArray(at, raw, p.decodeToken); err != nil {
				return err
			}
			if p.Tokens == nil {
				return Invalid(at, "'%s' must not be empty.", at)
			}
			return nil
		}
		return wrongKind(at, "a string or a token", raw)
	})
	if err == nil && p.Text == "" && p.Tokens == nil {
		return Invalid(param, "'%s' must not be empty.", param)
	}
	return err
}

func (p *Prompt) decodeToken(param string, raw json.RawMessage) error {
	return integer(0, math.MaxInt32, func(v int64) { p.Tokens = append(p.Tokens, int32(v)) })(param, raw)
}

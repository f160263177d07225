package openai

import (
	"encoding/json"
	"maps"
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
		"prompt":     r.prompts,
		"echo":       optional(boolInto(&r.Echo)),
		"logprobs":   optional(intInto(&r.Logprobs, 0, maxLogprobs)),
		"max_tokens": optional(intInto(&r.MaxTokens, 0, maxTokensBound)),
	})
	if err := d.Object(body, "", fields, completionUnused, textUnused); err != nil {
		return nil, err
	}
	if err := r.Parameters.check(); err != nil {
		return nil, err
	}
	if r.Prompts == nil {
		return nil, required("prompt")
	}
	if err := r.checkChoices(); err != nil {
		return nil, err
	}
	return r, nil
}

// prompts accepts a string, a list of strings, a list of tokens, or a list of
// lists of tokens.
func (r *CompletionRequest) prompts(param string, raw json.RawMessage) error {
	switch kind(raw) {
	case "null":
		return required(param)
	case "string":
		return r.addText(param, raw)
	case "array":
		return r.promptList(param, raw)
	}
	return wrongKind(param, "a string or a list", raw)
}

func (r *CompletionRequest) addText(param string, raw json.RawMessage) error {
	var p Prompt
	if err := stringInto(&p.Text)(param, raw); err != nil {
		return err
	}
	if p.Text == "" {
		return Invalid(param, "'%s' must not be empty.", param)
	}
	r.Prompts = append(r.Prompts, p)
	return nil
}

func (r *CompletionRequest) promptList(param string, raw json.RawMessage) error {
	first := firstKind(raw)
	if first == "number" {
		ids, err := decodeTokens(param, raw, onlyTokens(param))
		r.Prompts = append(r.Prompts, Prompt{Tokens: ids})
		return err
	}
	err := decodeArray(param, raw, func(at string, raw json.RawMessage) error {
		switch k := kind(raw); {
		case k != "string" && k != "number" && k != "array":
			return wrongKind(at, "a string or a token", raw)
		case k != first:
			return Invalid(param, "'%s' must contain only strings, only tokens, or only lists of tokens.", param)
		case len(r.Prompts) == maxChoices:
			return Invalid(param, "'%s' must have at most %d prompts. Send several requests.", param, maxChoices)
		case k == "string":
			return r.addText(at, raw)
		}
		ids, err := decodeTokens(at, raw, token)
		r.Prompts = append(r.Prompts, Prompt{Tokens: ids})
		return err
	})
	if err == nil && r.Prompts == nil {
		return Invalid(param, "'%s' must not be empty.", param)
	}
	return err
}

// checkChoices bounds the choices of all prompts together.
func (r *CompletionRequest) checkChoices() error {
	if all := len(r.Prompts) * r.Choices(); all > maxChoices {
		return Invalid("n", "'n' is %d for each of %d prompts, but a request may have at most %d choices in total. Send several requests.", r.Choices(), len(r.Prompts), maxChoices)
	}
	return nil
}

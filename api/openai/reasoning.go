package openai

import (
	"encoding/json"
	"slices"
	"strings"
)

// EffortNone is the reasoning effort that switches reasoning off.
const EffortNone = "none"

var efforts = []string{EffortNone, "minimal", "low", "medium", "high", "xhigh", "max"}

// Effort reads OpenAI's values of the reasoning effort. A model whose chat
// template does not grade reasoning switches it on or off, if it can.
func Effort(to *string) Field {
	return func(param string, raw json.RawMessage) error {
		if err := stringInto(to)(param, raw); err != nil {
			return err
		}
		if !slices.Contains(efforts, *to) {
			return Invalid(param, "'%s' must be one of %s, not '%s'.", param, strings.Join(efforts, ", "), Shorten(*to))
		}
		return nil
	}
}

// Reasoning holds what a request says about the model's reasoning.
type Reasoning struct {
	// Effort is the reasoning effort; empty means the model's default.
	Effort string `json:"reasoning_effort,omitempty"`
	// Thinking switches reasoning on or off; nil means the model's default.
	Thinking *bool `json:"enable_thinking,omitempty"`
	// TemplateArguments is a JSON object of variables for the chat template.
	TemplateArguments json.RawMessage `json:"chat_template_kwargs,omitempty"`
	// Include reports whether the response has the reasoning; nil means that it has.
	Include *bool `json:"include_reasoning,omitempty"`
}

// Hidden reports whether the reasoning is left out of the response.
func (r *Reasoning) Hidden() bool { return r.Include != nil && !*r.Include }

// reasoningFields returns the fields by which clients of several servers control
// reasoning.
func (r *Reasoning) reasoningFields(d *Decoder) map[string]field {
	return map[string]field{
		"reasoning_effort":     optional(r.effort),
		"enable_thinking":      optional(r.enable),
		"thinking":             optional(r.thinking(d)),
		"reasoning":            optional(r.reasoning(d)),
		"include_reasoning":    optional(r.include),
		"chat_template_kwargs": optional(r.arguments),
	}
}

// effort reads the reasoning effort; it rejects a second one that differs.
func (r *Reasoning) effort(param string, raw json.RawMessage) error {
	before := r.Effort
	if err := Effort(&r.Effort)(param, raw); err != nil {
		return err
	}
	if before != "" && before != r.Effort {
		return Invalid(param, "'%s' is %s, but another field of the request asks for the effort %s. Send only one of them.", param, r.Effort, before)
	}
	return nil
}

// think switches reasoning on or off; it rejects a contradiction.
func (r *Reasoning) think(param string, on bool) error {
	if r.Thinking != nil && *r.Thinking != on {
		return Invalid(param, "'%s' contradicts another field of the request that switches reasoning on or off. Send only one of them.", param)
	}
	r.Thinking = &on
	return nil
}

func (r *Reasoning) enable(param string, raw json.RawMessage) error {
	var on bool
	if err := boolInto(&on)(param, raw); err != nil {
		return err
	}
	return r.think(param, on)
}

// show includes the reasoning in the response or not; it rejects a contradiction.
func (r *Reasoning) show(param string, include bool) error {
	if r.Include != nil && *r.Include != include {
		return Invalid(param, "'%s' contradicts another field of the request that includes reasoning in the response or not. Send only one of them.", param)
	}
	r.Include = &include
	return nil
}

func (r *Reasoning) include(param string, raw json.RawMessage) error {
	var include bool
	if err := boolInto(&include)(param, raw); err != nil {
		return err
	}
	return r.show(param, include)
}

// thinking accepts true or false, or an object with a type.
func (r *Reasoning) thinking(d *Decoder) field {
	return func(param string, raw json.RawMessage) error {
		if kind(raw) == "boolean" {
			return r.enable(param, raw)
		}
		var form string
		if err := d.Object(raw, param, map[string]field{"type": stringInto(&form)}, thinkingUnused); err != nil {
			return err
		}
		switch form {
		case "enabled", "adaptive", "auto":
			return r.think(param, true)
		case "disabled":
			return r.think(param, false)
		}
		return Invalid(param+".type", "'%s' must be enabled, adaptive, auto or disabled, not '%s'.", param+".type", Shorten(form))
	}
}

// reasoning reads the object by which OpenRouter's clients control reasoning. A
// budget switches reasoning on and is ignored otherwise.
func (r *Reasoning) reasoning(d *Decoder) field {
	return func(param string, raw json.RawMessage) error {
		budget := false
		err := d.Object(raw, param, map[string]field{
			"effort":  optional(r.effort),
			"enabled": optional(r.enable),
			"exclude": optional(func(param string, raw json.RawMessage) error {
				var exclude bool
				if err := boolInto(&exclude)(param, raw); err != nil {
					return err
				}
				return r.show(param, !exclude)
			}),
			"max_tokens": optional(func(param string, raw json.RawMessage) error {
				budget = true
				return d.unknown(param, raw)
			}),
		}, reasoningUnused)
		if err == nil && budget && r.Thinking == nil {
			return r.think(param, true)
		}
		return err
	}
}

// maxTemplateArguments bounds the variables of a chat template, in bytes: they do not count
// against the context, because a template need not write them.
const maxTemplateArguments = 1 << 20

// arguments accepts an object with variables for the chat template.
func (r *Reasoning) arguments(param string, raw json.RawMessage) error {
	if kind(raw) != "object" {
		return wrongKind(param, "an object", raw)
	}
	if len(raw) > maxTemplateArguments {
		return Invalid(param, "'%s' has %d bytes, but at most %d are allowed. Send long texts as messages.", param, len(raw), maxTemplateArguments)
	}
	err := decodeMembers(raw, param, func(name string) (field, error) {
		if name == "messages" || name == "tools" {
			return nil, Invalid(param+"."+name, "'%s' cannot be set here. Send '%s' as a field of the request.", param+"."+name, name)
		}
		return func(param string, raw json.RawMessage) error {
			if name == "add_generation_prompt" && string(raw) != "true" {
				return Invalid(param, "'%s' cannot be set to another value than true. Remove it.", param)
			}
			return nil
		}, nil
	})
	r.TemplateArguments = raw
	return err
}

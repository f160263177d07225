package anthropic

import (
	"encoding/json"
	"fmt"

	"metalfleet.dev/metalfleet/api/openai"
)

// leastBudget is Anthropic's minimum budget for thinking.
const leastBudget = 1024

func (r *Request) decodeTools(param string, raw json.RawMessage) error {
	return openai.Array(param, raw, func(param string, raw json.RawMessage) error {
		var t openai.Tool
		form := "custom"
		fields := t.ToolFields("input_schema")
		fields["type"] = openai.Optional(openai.String(&form))
		fields["cache_control"] = openai.Optional(cacheControl)
		for name, value := range openai.Members(raw) {
			if string(name) == "type" && string(value) != `"custom"` && string(value) != "null" {
				return openai.Unsupported(param+".type", fmt.Sprintf("Server tools (type %s) are not supported; send tools with an 'input_schema', which the client runs.", openai.Shorten(string(value))))
			}
		}
		if err := openai.Object(raw, param, fields); err != nil {
			return err
		}
		if t.Parameters == nil {
			return openai.Required(param + ".input_schema")
		}
		r.Use.Tools = append(r.Use.Tools, t)
		return openai.CheckTool(param, t)
	})
}

// decodeChoice reads tool_choice in Anthropic's format.
func (r *Request) decodeChoice(param string, raw json.RawMessage) error {
	var form string
	err := openai.Object(raw, param, map[string]openai.Field{
		"type":                      openai.String(&form),
		"name":                      openai.Optional(openai.String(&r.Use.Function)),
		"disable_parallel_tool_use": openai.Optional(openai.Bool(&r.Use.Single)),
	})
	if err != nil {
		return err
	}
	switch form {
	case "auto":
		r.Use.Choice = openai.ChoiceAuto
	case "none":
		r.Use.Choice = openai.ChoiceNone
	case "any":
		r.Use.Choice = openai.ChoiceRequired
	case "tool":
		if r.Use.Function == "" {
			return openai.Required(param + ".name")
		}
		return nil
	default:
		return openai.Invalid(param+".type", "'%s.type' must be one of auto, any, tool, none, not '%s'.", param, openai.Shorten(form))
	}
	if r.Use.Function != "" {
		return openai.Invalid(param+".name", "'%s.name' is only allowed with the type tool.", param)
	}
	return nil
}

// decodeThinking reads whether thinking is enabled. The model decides how long
// it thinks: a budget is accepted but not enforced.
func (r *Request) decodeThinking(param string, raw json.RawMessage) error {
	var form string
	var budget *int
	err := openai.Object(raw, param, map[string]openai.Field{
		"type":          openai.String(&form),
		"budget_tokens": openai.Optional(openai.Int(&budget, leastBudget, maxTokensBound)),
	})
	switch {
	case err != nil:
		return err
	case form == "enabled" && budget == nil:
		return openai.Required(param + ".budget_tokens")
	case form != "enabled" && budget != nil:
		return openai.Invalid(param+".budget_tokens", "'%s.budget_tokens' is only allowed with the type enabled.", param)
	case form != "enabled" && form != "adaptive" && form != "disabled":
		return openai.Invalid(param+".type", "'%s.type' must be one of enabled, adaptive, disabled, not '%s'.", param, openai.Shorten(form))
	}
	r.Thinking = form != "disabled"
	return nil
}

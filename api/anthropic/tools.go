package anthropic

import (
	"encoding/json"
	"fmt"

	"metalfleet.dev/metalfleet/api/openai"
)

// leastBudget is Anthropic's minimum budget for thinking.
const leastBudget = 1024

// tools reads the tools that the client runs. Those of Anthropic's own types,
// which its servers run or its models know, are left out.
func (d decoder) tools(param string, raw json.RawMessage) error {
	return openai.ArrayOfTools(param, raw, func(param string, raw json.RawMessage) error {
		var t openai.Tool
		form := "custom"
		fields := t.ToolFields("input_schema")
		fields["type"] = openai.Optional(openai.String(&form))
		for name, value := range openai.Members(raw) {
			if string(name) != "type" || string(value) == `"custom"` || string(value) == "null" {
				continue
			}
			if d.Strict {
				return openai.Unsupported(param+".type", fmt.Sprintf("Server tools (type %s) are not supported; send tools with an 'input_schema', which the client runs.", openai.Shorten(string(value))))
			}
			if err := openai.String(&form)(param+".type", value); err != nil {
				return err
			}
		}
		if form != "custom" {
			return d.LeaveOut(param, form, raw)
		}
		if err := d.Object(raw, param, fields, toolUnused, blockCache); err != nil {
			return err
		}
		if t.Parameters == nil {
			return openai.Required(param + ".input_schema")
		}
		d.r.Use.Tools = append(d.r.Use.Tools, t)
		return openai.CheckTool(param, t)
	})
}

// choice reads tool_choice in Anthropic's format.
func (d decoder) choice(param string, raw json.RawMessage) error {
	r := d.r
	var form string
	err := d.Object(raw, param, map[string]openai.Field{
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

// thinking reads whether thinking is enabled. The model decides how long it
// thinks: a budget is not enforced.
func (d decoder) thinking(param string, raw json.RawMessage) error {
	var form string
	var budget *int
	fields := map[string]openai.Field{"type": openai.String(&form)}
	if d.Strict {
		fields["budget_tokens"] = openai.Optional(openai.Int(&budget, leastBudget, maxTokensBound))
	}
	err := d.Object(raw, param, fields, thinkingUnused)
	switch {
	case err != nil:
		return err
	case d.Strict && form == "enabled" && budget == nil:
		return openai.Required(param + ".budget_tokens")
	case form != "enabled" && budget != nil:
		return openai.Invalid(param+".budget_tokens", "'%s.budget_tokens' is only allowed with the type enabled.", param)
	case form != "enabled" && form != "adaptive" && form != "disabled":
		return openai.Invalid(param+".type", "'%s.type' must be one of enabled, adaptive, disabled, not '%s'.", param, openai.Shorten(form))
	}
	on := form != "disabled"
	d.r.Thinking = &on
	return nil
}

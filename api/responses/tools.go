package responses

import (
	"encoding/json"
	"fmt"

	"metalfleet.dev/metalfleet/api/openai"
)

// function is a tool in the format of a response.
type function struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict"`
}

// Bytes returns the size of its texts.
func (f function) Bytes() int64 {
	n := len(f.Name) + len(f.Parameters)
	if f.Description != nil {
		n += len(*f.Description)
	}
	return int64(n)
}

// named is a choice of one function.
type named struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

// formOf returns the member "type" of an object and ignores other members.
func formOf(param string, raw json.RawMessage) (string, error) {
	if openai.Kind(raw) != "object" {
		return "", openai.WrongKind(param, "an object", raw)
	}
	form := ""
	for name, value := range openai.Members(raw) {
		if string(name) == "type" {
			if err := openai.String(&form)(param+".type", value); err != nil {
				return "", err
			}
		}
	}
	if form == "" {
		return "", openai.Required(param + ".type")
	}
	return form, nil
}

func (d decoder) tools(param string, raw json.RawMessage) error {
	return openai.Array(param, raw, func(param string, raw json.RawMessage) error {
		form, err := formOf(param, raw)
		switch {
		case err != nil:
			return err
		case !d.Strict && form != "function" && form != "custom" && form != "namespace":
			return d.LeaveOut(param, form, raw) // nothing is run on this server
		case form != "function":
			return openai.Unsupported(param+".type", fmt.Sprintf("Server tools of type '%s' are not supported; send functions, which the client runs.", openai.Shorten(form)))
		}
		var t openai.Tool
		fields := t.ToolFields("parameters")
		fields["type"] = openai.String(&form)
		if err := d.Object(raw, param, fields, toolUnused); err != nil {
			return err
		}
		d.r.Use.Tools = append(d.r.Use.Tools, t)
		return openai.CheckTool(param, t)
	})
}

func (d decoder) choice(param string, raw json.RawMessage) error {
	r := d.r
	if openai.Kind(raw) == "string" {
		return r.Use.DecodeChoice(param, raw)
	}
	form, err := formOf(param, raw)
	switch {
	case err != nil:
		return err
	case form != "function":
		return openai.Unsupported(param+".type", fmt.Sprintf("A tool choice of type '%s' is not supported; name a function, or send auto, none or required.", openai.Shorten(form)))
	}
	err = d.Object(raw, param, map[string]openai.Field{"type": openai.String(&form), "name": openai.String(&r.Use.Function)})
	if err == nil && r.Use.Function == "" {
		return openai.Required(param + ".name")
	}
	return err
}

// reasoning reads the reasoning effort. Reasoning is returned unchanged, without
// a summary.
func (d decoder) reasoning(param string, raw json.RawMessage) error {
	return d.Object(raw, param, map[string]openai.Field{"effort": openai.Optional(openai.Effort(&d.r.Effort))}, reasoningUnused)
}

// choiceOf returns the tool choice in the format of a response.
func choiceOf(u openai.ToolUse) any {
	switch {
	case u.Function != "":
		return named{"function", u.Function}
	case u.Choice != "":
		return u.Choice
	}
	return openai.ChoiceAuto
}

// toolsOf returns the tools in the format of a response.
func toolsOf(u openai.ToolUse) []function {
	out := []function{}
	for _, t := range u.Tools {
		f := function{Type: "function", Name: t.Name, Parameters: t.Parameters, Strict: t.Strict}
		if t.Description != "" {
			f.Description = &t.Description
		}
		out = append(out, f)
	}
	return out
}

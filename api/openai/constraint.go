package openai

import (
	"encoding/json"
)

// ConstraintKind is the language of a constraint.
type ConstraintKind string

// The kinds of constraints.
const (
	ConstraintObject  ConstraintKind = "json_object"
	ConstraintSchema  ConstraintKind = "json_schema"
	ConstraintRegex   ConstraintKind = "regex"
	ConstraintGrammar ConstraintKind = "grammar"
	ConstraintChoice  ConstraintKind = "choice"
)

// maxConstraintChoices is how many choices the engine accepts.
const maxConstraintChoices = 1 << 10

// Constraint restricts the form of a response (structured output).
type Constraint struct {
	Kind ConstraintKind `json:"kind"`
	// Text is the schema, regular expression or grammar.
	Text string `json:"text,omitempty"`
	// Choices are the allowed responses.
	Choices []string `json:"choices,omitempty"`
	// Param is the name of the request field with the constraint.
	Param string `json:"param"`
}

// constrain sets the constraint of a request; it rejects a second one.
func (p *Parameters) constrain(c Constraint) error {
	if p.Constraint != nil {
		return Invalid(c.Param, "'%s' and '%s' both constrain the form of the response. Send only one of them.", p.Constraint.Param, c.Param)
	}
	p.Constraint = &c
	return nil
}

// constraintFields returns vLLM's fields for constraints, by their new and
// their old names, and llama.cpp's.
func (p *Parameters) constraintFields(d *Decoder) map[string]field {
	return map[string]field{
		"structured_outputs": optional(p.structured(d)),
		"guided_json":        optional(p.decodeSchema),
		"guided_regex":       optional(p.textForm(ConstraintRegex)),
		"guided_grammar":     optional(p.textForm(ConstraintGrammar)),
		"guided_choice":      optional(p.decodeChoice),
		"json_schema":        optional(p.decodeSchema),
		"grammar":            optional(p.decodeGrammar),
	}
}

// decodeGrammar reads llama.cpp's grammar, of which an empty one means none.
func (p *Parameters) decodeGrammar(param string, raw json.RawMessage) error {
	if string(raw) == `""` {
		return nil
	}
	return p.textForm(ConstraintGrammar)(param, raw)
}

func (p *Parameters) structured(d *Decoder) field {
	return func(param string, raw json.RawMessage) error {
		before := p.Constraint
		err := d.Object(raw, param, map[string]field{
			"json":        optional(p.decodeSchema),
			"regex":       optional(p.textForm(ConstraintRegex)),
			"grammar":     optional(p.textForm(ConstraintGrammar)),
			"choice":      optional(p.decodeChoice),
			"json_object": optional(p.decodeAnyObject),
		}, structuredUnused)
		if err == nil && p.Constraint == before {
			return Invalid(param, "'%s' must contain exactly one of json, regex, grammar, choice and json_object.", param)
		}
		return err
	}
}

func (p *Parameters) decodeAnyObject(param string, raw json.RawMessage) error {
	var on bool
	if err := boolInto(&on)(param, raw); err != nil {
		return err
	}
	if !on {
		return Invalid(param, "'%s' must be true. Omit it for a response without constraint.", param)
	}
	return p.constrain(Constraint{Kind: ConstraintObject, Param: param})
}

// decodeSchema accepts a schema, or a string that contains one.
func (p *Parameters) decodeSchema(param string, raw json.RawMessage) error {
	c, err := SchemaConstraint(param, raw)
	if err != nil {
		return err
	}
	return p.constrain(c)
}

// SchemaConstraint returns the constraint to a schema, or to a string that
// contains one.
func SchemaConstraint(param string, raw json.RawMessage) (Constraint, error) {
	c := Constraint{Kind: ConstraintSchema, Param: param}
	switch kind(raw) {
	case "object", "boolean":
		text, err := Compact(raw)
		if err != nil {
			return c, err
		}
		c.Text = string(text)
	case "string":
		if err := json.Unmarshal(raw, &c.Text); err != nil {
			return c, malformed(raw, 0, err.Error())
		}
	default:
		return c, wrongKind(param, "a JSON schema", raw)
	}
	return c, nil
}

func (p *Parameters) textForm(k ConstraintKind) field {
	return func(param string, raw json.RawMessage) error {
		c := Constraint{Kind: k, Param: param}
		if err := stringInto(&c.Text)(param, raw); err != nil {
			return err
		}
		return p.constrain(c)
	}
}

func (p *Parameters) decodeChoice(param string, raw json.RawMessage) error {
	c := Constraint{Kind: ConstraintChoice, Param: param}
	err := decodeArray(param, raw, func(param string, raw json.RawMessage) error {
		if len(c.Choices) == maxConstraintChoices {
			return Invalid(c.Param, "'%s' must have at most %d choices.", c.Param, maxConstraintChoices)
		}
		var text string
		if err := stringInto(&text)(param, raw); err != nil {
			return err
		}
		c.Choices = append(c.Choices, text)
		return nil
	})
	if err != nil {
		return err
	}
	return p.constrain(c)
}

// responseFormat reads OpenAI's response_format. A schema is enforced whether
// or not it is strict, and also where llama.cpp and others read it: in the
// member schema of a json_object.
func (r *ChatRequest) responseFormat(d *Decoder) field {
	return func(param string, raw json.RawMessage) error {
		var form string
		var schema, objectSchema json.RawMessage
		given := false
		err := d.Object(raw, param, map[string]field{
			"type": stringInto(&form),
			"json_schema": optional(func(param string, raw json.RawMessage) error {
				given = true
				return d.Object(raw, param, map[string]field{
					"name":        optional(stringInto(new(string))),
					"description": optional(stringInto(new(string))),
					"strict":      optional(boolInto(new(bool))),
					"schema":      Raw(&schema),
				})
			}),
			"schema": optional(Raw(&objectSchema)),
		})
		if err == nil && objectSchema != nil && form != "json_object" {
			err, objectSchema = d.unknown(param+".schema", objectSchema), nil
		}
		switch {
		case err != nil:
			return err
		case form == "":
			return required(param + ".type")
		case form != "json_schema" && given:
			return Invalid(param+".json_schema", "'%s' is only allowed when '%s' is json_schema.", param+".json_schema", param+".type")
		case form == "text":
			return nil
		case objectSchema != nil:
			return r.decodeSchema(param+".schema", objectSchema)
		case form == "json_object":
			return r.constrain(Constraint{Kind: ConstraintObject, Param: param})
		case form != "json_schema":
			return Invalid(param+".type", "'%s' must be one of text, json_object, json_schema, not '%s'.", param+".type", Shorten(form))
		case schema == nil:
			return required(param + ".json_schema.schema")
		}
		return r.decodeSchema(param+".json_schema.schema", schema)
	}
}

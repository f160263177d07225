package openai

import "encoding/json"

// Field decodes one member of an object into a request. Its error names the
// parameter. The packages of the other APIs use the same fields, so that all of
// them reject requests in the same way.
type Field = field

// CheckJSON rejects anything but one JSON value in UTF-8, and reports the
// position.
func CheckJSON(body []byte) error { return checkJSON(body) }

// Array passes every element of a JSON array to one.
func Array(param string, raw json.RawMessage, one Field) error { return decodeArray(param, raw, one) }

// Kind returns the JSON type of a valid value: object, array, string, boolean,
// null or number.
func Kind(raw json.RawMessage) string { return kind(raw) }

// WrongKind returns the error for a value of the wrong type.
func WrongKind(param, want string, raw json.RawMessage) error { return wrongKind(param, want, raw) }

// Optional leaves the request unchanged when the value is null.
func Optional(inner Field) Field { return optional(inner) }

// String accepts a string.
func String(to *string) Field { return stringInto(to) }

// Bool accepts true or false.
func Bool(to *bool) Field { return boolInto(to) }

// Float accepts a number from low to high, inclusive.
func Float(to **float64, low, high float64) Field { return floatInto(to, low, high) }

// Int accepts an integer from low to high, inclusive.
func Int(to **int, low, high int64) Field { return intInto(to, low, high) }

// Raw accepts any value unchanged.
func Raw(to *json.RawMessage) Field {
	return func(_ string, raw json.RawMessage) error { *to = raw; return nil }
}

// Fields returns the decoders of some fields of the text routes.
func (p *Parameters) Fields(d *Decoder, names ...string) map[string]Field {
	all, some := p.fields(d), map[string]Field{}
	for _, name := range names {
		some[name] = all[name]
	}
	return some
}

// Constrain sets the constraint of a request; it rejects a second one.
func (p *Parameters) Constrain(c Constraint) error { return p.constrain(c) }

// Required returns the error for a missing parameter.
func Required(param string) error { return required(param) }

// Unsupported returns the error for a known parameter, with an alternative to
// send.
func Unsupported(param, remedy string) *Error {
	return &Error{Status: 400, Type: TypeInvalidRequest, Param: Shorten(param), Code: CodeUnsupportedParameter,
		Message: "The parameter '" + Shorten(param) + "' is not supported. " + remedy}
}

package openai

import "encoding/json"

// Field decodes one member of an object into a request. Its error names the
// parameter. The packages of other APIs are built of the same fields, so that
// all of them refuse alike.
type Field = field

// CheckJSON refuses what is not one JSON value in UTF-8, with its position.
func CheckJSON(body []byte) error { return checkJSON(body) }

// Object hands every member of a JSON object to its field. A member without one
// is refused, as is one that occurs twice. within is the path of the object,
// empty at the top.
func Object(raw json.RawMessage, within string, fields map[string]Field) error {
	return decodeObject(raw, within, fields)
}

// Array hands every element of a JSON array to one.
func Array(param string, raw json.RawMessage, one Field) error { return decodeArray(param, raw, one) }

// Kind names the JSON type of a valid value: object, array, string, boolean,
// null or number.
func Kind(raw json.RawMessage) string { return kind(raw) }

// WrongKind refuses a value that is not what it must be.
func WrongKind(param, want string, raw json.RawMessage) error { return wrongKind(param, want, raw) }

// Optional leaves the request as it is where the value is null.
func Optional(inner Field) Field { return optional(inner) }

// String takes a string.
func String(to *string) Field { return stringInto(to) }

// Bool takes true or false.
func Bool(to *bool) Field { return boolInto(to) }

// Float takes a number from low to high, both included.
func Float(to **float64, low, high float64) Field { return floatInto(to, low, high) }

// Int takes a whole number from low to high, both included.
func Int(to **int, low, high int64) Field { return intInto(to, low, high) }

// Raw takes any value as it is.
func Raw(to *json.RawMessage) Field {
	return func(_ string, raw json.RawMessage) error { *to = raw; return nil }
}

// Idle is a parameter that exists and is not supported yet: null and the
// neutral values pass, others are refused by name.
func Idle(neutral ...string) Field { return idle(neutral...) }

// Required says that a parameter is missing.
func Required(param string) error { return required(param) }

// Unsupported refuses a parameter that is known, with what to send instead of it.
func Unsupported(param, remedy string) *Error {
	return &Error{Status: 400, Type: TypeInvalidRequest, Param: Shorten(param), Code: CodeUnsupportedParameter,
		Message: "The parameter '" + Shorten(param) + "' is not supported yet. " + remedy}
}

package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

// field decodes one member of an object into the request. Its error names the
// parameter.
type field func(param string, raw json.RawMessage) error

// promisedBytes is the maximum buffer size that is allocated before any part of
// a body has arrived.
const promisedBytes = 64 << 10

// ReadBody reads a request body of at most limit bytes and rejects a longer one
// with 413. promised is the Content-Length, or negative when it is unknown.
func ReadBody(r io.Reader, promised, limit int64) ([]byte, error) {
	var b bytes.Buffer
	if promised >= 0 {
		b.Grow(int(min(promised, promisedBytes)) + bytes.MinRead) // otherwise it grows to find the end
	}
	_, err := b.ReadFrom(io.LimitReader(r, limit+1))
	body := b.Bytes()
	if err != nil {
		return nil, BodyBroken(err)
	}
	if int64(len(body)) > limit {
		return nil, BodyTooLarge(limit)
	}
	return body, nil
}

// BodyBroken is the error for a request body that could not be read.
func BodyBroken(cause error) *Error {
	return &Error{Status: 400, Type: TypeInvalidRequest, Message: "The request body could not be read completely.", Cause: cause}
}

// BodyTooLarge is the error for a request body of more than limit bytes.
func BodyTooLarge(limit int64) *Error {
	return &Error{Status: 413, Type: TypeInvalidRequest, Code: CodeBodyTooLarge,
		Message: fmt.Sprintf("The request body exceeds %d bytes. Send a shorter conversation.", limit)}
}

// PlainBody rejects a request body with a Content-Encoding, because the body is
// never decompressed and must not be parsed as if it had been.
func PlainBody(h http.Header) error {
	for _, encoding := range h.Values("Content-Encoding") {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return encodedBody(encoding)
		}
	}
	return nil
}

// checkJSON rejects anything but one JSON value in UTF-8, and reports the
// position.
func checkJSON(body []byte) error {
	if !utf8.Valid(body) {
		at := 0
		for at < len(body) {
			r, n := utf8.DecodeRune(body[at:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			at += n
		}
		return malformed(body, int64(at), "the body is not UTF-8")
	}
	if json.Valid(body) {
		return nil
	}
	var whole json.RawMessage
	err := json.Unmarshal(body, &whole)
	if err == nil {
		return nil
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		// Offset counts the invalid byte too.
		return malformed(body, max(syntax.Offset-1, 0), syntax.Error())
	}
	return malformed(body, 0, err.Error())
}

func malformed(body []byte, offset int64, what string) error {
	offset = min(offset, int64(len(body)))
	before := body[:offset]
	line := bytes.Count(before, []byte{'\n'}) + 1
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1) + 1
	return &Error{Status: 400, Type: TypeInvalidRequest, Code: CodeMalformedJSON,
		Message: fmt.Sprintf("The request body is not valid JSON: %s, at byte %d (line %d, column %d).", what, offset, line, column)}
}

// maxMembers bounds the members of an object that is decoded one by one: each takes a
// microsecond and a place in memory.
const maxMembers = 1 << 16

// decodeMembers passes every member of a JSON object, which is valid, to the field of its name
// and rejects duplicates, and more than maxMembers. It copies no value: objects are nested, and
// a value may be nearly the whole body.
func decodeMembers(raw []byte, within string, of func(name string) (field, error)) error {
	if kind(raw) != "object" {
		return wrongKind(within, "an object", raw)
	}
	seen := map[string]bool{}
	for quoted, value := range Members(raw) {
		if len(seen) == maxMembers {
			return Invalid(within, "An object of the request has more than %d members.", maxMembers)
		}
		name := string(quoted)
		param := join(within, name)
		if seen[name] {
			return Invalid(param, "The parameter '%s' appears twice.", Shorten(param))
		}
		seen[name] = true
		decode, err := of(name)
		if err != nil {
			return err
		}
		if err := decode(param, value); err != nil {
			return err
		}
	}
	return nil
}

// decodeArray passes every element of a JSON array to one.
func decodeArray(param string, raw json.RawMessage, one field) error {
	if kind(raw) != "array" {
		return wrongKind(param, "a list", raw)
	}
	i := 0
	for value := range Elements(raw) {
		if err := one(element(param, i), value); err != nil {
			return err
		}
		i++
	}
	return nil
}

// element names an element of a list.
func element(param string, i int) string { return param + "[" + strconv.Itoa(i) + "]" }

// maxTokenIDs of one list: no model has a longer context.
const maxTokenIDs = 1 << 20

// decodeTokens reads a list of tokens. one returns the error for an element that is none. A
// list may have millions of elements, so that each costs little.
func decodeTokens(param string, raw json.RawMessage, one field) ([]int32, error) {
	if kind(raw) != "array" {
		return nil, wrongKind(param, "a list", raw)
	}
	ids := make([]int32, 0, min(bytes.Count(raw, []byte{','})+1, maxTokenIDs))
	for value := range Elements(raw) {
		id, err := strconv.ParseInt(string(value), 10, 32)
		if err != nil || id < 0 {
			at := element(param, len(ids))
			if err := one(at, value); err != nil {
				return nil, err
			}
			return nil, Invalid(at, "'%s' must be a token, not %s.", at, Shorten(string(value)))
		}
		if len(ids) == maxTokenIDs {
			return nil, Invalid(param, "'%s' must have at most %d tokens.", param, maxTokenIDs)
		}
		ids = append(ids, int32(id))
	}
	if len(ids) == 0 {
		return nil, Invalid(param, "'%s' must not be empty.", param)
	}
	return ids, nil
}

// token accepts a token.
func token(param string, raw json.RawMessage) error {
	return integer(0, math.MaxInt32, func(int64) {})(param, raw)
}

// onlyTokens is token for lists that could also have other elements.
func onlyTokens(list string) field {
	return func(at string, raw json.RawMessage) error {
		switch k := kind(raw); k {
		case "number":
			return token(at, raw)
		case "string", "array":
			return Invalid(list, "'%s' must contain only strings, only tokens, or only lists of tokens.", list)
		}
		return wrongKind(at, "a string or a token", raw)
	}
}

// firstKind returns the JSON type of the first element of a list; empty without one.
func firstKind(list json.RawMessage) string {
	for first := range Elements(list) {
		return kind(first)
	}
	return ""
}

func join(within, name string) string {
	if within == "" {
		return name
	}
	return within + "." + name
}

// Shorten truncates a client's text for use in an error message.
func Shorten(s string) string { return shortenTo(64, s) }

// shortenTo truncates a text to a number of bytes, and keeps no memory of the rest.
func shortenTo(most int, s string) string {
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// Compact returns a JSON value without white space. It keeps no memory of the white space, since
// it may be stored much longer than its request.
func Compact(raw json.RawMessage) (json.RawMessage, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, malformed(raw, 0, err.Error())
	}
	return bytes.Clone(b.Bytes()), nil
}

// kind returns the JSON type of a valid value.
func kind(raw json.RawMessage) string {
	raw = skipSpace(raw)
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

func wrongKind(param, want string, raw json.RawMessage) error {
	if param == "" {
		return Invalid("", "The request body must be %s, not %s.", want, kind(raw))
	}
	return Invalid(param, "'%s' must be %s, not %s.", param, want, kind(raw))
}

// optional returns a field that leaves the request unchanged when the value is
// null.
func optional(inner field) field {
	return func(param string, raw json.RawMessage) error {
		if kind(raw) == "null" {
			return nil
		}
		return inner(param, raw)
	}
}

func stringInto(to *string) field {
	return func(param string, raw json.RawMessage) error {
		if kind(raw) != "string" {
			return wrongKind(param, "a string", raw)
		}
		return json.Unmarshal(raw, to)
	}
}

// maxSalt bounds a cache salt, in characters.
const maxSalt = 1 << 10

// Salt reads a cache salt, which must not be empty.
func Salt(to *string) func(param string, raw json.RawMessage) error {
	return func(param string, raw json.RawMessage) error {
		if err := stringInto(to)(param, raw); err != nil {
			return err
		}
		if n := utf8.RuneCountInString(*to); n == 0 || n > maxSalt {
			return Invalid(param, "'%s' must have 1 to %d characters, not %d. Omit it for the tenant's common cache.", param, maxSalt, n)
		}
		return nil
	}
}

func boolInto(to *bool) field {
	return func(param string, raw json.RawMessage) error {
		if kind(raw) != "boolean" {
			return wrongKind(param, "true or false", raw)
		}
		return json.Unmarshal(raw, to)
	}
}

// floatInto accepts a number from low to high, inclusive.
func floatInto(to **float64, low, high float64) field {
	return func(param string, raw json.RawMessage) error {
		if kind(raw) != "number" {
			return wrongKind(param, "a number", raw)
		}
		v, err := strconv.ParseFloat(string(raw), 64)
		if err != nil || math.IsNaN(v) || v < low || v > high {
			return Invalid(param, "'%s' must be between %v and %v, not %s.", param, low, high, Shorten(string(raw)))
		}
		*to = &v
		return nil
	}
}

// integer accepts an integer from low to high, inclusive.
func integer(low, high int64, set func(int64)) field {
	return func(param string, raw json.RawMessage) error {
		if kind(raw) != "number" {
			return wrongKind(param, "an integer", raw)
		}
		v, err := strconv.ParseInt(string(raw), 10, 64)
		switch {
		case errors.Is(err, strconv.ErrSyntax):
			return Invalid(param, "'%s' must be an integer, not %s.", param, Shorten(string(raw)))
		case err != nil || v < low || v > high:
			return Invalid(param, "'%s' must be between %d and %d, not %s.", param, low, high, Shorten(string(raw)))
		}
		set(v)
		return nil
	}
}

// only returns the field of a parameter that is not supported: it accepts null
// and the neutral values, which have the same effect as an absent parameter.
func only(neutral ...string) field {
	return func(param string, raw json.RawMessage) error {
		if isNeutral(raw, neutral) {
			return nil
		}
		return unsupported(param, neutral)
	}
}

func unsupported(param string, neutral []string) *Error {
	remedy := "Omit it."
	if len(neutral) > 0 {
		remedy = "Omit it or send " + strings.Join(neutral, " or ") + "."
	}
	param = Shorten(param)
	return &Error{Status: 400, Type: TypeInvalidRequest, Param: param, Code: CodeUnsupportedParameter,
		Message: fmt.Sprintf("The parameter '%s' is not supported. %s", param, remedy)}
}

func unknownParameter(param string) error {
	param = Shorten(param)
	return &Error{Status: 400, Type: TypeInvalidRequest, Param: param, Code: CodeUnknownParameter,
		Message: fmt.Sprintf("The parameter '%s' is unknown. Check its spelling or omit it.", param)}
}

func required(param string) error {
	param = Shorten(param)
	return &Error{Status: 400, Type: TypeInvalidRequest, Param: param, Code: CodeMissingParameter,
		Message: fmt.Sprintf("The parameter '%s' is required.", param)}
}

package openai

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// Envelope holds the parts of a request that a proxy needs: its destination and
// the beginning of its prompt.
type Envelope struct {
	Model string
	// Stream requests a streamed response, and Background one that does not end when
	// its client leaves.
	Stream, Background bool
	// Messages, Prompt and Tools hold the raw JSON; nil when absent.
	Messages, Prompt, Tools json.RawMessage
	// System is the system prompt when it is separate from the messages, and
	// Previous is the id of the response that the request continues.
	System   json.RawMessage
	Previous string
	// Reference is the id of a stored item that the input refers to; the last one, if
	// there are several.
	Reference string
	// Choices is how many answers are requested, 'n' for each prompt; 0 means one.
	Choices int
	// MaxTokens is the maximum length of an answer; 0 means the model's.
	MaxTokens int64
	// Inputs is how many texts are to be embedded or scored; 0 means one.
	Inputs int
	// Common is the length of the JSON of what is read with each of them: a query, or an
	// instruction.
	Common int
	// CacheKey names the conversation; it may be empty.
	CacheKey string
	// CacheSalt separates cached prompts within a tenant; it may be empty.
	CacheSalt string
}

// maxSaltJSON is the length of the longest cache salt as JSON, with two escapes for each
// character. The backend rejects a longer one, which a proxy would hold and hash in vain.
const maxSaltJSON = 12*maxSalt + 2

// maxNameJSON is the length of the longest id or cache key as JSON that a proxy reads. A longer
// one may be most of the body, and would be kept besides it.
const maxNameJSON = 4 << 10

// everyRoute are the members that the backend reads on all routes.
var everyRoute = []string{"model", "stream", "prompt_cache_key", "cache_salt"}

// DecodeEnvelope reads the body of any request that names a model, for a proxy
// that forwards the bytes and leaves validation to the backend. It returns an
// *Error. The last of duplicate members counts; the backend rejects them
// anyway. only are the members that the backend reads on the route, besides those of
// every route: it ignores others, which mean nothing then. Without any, all count.
func DecodeEnvelope(body []byte, only ...string) (Envelope, error) {
	var e Envelope
	if !utf8.Valid(body) || !json.Valid(body) {
		return e, checkJSON(body)
	}
	if kind(body) != "object" {
		return e, wrongKind("", "an object", body)
	}
	var model json.RawMessage
	each := 1
	for name, value := range Members(body) {
		if len(only) > 0 && !isAmong(only, name) && !isAmong(everyRoute, name) {
			continue
		}
		switch string(name) {
		case "model":
			model = value
		case "n":
			if n, err := strconv.Atoi(string(value)); err == nil { // the backend rejects anything but a number
				each = n
			}
		default:
			e.read(name, value)
		}
	}
	e.Choices = choices(each, e.Prompt)
	if model == nil {
		return e, required("model")
	}
	if err := stringInto(&e.Model)("model", model); err != nil {
		return e, err
	}
	if e.Model == "" {
		return e, required("model")
	}
	return e, nil
}

// read reads a member. The backend rejects values of another type.
func (e *Envelope) read(name []byte, value json.RawMessage) {
	switch string(name) {
	case "stream":
		e.Stream = string(value) == "true"
	case "background":
		e.Background = string(value) == "true"
	case "messages":
		e.Messages = value
	case "prompt":
		e.Prompt = value
	case "tools":
		e.Tools = value
	case "system", "instructions":
		e.System = value
	case "input":
		if isItems(value) {
			e.Messages, e.Reference = value, lastReference(value)
			break
		}
		e.Inputs += count(value, maxInputs)
	case "documents", "texts", "text_2":
		e.Inputs += count(value, maxInputs)
	case "query", "instruction":
		e.Common += len(value)
	case "text_1", "queries":
		if count(value, 2) < 2 { // else each is read with one document
			e.Common += len(value)
		}
	case "max_tokens", "max_completion_tokens", "max_output_tokens":
		most, _ := strconv.ParseInt(string(value), 10, 64) // the backend rejects anything but a number
		e.MaxTokens = max(e.MaxTokens, most)
	case "previous_response_id":
		if len(value) <= maxNameJSON {
			_ = json.Unmarshal(value, &e.Previous) // the backend rejects anything but a string
		}
	case "prompt_cache_key":
		if len(value) <= maxNameJSON {
			_ = json.Unmarshal(value, &e.CacheKey)
		}
	case "cache_salt":
		if len(value) <= maxSaltJSON {
			_ = json.Unmarshal(value, &e.CacheSalt)
		}
	}
}

// isAmong is slices.Contains, without a copy of the name: there may be a million.
func isAmong(names []string, name []byte) bool {
	for _, one := range names {
		if string(name) == one {
			return true
		}
	}
	return false
}

// choices is how many answers are requested; 0 means one.
func choices(each int, prompt json.RawMessage) int {
	if all := max(1, min(each, maxChoices)) * prompts(prompt); all > 1 {
		return all
	}
	return 0
}

// prompts counts the prompts in a list of them, up to maxChoices; tokens and anything else
// are one.
func prompts(value json.RawMessage) int {
	for first := range Elements(value) {
		if k := kind(first); k == "string" || k == "array" {
			return count(value, maxChoices)
		}
		break
	}
	return 1
}

// count returns the number of elements of a list, up to a maximum.
func count(value json.RawMessage, most int) int {
	n := 0
	for range Elements(value) {
		if n++; n == most {
			break
		}
	}
	return n
}

// isItems reports whether an input is a conversation, as opposed to texts to
// embed.
func isItems(input json.RawMessage) bool {
	for first := range Elements(input) {
		return kind(first) == "object"
	}
	return false
}

// itemReference is the type of an input item that stands for a stored one.
const itemReference = "item_reference"

// idMember and asciiEscape are in every input with an id: letters may be escaped.
var idMember, asciiEscape = []byte(`"id"`), []byte(`\u00`)

// lastReference returns the id of the last reference in an input, if there is one.
func lastReference(input json.RawMessage) string {
	if !bytes.Contains(input, idMember) && !bytes.Contains(input, asciiEscape) {
		return ""
	}
	var last json.RawMessage
	for item := range Elements(input) {
		if id, refers := referenceIn(item); refers && kind(id) == "string" && len(id) <= maxNameJSON { // the backend rejects others
			last = id
		}
	}
	return string(Text(last))
}

// referenceIn returns the id of an input item that is a reference. As for the backend
// (package responses), one needs no type if it has only an id.
func referenceIn(item json.RawMessage) (id json.RawMessage, refers bool) {
	typed, said, named := []byte(nil), false, false
	for name, value := range Members(item) {
		switch string(name) {
		case "type":
			if kind(value) == "string" {
				typed = Text(value)
			}
		case "id":
			id, named = value, kind(value) == "string"
		case "role", "content":
			said = true
		}
	}
	return id, string(typed) == itemReference || len(typed) == 0 && named && !said
}

// Elements returns the elements of a valid JSON array, and none of anything
// else.
func Elements(array json.RawMessage) func(yield func(json.RawMessage) bool) {
	return func(yield func(json.RawMessage) bool) { eachElement(array, yield) } // inlined, so that a loop takes no memory
}

func eachElement(array json.RawMessage, yield func(json.RawMessage) bool) {
	if kind(array) != "array" {
		return
	}
	rest := skipSpace(skipSpace(array)[1:])
	for len(rest) > 0 && rest[0] != ']' {
		n := valueEnd(rest)
		if !yield(json.RawMessage(rest[:n])) {
			return
		}
		rest = afterComma(rest[n:])
	}
}

// Members returns the members of a valid JSON object, and none of anything
// else. A name is valid until the next one.
func Members(object json.RawMessage) func(yield func(name []byte, value json.RawMessage) bool) {
	return func(yield func([]byte, json.RawMessage) bool) { eachMember(object, yield) }
}

// eachMember skips values without decoding them.
func eachMember(object json.RawMessage, yield func([]byte, json.RawMessage) bool) {
	if kind(object) != "object" {
		return
	}
	var plain []byte // for all names with escapes: there may be millions
	rest := skipSpace(skipSpace(object)[1:])
	for len(rest) > 0 && rest[0] == '"' {
		n := valueEnd(rest)
		name := rest[1 : n-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			plain = unescape(plain[:0], name)
			name = plain
		}
		rest = skipSpace(skipSpace(rest[n:])[1:]) // the colon
		n = valueEnd(rest)
		if !yield(name, json.RawMessage(rest[:n])) {
			return
		}
		rest = afterComma(rest[n:])
	}
}

func afterComma(rest []byte) []byte {
	rest = skipSpace(rest)
	if len(rest) > 0 && rest[0] == ',' {
		rest = skipSpace(rest[1:])
	}
	return rest
}

func skipSpace(b []byte) []byte {
	for len(b) > 0 && isSpace(b[0]) { // faster than bytes.TrimLeft where there is none
		b = b[1:]
	}
	return b
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// valueEnd returns the end of the value at the start of b.
func valueEnd(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i += stringEnd(b[i:]) - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 {
				return i
			}
			depth--
		default:
			if depth > 0 {
				continue
			}
			for i < len(b) && b[i] != ',' && b[i] != ']' && b[i] != '}' && !isSpace(b[i]) {
				i++
			}
			return i
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(b)
}

// stringEnd returns the end of the quoted string at the start of b.
func stringEnd(b []byte) int {
	for i := 1; i < len(b); i++ {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return len(b)
		}
		i += n
		escapes := 0
		for b[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
	return len(b)
}

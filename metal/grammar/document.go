package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// manner is how strictly a schema is read and its values are written.
type manner struct {
	// forgiving: a keyword that cannot be enforced, or read, is not enforced. Members may
	// come in any order.
	forgiving bool
	// sloppy: only types, members and listed values are enforced, other members are allowed
	// unless the schema forbids them, and JSON may have the flaws that metal/toolcall repairs.
	sloppy bool
	// inTags: values stand between tags, so that no string has a tag in it.
	inTags bool
	// notation of values; its zero value is JSON.
	notation Notation
}

// document is one document of schemas, and what its keywords say.
type document struct {
	b    *builder
	root value
	manner
	// patterns that were parsed already.
	patterns map[patternKey]*regular
	// items of arrays, by their schema.
	items map[*members]itemSchemas
	// targets of references that were found already.
	targets map[string]place
}

type patternKey struct{ keyword, text string }

func newDocument(b *builder, root value, how manner) document {
	return document{b: b, root: root, manner: how, patterns: map[patternKey]*regular{}, items: map[*members]itemSchemas{}, targets: map[string]place{}}
}

// fault is an error at a spot. Forgiven ones are made many times, so that their texts are
// counted as work.
func (s *document) fault(kind error, keyword string, at *spot, format string, args ...any) error {
	e := &Error{kind: kind, Keyword: keyword, Path: s.pointer(at), Message: fmt.Sprintf(format, args...)}
	s.b.meter.spend(len(e.Message) / textBytes)
	return e
}

func (s *document) unsupported(keyword string, at *spot, format string, args ...any) error {
	return s.fault(errUnsupported, keyword, at, "the keyword %q cannot be enforced: %s", keyword, fmt.Sprintf(format, args...))
}

func (s *document) malformed(keyword string, at *spot, want string) error {
	return s.fault(ErrInvalid, keyword, at, "the keyword %q must be %s", keyword, want)
}

// pointer writes where something stands.
func (s *document) pointer(at *spot) string {
	text := at.pointer()
	s.b.meter.spend(len(text) / textBytes)
	return text
}

// forgives reports whether a value may be anything where its schema cannot be read.
func (s *document) forgives(err error) bool {
	return s.forgiving && s.b.err == nil && s.b.meter.err == nil && !errors.Is(err, errLimit)
}

// resolve finds what a reference within the document names.
func (s *document) resolve(v value, at *spot) (place, error) {
	text, ok := v.(string)
	if !ok {
		return place{}, s.malformed("$ref", at, "a string")
	}
	if !s.b.meter.spend(1 + len(text)/textBytes) {
		return place{}, s.b.meter.err
	}
	if to, known := s.targets[text]; known {
		return to, nil
	}
	pointer, local := strings.CutPrefix(text, "#")
	if !local {
		return place{}, s.unsupported("$ref", at, "%q is not in this schema; put the referenced schema under $defs and refer to it as #/$defs/NAME", text)
	}
	if pointer, err := url.PathUnescape(pointer); err == nil && (pointer == "" || pointer[0] == '/') {
		if !s.b.meter.hold(entryBytes + placeBytes*strings.Count(pointer, "/")) {
			return place{}, s.b.meter.err
		}
		if to, found := s.find(pointer); found {
			s.targets[text] = to
			return to, nil
		}
	}
	return place{}, s.fault(ErrInvalid, "$ref", at, `the keyword "$ref" refers to %q, which does not exist; references are #, or # and a JSON pointer`, text)
}

// unescape turns a part of a JSON pointer into a name.
var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// find follows a JSON pointer.
func (s *document) find(pointer string) (place, bool) {
	to := place{of: s.root}
	_, pointer, more := strings.Cut(pointer, "/")
	for more {
		var part string
		part, pointer, more = strings.Cut(pointer, "/")
		part = unescape.Replace(part)
		found := false
		switch of := to.of.(type) {
		case *members:
			to.of, found = of.get(part)
		case []value:
			n, err := strconv.Atoi(part)
			if found = err == nil && n >= 0 && n < len(of); found {
				to.of = of[n]
			}
		}
		if !found {
			return place{}, false
		}
		to.at = to.at.under(part)
	}
	return to, true
}

// keywords that are enforced, or say nothing about a value.
var keywords = map[string]bool{
	"$schema": true, "$defs": true, "definitions": true, "$comment": true, "title": true, "description": true, "default": true,
	"examples": true, "example": true, "deprecated": true, "readOnly": true, "writeOnly": true, "contentEncoding": true, "contentMediaType": true,
	"discriminator": true, "nullable": false,
	"type": true, "enum": true, "const": true, "$ref": true, "allOf": true, "anyOf": true, "oneOf": true,
	"properties": true, "patternProperties": true, "additionalProperties": true, "required": true, "minProperties": true, "maxProperties": true,
	"items": true, "prefixItems": true, "additionalItems": true, "minItems": true, "maxItems": true,
	"minimum": true, "maximum": true, "exclusiveMinimum": true, "exclusiveMaximum": true,
	"minLength": true, "maxLength": true, "pattern": true, "format": true,
}

// structural are the keywords that sloppy JSON is not held to.
var notStructural = map[string]bool{
	"patternProperties": true, "minProperties": true, "maxProperties": true, "minItems": true, "maxItems": true,
	"minimum": true, "maximum": true, "exclusiveMinimum": true, "exclusiveMaximum": true,
	"minLength": true, "maxLength": true, "pattern": true, "format": true, "multipleOf": true,
}

// skipped are the keywords that are not looked at.
func (s *document) skipped() map[string]bool {
	if s.sloppy {
		return notStructural
	}
	return nil
}

func (s *document) checkKeywords(m *members, at *spot) error {
	if s.forgiving {
		return nil
	}
	for _, name := range m.names {
		v := m.of[name]
		switch {
		case strings.HasPrefix(name, "x-") || keywords[name]:
		case name == "uniqueItems" && v == false:
		case name == "multipleOf" && v == json.Number("1"):
		case name == "uniqueItems":
			return s.unsupported(name, at, "an automaton cannot remember all items; omit it and validate the output, or list the values as an enum of arrays")
		case name == "multipleOf":
			return s.unsupported(name, at, "only 1 is supported; list the values as an enum, or omit it and validate the output")
		default:
			return s.unsupported(name, at, "omit it and validate the output")
		}
	}
	if v, ok := m.get("$schema"); ok && at == nil {
		text, _ := v.(string)
		s.b.meter.spend(len(text) / (4 * textBytes))
		if !strings.Contains(text, "2020-12") && !strings.Contains(text, "2019-09") && !strings.Contains(text, "draft-07") && !strings.Contains(text, "draft-06") {
			return s.unsupported("$schema", at, "unknown dialect %s; write the schema in 2020-12", written(v))
		}
	}
	return nil
}

package openai

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxIgnored is the maximum number of ignored fields that a Decoder
	// remembers, and maxIgnoredBytes the maximum size of their names together,
	// with two bytes for each separator.
	maxIgnored      = 20
	maxIgnoredBytes = 1000
	// maxNeutral is more than the size of any neutral value.
	maxNeutral = 256
	// moreIgnored represents the names beyond these limits.
	moreIgnored = "..."
)

// MaxParts is the maximum number of messages, items and their parts in a request: as
// values, small ones take ten times the memory that they take in the body.
const MaxParts = 1 << 15

// Decoder decodes the body of one request, of any of the APIs.
//
// Clients of these APIs send fields that a server does not know yet, and fields
// that concern only their vendor. A Decoder ignores those that cannot change the
// answer and remembers their names. It rejects a field that would change the
// answer and is not supported.
type Decoder struct {
	// Strict rejects the fields that are otherwise ignored.
	Strict bool
	// FetchImage returns the bytes of an image at an https URL; nil fetches none. An *Error
	// refuses the request as it is, any other one the image.
	FetchImage func(url string) ([]byte, error)

	ignored []string
	bytes   int
	more    bool
	parts   int
}

// Part counts a message, an item or a part of one, before it is read.
func (d *Decoder) Part(param string) error {
	if d.parts++; d.parts > MaxParts {
		return Invalid(param, "A request may have at most %d messages, items and content parts in total.", MaxParts)
	}
	return nil
}

// Unused is a documented field that has no effect here. Null always passes, as
// if the field were absent.
type Unused struct {
	Name string
	// Why the field cannot change an answer, or why it is rejected: a phrase for
	// the API reference.
	Why string
	// Neutral values have the same effect as an absent field: they pass, and the
	// field does not count as ignored.
	Neutral []string
	// Refused fields would change the answer, so other values than the neutral
	// ones are rejected. Other fields are ignored with any value.
	Refused bool
	// Foreign fields belong to another server's version of the API, so a strict
	// Decoder rejects them as unknown.
	Foreign bool
	// Strict is what a strict Decoder does with an ignored field; nil rejects
	// other values than the neutral ones.
	Strict Field
}

// Place is where unused fields may stand.
type Place struct {
	// Path of the object, such as messages[]; empty for the body itself.
	Path string
	// Type of the object, where objects of several types have the same path.
	Type   string
	Unused []Unused
}

// Object passes every member of a JSON object to its field. It rejects a
// duplicate member. A member without a field is in one of the lists of unused
// fields, or unknown. within is the path of the object, empty at the top level.
func (d *Decoder) Object(raw json.RawMessage, within string, fields map[string]Field, unused ...[]Unused) error {
	return decodeMembers(raw, within, func(name string) (Field, error) {
		if decode, known := fields[name]; known {
			return decode, nil
		}
		for _, list := range unused {
			for i := range list {
				if list[i].Name == name {
					return d.unused(&list[i]), nil
				}
			}
		}
		return d.unknown, nil
	})
}

func (d *Decoder) unknown(param string, raw json.RawMessage) error {
	if d.Strict {
		return unknownParameter(param)
	}
	if kind(raw) != "null" {
		d.ignore(param)
	}
	return nil
}

func (d *Decoder) unused(u *Unused) Field {
	switch {
	case d.Strict && u.Foreign:
		return d.unknown
	case u.Refused:
		return u.refuse
	case d.Strict && u.Strict != nil:
		return optional(u.Strict)
	case d.Strict:
		return only(u.Neutral...)
	}
	return func(param string, raw json.RawMessage) error {
		if !isNeutral(raw, u.Neutral) {
			d.ignore(param)
		}
		return nil
	}
}

// whyNone is the reason of a refused field that has no better one.
const whyNone = "not supported"

// refuse accepts only the neutral values; its error has the reason.
func (u *Unused) refuse(param string, raw json.RawMessage) error {
	if isNeutral(raw, u.Neutral) {
		return nil
	}
	e := unsupported(param, u.Neutral)
	if u.Why != whyNone {
		e.Message = strings.Replace(e.Message, "is not supported.", "is not supported: "+u.Why+".", 1)
	}
	return e
}

// Ignore remembers a field that a decoding function leaves without effect.
func (d *Decoder) Ignore(param string) { d.ignore(param) }

// LeaveOut ignores an element of a list, such as a tool that this server cannot
// run. what is the type of the element, which becomes part of its name:
// tools[web_search].
func (d *Decoder) LeaveOut(param, what string, raw json.RawMessage) error {
	if at := strings.LastIndexByte(param, '['); at >= 0 {
		d.add(safeName(withoutIndexes(param[:at])) + "[" + safeName(what) + "]")
	}
	skip := func(string, json.RawMessage) error { return nil }
	return decodeMembers(raw, param, func(string) (Field, error) { return skip, nil })
}

// Ignored returns the names of the fields that were ignored, in the order of
// their first appearance: paths without the indexes of lists, such as
// messages[].content[].cache_control. Names are shortened and contain only
// visible ASCII characters without commas. If there are too many, the last one
// is "...".
func (d *Decoder) Ignored() []string {
	if d.more {
		return append(slices.Clone(d.ignored), moreIgnored)
	}
	return slices.Clone(d.ignored)
}

func (d *Decoder) ignore(param string) { d.add(safeName(withoutIndexes(param))) }

func (d *Decoder) add(name string) {
	switch {
	case slices.Contains(d.ignored, name):
	case len(d.ignored) == maxIgnored || d.bytes+len(name)+2 > maxIgnoredBytes:
		d.more = true
	default:
		d.ignored = append(d.ignored, name)
		d.bytes += len(name) + 2
	}
}

// withoutIndexes removes the indexes of lists from a path. A client may have written a part of
// it, of any length: each byte is read at most twice.
func withoutIndexes(path string) string {
	if strings.IndexByte(path, '[') < 0 {
		return path
	}
	var b strings.Builder
	for i := 0; i < len(path); {
		b.WriteByte(path[i])
		i++
		if path[i-1] != '[' {
			continue
		}
		end := i
		for end < len(path) && path[end] >= '0' && path[end] <= '9' {
			end++
		}
		if end > i && end < len(path) && path[end] == ']' {
			i = end
		}
	}
	return b.String()
}

// safeName shortens a name and replaces the characters that must not stand in
// a list in a header.
func safeName(name string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == ',' || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, Shorten(name))
}

// isNeutral reports whether a value is null or one of the neutral ones, which
// are compact JSON. Numbers are compared by value.
func isNeutral(raw json.RawMessage, neutral []string) bool {
	if kind(raw) == "null" {
		return true
	}
	if len(neutral) == 0 || len(raw) > maxNeutral {
		return false
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return false
	}
	text := compact.String()
	if slices.Contains(neutral, text) {
		return true
	}
	v, err := strconv.ParseFloat(text, 64)
	return err == nil && slices.ContainsFunc(neutral, func(n string) bool {
		w, err := strconv.ParseFloat(n, 64)
		return err == nil && v == w
	})
}
